//! `larder-bench peers`

use anyhow::Context;
use larder_bench::peers::{PeersConfig, run as run_peers};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::PeersArgs;
use larder::files::{check_folder, require_root, scratch_folder};
use larder::output;

pub(crate) fn run(args: &PeersArgs) -> anyhow::Result<()> {
    require_root("peers")?;
    // The run opens one counter per kind of request and processor, possibly more than the default limit of open files.
    raise_file_limit();
    let folder = scratch_folder(args.systems.folder.folder.as_deref(), "peers")?;
    check_folder("--plot", args.plot.as_deref())?;
    let mut readers = args.readers.clone();
    readers.sort_unstable();
    readers.dedup();
    let config = PeersConfig {
        files: args.files,
        mean_size: args.mean_size,
        readers,
        rounds: args.systems.rounds.rounds,
        only: args.systems.only.clone(),
        seed: args.systems.seed,
        origin_delay_ms: args.origin_delay.map_or(0, |delay| delay.as_millis() as u64),
        origin_bytes_per_second: args.origin_rate,
        folder,
        binary: program::larder()?,
    };
    let outcome = measure(&args.output, "epochs", |steps| run_peers(&config, steps), |outcome| outcome.table())?;
    if let Some(path) = &args.plot {
        outcome.bars().write(path).context("--plot")?;
        output::line(format_args!("plot           {}", path.display()))?;
    }
    Ok(())
}
