//! `larder-bench mlperf`

use larder::files::{require_root, scratch_folder};
use larder_bench::mlperf::{MlperfConfig, Scale, run as run_mlperf};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::MlperfArgs;

/// The most readers by default.
const THREADS_MOST: usize = 8;

pub(crate) fn run(args: &MlperfArgs) -> anyhow::Result<()> {
    require_root("mlperf")?;
    raise_file_limit();
    let processors = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MOST);
    let config = MlperfConfig {
        workloads: args.workloads.clone(),
        scale: Scale { bytes: args.size, speed: args.speed, threads: args.threads.unwrap_or(processors as u32) },
        epochs: args.epochs,
        rounds: args.systems.rounds.rounds,
        only: args.systems.only.clone(),
        seed: args.systems.seed,
        dlio: args.dlio.clone(),
        folder: scratch_folder(args.systems.folder.folder.as_deref(), "mlperf")?,
        binary: program::larder()?,
    };
    measure(&args.output, "epochs", |steps| run_mlperf(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
