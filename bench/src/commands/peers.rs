//! `larder-bench peers`

use std::process::ExitCode;

use anyhow::Context;
use larder_bench::peers::{PeersConfig, run as run_peers};
use larder_cachenode::process::raise_file_limit;

use super::program;
use super::steps::Steps;
use crate::args::PeersArgs;
use larder::files::{check_folder, require_root, scratch_folder, write_json};
use larder::output;

pub(crate) fn run(args: &PeersArgs) -> anyhow::Result<ExitCode> {
    require_root("peers")?;
    // The run opens a counter for each kind of request and each processor.
    raise_file_limit();
    let folder = scratch_folder(args.folder.as_deref(), "peers")?;
    check_folder("--json", args.json.as_deref())?;
    check_folder("--plot", args.plot.as_deref())?;
    let mut readers = args.readers.clone();
    readers.sort_unstable();
    readers.dedup();
    let config = PeersConfig {
        files: args.files,
        mean_size: args.mean_size,
        readers,
        rounds: args.rounds,
        only: args.only.clone(),
        seed: args.seed,
        folder,
        binary: program::larder()?,
    };
    let steps = Steps::new("{msg:34} {bar:30} {pos}/{len} epochs [{elapsed}, {eta} left]");
    let outcome = run_peers(&config, &steps);
    steps.finish();
    let outcome = outcome?;
    output::text(&outcome.table())?;
    write_json(args.json.as_deref(), &outcome)?;
    if let Some(path) = &args.plot {
        outcome.bars().write(path).context("--plot")?;
        output::line(format_args!("plot           {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
