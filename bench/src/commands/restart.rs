//! `larder-bench restart`

use larder_bench::restart::{RestartConfig, run as run_restart};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::RestartArgs;
use larder::files::{require_root, scratch_folder};

pub(crate) fn run(args: &RestartArgs) -> anyhow::Result<()> {
    require_root("restart")?;
    raise_file_limit();
    let config = RestartConfig {
        mounts: args.mounts,
        files: args.files,
        file_bytes: args.file_size,
        rounds: args.rounds.rounds,
        seed: args.seed.seed,
        folder: scratch_folder(args.folder.folder.as_deref(), "restart")?,
        programs: program::node(&args.node)?,
    };
    measure(&args.output, "restarts", |steps| run_restart(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
