//! The frame of every benchmark: progress while it runs, then the table and the file of `--json`.

use larder::files::{check_folder, write_json};
use larder::output;
use serde::Serialize;

use super::steps::Steps;
use crate::args::OutputArgs;

/// Runs a benchmark that reports its progress in `unit`s. Prints its outcome, writes it to `--json`, and returns it.
pub(super) fn measure<T: Serialize>(
    output: &OutputArgs,
    unit: &str,
    run: impl FnOnce(&Steps) -> anyhow::Result<T>,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<T> {
    // A typo in --json must not cost an hour of measuring.
    check_folder("--json", output.json.as_deref())?;
    let steps = Steps::new(unit);
    let outcome = run(&steps);
    // Removes the progress bar first, so that an error does not end up in its line.
    steps.finish();
    let outcome = outcome?;
    output::text(&table(&outcome))?;
    write_json(output.json.as_deref(), &outcome)?;
    Ok(outcome)
}
