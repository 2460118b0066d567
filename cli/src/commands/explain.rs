//! `larder explain`

mod around;
mod job_view;
mod view;

use std::process::ExitCode;

use larder_controller_api::{Dataset, TrainingJob, explain, explain_job};

use crate::args::{ExplainArgs, ExplainDatasetArgs, ExplainJobArgs, Explained};
use crate::cluster::{Asked, Cluster, DATASET, JOB};
use crate::{output, source};

pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let runtime = source::runtime()?;
    match &args.what {
        Explained::Dataset(args) => runtime.block_on(dataset(args)),
        Explained::Job(args) => runtime.block_on(job(args)),
    }
}

async fn dataset(args: &ExplainDatasetArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::of(&args.cluster).await?;
    let asked = Asked::one("get", DATASET, &args.dataset.namespace, &args.dataset.name);
    let found: Dataset = cluster.get(&asked).await?;
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

async fn job(args: &ExplainJobArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::within(&args.cluster, &args.namespace).await?;
    let key = args.job.within(&cluster.namespace);
    let found: TrainingJob = cluster.get(&Asked::one("get", JOB, &key.namespace, &key.name)).await?;
    let explanation = explain_job(&found, &around::around(&cluster, &found).await?);
    let sentence = explanation.sentence(&key.to_string());
    if args.json {
        output::json(&serde_json::json!({
            "job": key.to_string(),
            "sentence": sentence,
            "explanation": explanation,
            "status": found.status,
        }))?;
    } else {
        output::text(&job_view::view(&sentence, &found))?;
    }
    Ok(ExitCode::SUCCESS)
}
