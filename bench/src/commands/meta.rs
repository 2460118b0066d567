//! `larder-bench meta`

use larder_bench::meta::{MetaConfig, run as run_meta};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::MetaArgs;
use larder::files::{require_root, scratch_folder};

pub(crate) fn run(args: &MetaArgs) -> anyhow::Result<()> {
    require_root("meta")?;
    raise_file_limit();
    let config = MetaConfig {
        files: args.files,
        synthetic: args.synthetic.iter().copied().filter(|&files| files > 0).collect(),
        rounds: args.systems.rounds.rounds,
        only: args.systems.only.clone(),
        seed: args.systems.seed,
        folder: scratch_folder(args.systems.folder.folder.as_deref(), "meta")?,
        binary: program::larder()?,
    };
    measure(&args.output, "systems", |steps| run_meta(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
