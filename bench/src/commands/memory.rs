//! `larder-bench memory`

use larder_bench::memory::{MemoryConfig, run as run_memory};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::MemoryArgs;
use larder::files::{require_root, scratch_folder};

pub(crate) fn run(args: &MemoryArgs) -> anyhow::Result<()> {
    require_root("memory")?;
    raise_file_limit();
    let config = MemoryConfig {
        datasets: args.datasets,
        files: args.files,
        file_bytes: args.file_size,
        readers: args.readers,
        threads: args.threads,
        origin_delay_ms: args.origin_delay.map_or(0, |delay| delay.as_millis() as u64),
        rounds: args.rounds.rounds,
        seed: args.seed.seed,
        folder: scratch_folder(args.folder.folder.as_deref(), "memory")?,
        programs: program::node(&args.node)?,
    };
    measure(&args.output, "epochs", |steps| run_memory(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
