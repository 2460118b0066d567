//! `larder-bench import`

use larder_bench::imports::{ImportsConfig, run as run_imports};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use super::program;
use crate::args::ImportsArgs;
use larder::files::{require_root, scratch_folder};

pub(crate) fn run(args: &ImportsArgs) -> anyhow::Result<()> {
    require_root("import")?;
    raise_file_limit();
    let config = ImportsConfig {
        keys: args.keys,
        skip_one_call: args.skip_one_call,
        page_ms: args.page_ms,
        folder_entries: args.folder_entries,
        rounds: args.rounds.rounds,
        folder: scratch_folder(args.folder.folder.as_deref(), "imports")?,
        binary: program::larder()?,
    };
    measure(&args.output, "steps", |steps| run_imports(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
