//! `larder-bench plan`

use larder::files::{require_root, scratch_folder};
use larder_bench::plan::{PlanConfig, run as run_plan};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::PlanArgs;

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    require_root("plan")?;
    raise_file_limit();
    let config = PlanConfig {
        files: args.files,
        mean_size: args.mean_size,
        origin_delay_ms: args.origin_delay.as_millis() as u64,
        rounds: args.rounds.rounds,
        seed: args.seed.seed,
        folder: scratch_folder(args.folder.folder.as_deref(), "plan")?,
        binary: program::larder()?,
    };
    measure(&args.output, "epochs", |steps| run_plan(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
