//! `larder warm`

mod list;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use larder_cachenode::{CacheStats, Stats, WarmState};
use larder_dataset::size::show_bytes;

use crate::args::WarmArgs;
use crate::{ioctl, mount_stats, output};

/// The interval at which the progress is polled.
const POLL: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &WarmArgs) -> anyhow::Result<ExitCode> {
    let file =
        File::open(args.dir.join(".larder/stats.json")).map_err(|error| mount_stats::unreadable(&args.dir, error))?;
    if let Some(plan) = plan(&mount_stats::read(&args.dir)?, args.from.as_deref()) {
        output::note(format_args!("{plan}"));
    }
    match &args.from {
        Some(from) => list::send(from, &args.dir, &file)?,
        None => {
            ioctl::start_warming(&file).with_context(|| format!("start warming the mount at {}", args.dir.display()))?
        }
    }
    let state = if args.wait { wait(&args.dir)? } else { started(args)? };
    if args.json {
        output::json(&state)?;
    } else if args.wait {
        let cache = mount_stats::read(&args.dir)?.cache;
        output::line(format_args!("{}", summary(&state, &cache)))?;
    } else {
        let stats = mount_stats::command("stats", &args.dir);
        output::line(format_args!("warming {}; `{stats}` shows the progress", args.dir.display()))?;
    }
    check(args, &state)?;
    Ok(ExitCode::SUCCESS)
}

fn read(dir: &Path) -> anyhow::Result<WarmState> {
    let state = mount_stats::read(dir)?.warm;
    state.context("the mount is not warming, probably because it was restarted: run this command again")
}

/// Waits until warming has ended.
fn wait(dir: &Path) -> anyhow::Result<WarmState> {
    let bar = output::bar(1, "warming {bar:30} {percent} % {pos}/{len} blocks {per_sec} [{elapsed}, {eta} left]");
    loop {
        let state = read(dir)?;
        bar.set_length(state.blocks_total);
        bar.set_position(state.blocks_done);
        if !state.running {
            bar.finish_and_clear();
            return Ok(state);
        }
        std::thread::sleep(POLL);
    }
}

/// The state of a warming that was just started. For a list, this waits until the first file was found, or no file is
/// left to find.
fn started(args: &WarmArgs) -> anyhow::Result<WarmState> {
    loop {
        let state = read(&args.dir)?;
        if args.from.is_none() || state.files_listed > 0 || !state.running {
            return Ok(state);
        }
        std::thread::sleep(POLL);
    }
}

/// The part of a dataset that does not fit that will be kept, and its order; `None` if all of it fits.
fn plan(stats: &Stats, from: Option<&Path>) -> Option<String> {
    let cache = &stats.cache;
    if cache.capacity_bytes >= stats.dataset.bytes {
        return None;
    }
    let (room, all) = (show_bytes(cache.capacity_bytes), show_bytes(stats.dataset.bytes));
    let free = cache.capacity_bytes.saturating_sub(cache.used_bytes);
    let files = u64::from(stats.dataset.files.max(1));
    if cache.capacity_bytes == 0 {
        let why = cache.shortage.as_deref().unwrap_or("mount it with a larger --cache-size");
        return Some(format!("nothing can be cached: {why}"));
    }
    // A file of average size is the least that a full cache has no room for.
    let (policy, keeps_smallest) = (&cache.policy, cache.policy == "smallest");
    if (policy == "nr" || keeps_smallest) && free < stats.dataset.bytes / files {
        return Some(format!("the cache is full with {room} of the dataset's {all}, and {policy} replaces nothing"));
    }
    let about = u128::from(free) * u128::from(files) / u128::from(stats.dataset.bytes.max(1));
    let least = if keeps_smallest && from.is_none() { "at least" } else { "about" };
    let order = match from {
        Some(from) => format!("in the order of {}", from.display()),
        None if keeps_smallest => "those of the order that was imported with it, then the smallest".to_owned(),
        None => "in the order that was imported with it, else by path (--from FILE sets another)".to_owned(),
    };
    Some(format!(
        "the cache has room for {room} of the dataset's {all}: {least} {about} more of its {files} files will be kept, \
         {order}"
    ))
}

/// How much is cached, and why the rest is not.
fn summary(state: &WarmState, cache: &CacheStats) -> String {
    let mut text = format!("{} of {} blocks are cached", state.blocks_kept, state.blocks_total);
    if state.blocks_elsewhere > 0 {
        text += &format!("; {} belong to other nodes", state.blocks_elsewhere);
    }
    if state.full {
        let room = show_bytes(cache.capacity_bytes);
        let advice = cache.shortage.as_deref().unwrap_or("mount it with a larger --cache-size");
        text += &format!("; {} do not fit into the dataset's {room} of cache: {advice}", state.blocks_unkept);
    }
    text
}

/// Fails if no line of the list matches a file, or if blocks that fit into the cache were not cached.
fn check(args: &WarmArgs, state: &WarmState) -> anyhow::Result<()> {
    if state.lines_unknown > 0 {
        output::note(format_args!("{} lines match no file of the dataset:", state.lines_unknown));
        state.unknown.iter().for_each(|line| output::note(format_args!("    {line}")));
    }
    if let Some(from) = args.from.as_deref().filter(|_| state.files_listed == 0 && !state.running) {
        bail!(
            "no line of {} (--from) matches a file of the dataset: use paths below {}",
            from.display(),
            args.dir.display()
        );
    }
    if let Some(why) = &state.unkept_because {
        bail!(
            "{} of {} blocks could not be stored in the cache: {why}; fix this and run the command again",
            state.blocks_unkept,
            state.blocks_total
        );
    }
    if state.blocks_failed > 0 {
        bail!(
            "{} blocks could not be fetched from the origin: see `{}` and the log",
            state.blocks_failed,
            mount_stats::command("stats", &args.dir)
        );
    }
    Ok(())
}
