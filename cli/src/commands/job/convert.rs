//! `larder job convert`

use std::process::ExitCode;

use serde_json::json;

use super::manifest::{self, Manifest};
use crate::args::job::ConvertArgs;
use crate::output;

pub(super) fn run(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    let manifests = manifest::read(&args.files)?;
    if args.json {
        let shown = |found: &Manifest| json!({"job": found.value, "was": found.was, "warnings": found.warnings});
        output::json(&manifests.iter().map(shown).collect::<Vec<_>>())?;
    } else {
        manifests.iter().for_each(note);
        output::text(&manifest::yaml(manifests.iter().map(|found| &found.value))?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports on standard error what was converted, with the warnings.
pub(super) fn note(found: &Manifest) {
    let Manifest { from, was, warnings, .. } = found;
    match was {
        Some(was) => output::note(format_args!("{from}: converted a {was} to a TrainingJob")),
        None => output::note(format_args!("{from}: already a TrainingJob")),
    }
    for warning in warnings {
        output::note(format_args!("  {warning}"));
    }
}
