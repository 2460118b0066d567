//! `larder-bench meta`

use std::process::ExitCode;

use larder_bench::meta::{MetaConfig, run as run_meta};
use larder_cachenode::process::raise_file_limit;

use super::program;
use super::steps::Steps;
use crate::args::MetaArgs;
use larder::files::{check_folder, require_root, scratch_folder, write_json};
use larder::output;

pub(crate) fn run(args: &MetaArgs) -> anyhow::Result<ExitCode> {
    require_root("meta")?;
    check_folder("--json", args.json.as_deref())?;
    raise_file_limit();
    let config = MetaConfig {
        files: args.files,
        synthetic: args.synthetic.iter().copied().filter(|&files| files > 0).collect(),
        rounds: args.rounds,
        only: args.only.clone(),
        seed: args.seed,
        folder: scratch_folder(args.folder.as_deref(), "meta")?,
        binary: program::larder()?,
    };
    let view = Steps::new("{msg:34} {bar:30} {pos}/{len} systems [{elapsed}, {eta} left]");
    let outcome = run_meta(&config, &view);
    view.finish();
    let outcome = outcome?;
    output::text(&outcome.table())?;
    write_json(args.json.as_deref(), &outcome)?;
    Ok(ExitCode::SUCCESS)
}
