//! `larder warm`

mod list;

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use larder_cachenode::{CacheStats, WarmState};
use larder_dataset::size::show_bytes;

use crate::args::WarmArgs;
use crate::{ioctl, mount_stats, output};

/// Interval between two looks at the progress.
const POLL: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &WarmArgs) -> anyhow::Result<ExitCode> {
    let path = args.dir.join(".larder/stats.json");
    let file = File::open(&path)
        .with_context(|| format!("open {}: is {} the root of a Larder mount?", path.display(), args.dir.display()))?;
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
        output::line(format_args!("warming {}; `larder stats {0}` shows the progress", args.dir.display()))?;
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

/// The state of a warming that was just started; of one by a list, when the first file was found or there is none.
fn started(args: &WarmArgs) -> anyhow::Result<WarmState> {
    loop {
        let state = read(&args.dir)?;
        if args.from.is_none() || state.files_listed > 0 || !state.running {
            return Ok(state);
        }
        std::thread::sleep(POLL);
    }
}

/// How much is cached, and why it is not all.
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

/// Errors: the list names no file, or blocks that have room are not cached.
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
        bail!("{} blocks could not be fetched from the origin: see `larder stats` and the log", state.blocks_failed);
    }
    Ok(())
}
