//! `larder-bench import`

use std::process::ExitCode;

use larder_bench::imports::{ImportsConfig, run as run_imports};
use larder_cachenode::process::raise_file_limit;

use super::program;
use super::steps::Steps;
use crate::args::ImportsArgs;
use larder::files::{check_folder, require_root, scratch_folder, write_json};
use larder::output;

pub(crate) fn run(args: &ImportsArgs) -> anyhow::Result<ExitCode> {
    require_root("import")?;
    check_folder("--json", args.json.as_deref())?;
    raise_file_limit();
    let config = ImportsConfig {
        keys: args.keys,
        skip_one_call: args.skip_one_call,
        page_ms: args.page_ms,
        folder_entries: args.folder_entries,
        rounds: args.rounds,
        folder: scratch_folder(args.folder.as_deref(), "imports")?,
        binary: program::larder()?,
    };
    let view = Steps::new("{msg:34} {bar:30} {pos}/{len} steps [{elapsed}, {eta} left]");
    let outcome = run_imports(&config, &view);
    view.finish();
    let outcome = outcome?;
    output::text(&outcome.table())?;
    write_json(args.json.as_deref(), &outcome)?;
    Ok(ExitCode::SUCCESS)
}
