//! `larder-bench far-origin`

use larder_bench::far_origin::{FarOriginConfig, run as run_far_origin};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::FarOriginArgs;
use larder::files::{require_root, scratch_folder};

pub(crate) fn run(args: &FarOriginArgs) -> anyhow::Result<()> {
    require_root("far-origin")?;
    raise_file_limit();
    let config = FarOriginConfig {
        files: args.files,
        mean_size: args.mean_size,
        readers: args.readers,
        gets: args.gets,
        origin_delay_ms: args.origin_delay.as_millis() as u64,
        origin_bytes_per_second: args.origin_rate,
        rounds: args.rounds.rounds,
        seed: args.seed.seed,
        folder: scratch_folder(args.folder.folder.as_deref(), "far-origin")?,
        binary: program::larder()?,
    };
    measure(&args.output, "passes", |steps| run_far_origin(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
