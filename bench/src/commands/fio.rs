//! `larder-bench fio`

use std::process::ExitCode;

use larder_bench::fio::{FioConfig, run as run_fio};
use larder_cachenode::process::raise_file_limit;

use super::program;
use super::steps::Steps;
use crate::args::FioArgs;
use larder::files::{check_folder, require_root, scratch_folder, write_json};
use larder::output;

pub(crate) fn run(args: &FioArgs) -> anyhow::Result<ExitCode> {
    require_root("fio")?;
    check_folder("--json", args.json.as_deref())?;
    raise_file_limit();
    let config = FioConfig {
        size: args.size,
        files: args.files,
        seconds: args.seconds,
        rounds: args.rounds,
        only: args.only.clone(),
        seed: args.seed,
        folder: scratch_folder(args.folder.as_deref(), "fio")?,
        binary: program::larder()?,
    };
    let view = Steps::new("{msg:34} {bar:30} {pos}/{len} runs [{elapsed}, {eta} left]");
    let outcome = run_fio(&config, &view);
    view.finish();
    let outcome = outcome?;
    output::text(&outcome.table())?;
    write_json(args.json.as_deref(), &outcome)?;
    Ok(ExitCode::SUCCESS)
}
