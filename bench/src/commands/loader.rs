//! `larder-bench loader`

use larder::files::{require_root, scratch_folder};
use larder_bench::loader::{Loader, LoaderConfig, run as run_loader};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::LoaderArgs;

pub(crate) fn run(args: &LoaderArgs) -> anyhow::Result<()> {
    require_root("loader")?;
    raise_file_limit();
    let config = LoaderConfig {
        files: args.files,
        loader: Loader { workers: args.workers, batch: args.batch, accelerator: args.accelerator },
        origin_delay_ms: args.origin_delay.map_or(0, |delay| delay.as_millis() as u64),
        origin_bytes_per_second: args.origin_rate,
        rounds: args.systems.rounds.rounds,
        only: args.systems.only.clone(),
        seed: args.systems.seed,
        python: args.python.clone(),
        folder: scratch_folder(args.systems.folder.folder.as_deref(), "loader")?,
        binary: program::larder()?,
    };
    measure(&args.output, "epochs", |steps| run_loader(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
