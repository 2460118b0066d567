//! `larder-bench outage`

use larder_bench::outage::{OutageConfig, run as run_outage};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::OutageArgs;
use larder::files::{require_root, scratch_folder};

pub(crate) fn run(args: &OutageArgs) -> anyhow::Result<()> {
    require_root("outage")?;
    raise_file_limit();
    let config = OutageConfig {
        hanging: args.hanging,
        cached: args.cached,
        file_bytes: args.file_size,
        readers: args.readers,
        rounds: args.rounds.rounds,
        seed: args.seed.seed,
        folder: scratch_folder(args.folder.folder.as_deref(), "outage")?,
        programs: program::node(&args.node)?,
    };
    measure(&args.output, "rounds", |steps| run_outage(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
