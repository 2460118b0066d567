//! `larder-bench plan`

use anyhow::Context;
use larder::files::{check_folder, require_root, scratch_folder};
use larder::output;
use larder_bench::plan::{PlanConfig, run as run_plan};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::PlanArgs;

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    require_root("plan")?;
    check_folder("--plot", args.plot.as_deref())?;
    raise_file_limit();
    let config = PlanConfig {
        files: args.files,
        mean_size: args.mean_size,
        origin_delay_ms: args.origin_delay.as_millis() as u64,
        rounds: args.rounds.rounds,
        with_shares: args.plot.is_some(),
        seed: args.seed.seed,
        folder: scratch_folder(args.folder.folder.as_deref(), "plan")?,
        binary: program::larder()?,
    };
    let outcome = measure(&args.output, "epochs", |steps| run_plan(&config, steps), |outcome| outcome.table())?;
    if let Some(path) = &args.plot {
        outcome.plot().write(path).context("--plot")?;
        output::line(format_args!("plot           {}", path.display()))?;
    }
    Ok(())
}
