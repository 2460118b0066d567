//! `larder-bench fio`

use larder_bench::fio::{FioConfig, run as run_fio};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::FioArgs;
use larder::files::{require_root, scratch_folder};

pub(crate) fn run(args: &FioArgs) -> anyhow::Result<()> {
    require_root("fio")?;
    raise_file_limit();
    let config = FioConfig {
        size: args.size,
        files: args.files,
        seconds: args.seconds,
        busy: args.busy,
        origin_delay_ms: args.origin_delay.map_or(0, |delay| delay.as_millis() as u64),
        origin_connection_bytes_per_second: args.origin_connection_rate,
        rounds: args.systems.rounds.rounds,
        only: args.systems.only.clone(),
        seed: args.systems.seed,
        folder: scratch_folder(args.systems.folder.folder.as_deref(), "fio")?,
        binary: program::larder()?,
    };
    measure(&args.output, "runs", |steps| run_fio(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
