//! `larder explain`

mod cluster;
mod view;

use std::process::ExitCode;

use larder_controller_api::explain;

use crate::args::{ExplainArgs, ExplainDatasetArgs, Explained};
use crate::{output, source};

pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        Explained::Dataset(args) => dataset(args),
    }
}

fn dataset(args: &ExplainDatasetArgs) -> anyhow::Result<ExitCode> {
    let found = source::runtime()?.block_on(cluster::dataset(args))?;
    let explanation = explain(&found);
    let key = args.dataset.to_string();
    if args.json {
        output::json(&serde_json::json!({
            "dataset": key,
            "sentence": explanation.sentence(&key),
            "explanation": explanation,
            "status": found.status,
        }))?;
    } else {
        output::text(&view::view(&key, &found, &explanation))?;
    }
    Ok(ExitCode::SUCCESS)
}
