//! `larder-bench sync`

use larder_bench::sync::{SyncConfig, run as run_sync};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::SyncArgs;
use larder::files::scratch_folder;

pub(crate) fn run(args: &SyncArgs) -> anyhow::Result<()> {
    raise_file_limit();
    let config = SyncConfig {
        files: args.files,
        mean_size: args.mean_size,
        transfers: args.transfers,
        delay_ms: args.origin_delay.as_millis() as u64,
        rounds: args.rounds.rounds,
        seed: args.seed.seed,
        folder: scratch_folder(args.folder.folder.as_deref(), "sync")?,
        binary: program::larder()?,
    };
    measure(&args.output, "copies", |steps| run_sync(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
