//! `larder-bench spread`

use larder_bench::spread::{SpreadConfig, run as run_spread};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::SpreadArgs;
use larder::files::{require_root, scratch_folder};

pub(crate) fn run(args: &SpreadArgs) -> anyhow::Result<()> {
    require_root("spread")?;
    raise_file_limit();
    let config = SpreadConfig {
        nodes: args.nodes,
        size: args.size,
        origin_delay_ms: args.origin_delay.as_millis() as u64,
        origin_bytes_per_second: args.origin_rate,
        rounds: args.rounds.rounds,
        seed: args.seed.seed,
        folder: scratch_folder(args.folder.folder.as_deref(), "spread")?,
        larder: program::larder()?,
        larderd: program::find("--larderd", "larderd", args.larderd.as_deref())?,
    };
    measure(&args.output, "reads", |steps| run_spread(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
