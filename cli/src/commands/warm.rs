//! `larder warm`

use std::fs::File;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::args::WarmArgs;
use crate::{ioctl, mount_stats, output};

pub(crate) fn run(args: &WarmArgs) -> anyhow::Result<ExitCode> {
    let path = args.dir.join(".larder/stats.json");
    let file = File::open(&path)
        .with_context(|| format!("open {}: is {} the root of a Larder mount?", path.display(), args.dir.display()))?;
    ioctl::start_warming(&file).with_context(|| format!("start warming the mount at {}", args.dir.display()))?;
    if !args.wait {
        println!("warming {}; `larder stats {0}` shows the progress", args.dir.display());
        return Ok(ExitCode::SUCCESS);
    }
    let bar = output::bar(1, "warming {bar:30} {percent} % {pos}/{len} blocks {per_sec} [{elapsed}, {eta} left]");
    let state = loop {
        let state = mount_stats::read(&args.dir)?
            .warm
            .context("the mount reports no warming: it was probably restarted, so run this command again")?;
        bar.set_length(state.blocks_total);
        bar.set_position(state.blocks_done);
        if !state.running {
            break state;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    bar.finish_and_clear();
    if args.json {
        output::json(&state)?;
    } else {
        let full = if state.full { "; the cache is full (mount with a larger --cache-size)" } else { "" };
        println!("{} of {} blocks are cached{full}", state.blocks_kept, state.blocks_total);
    }
    if state.blocks_failed > 0 {
        bail!("{} blocks could not be fetched from the origin: see `larder stats` and the log", state.blocks_failed);
    }
    Ok(ExitCode::SUCCESS)
}
