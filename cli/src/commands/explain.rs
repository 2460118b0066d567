//! `larder explain`

mod around;
mod job_view;
mod mount;
mod owners;
mod pod;
mod view;

use std::process::ExitCode;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use larder_api::{Dataset, TrainingJob, explain, explain_job};
use larder_dataset::Chain;

use crate::args::cluster::ObjectKey;
use crate::args::{ExplainArgs, ExplainDatasetArgs, ExplainJobArgs, ExplainPodArgs, Explained};
use crate::cluster::{Asked, Cluster, DATASET, JOB, POD, typed};
use crate::extender::Told;
use crate::extender::decision::{ServedDecision, read};
use crate::pod_mounts::PodMount;
use crate::{extender, output, pod_mounts, source};
use pod::{Placed, Story};

pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        None => mount::run(&args.mount),
        Some(Explained::Dataset(args)) => source::runtime()?.block_on(dataset(args)),
        Some(Explained::Job(args)) => source::runtime()?.block_on(job(args)),
        Some(Explained::Pod(args)) => source::runtime()?.block_on(pod(args)),
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

async fn pod(args: &ExplainPodArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::within(&args.cluster, &args.namespace).await?;
    let key = args.pod.within(&cluster.namespace);
    let found = existing(&cluster, &key).await?;
    let (belongs, unread) = match &found {
        Some(pod) => owners::of(&cluster, &key.namespace, &pod.metadata).await,
        None => Default::default(),
    };
    for note in unread {
        output::note(format_args!("{note}"));
    }
    let found = found.map(Placed::from);
    let mounts = mounts(&cluster, found.as_ref()).await;
    let told = match &args.extender {
        Some(url) => extender::at(url, &key).await,
        None => extender::of(&cluster, &key).await,
    };
    let told = match told {
        // The mounts say something, too.
        Err(error) if !mounts.is_empty() => {
            let note = format!("its placement is not explained: {}", Chain(&*error));
            Told { notes: vec![note], ..Told::default() }
        }
        told => told?,
    };
    for note in &told.notes {
        output::note(format_args!("{note}"));
    }
    let decisions: Vec<ServedDecision> = told.decisions.iter().map(read).collect::<Result<_, _>>()?;
    let key = key.to_string();
    if found.is_none() && decisions.is_empty() {
        let namespace = key.split('/').next().unwrap_or_default();
        anyhow::bail!(
            "there is no Pod {key}, and no decision about it: `{}` lists those of its namespace",
            cluster.command(&format!("kubectl get pods -n {namespace}"))
        );
    }
    let story = Story::new(&key, found.as_ref(), &decisions);
    let asked_at = args.extender.as_ref().map(ToString::to_string);
    let sentence = pod::sentence::sentence(&story, asked_at.as_deref());
    if args.json {
        output::json(&serde_json::json!({
            "pod": key,
            "sentence": sentence,
            "node": story.chosen(),
            "owners": belongs.owners,
            "workload": belongs.workload,
            "mounts": mounts,
            "decisions": told.decisions,
        }))?;
    } else {
        output::text(&(pod::view::view(&sentence, &story, args.all) + &belongs.lines()))?;
        for mount in &mounts {
            output::line(format_args!("{}", output::one_line(&mount.sentence)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Why a pod waits for its mounts. None if they cannot be explained; a note says why.
async fn mounts(cluster: &Cluster, pod: Option<&Placed>) -> Vec<PodMount> {
    let Some(pod) = pod.filter(|pod| pod.may_read) else { return Vec::new() };
    let (Some(node), Some(uid)) = (&pod.node, &pod.uid) else { return Vec::new() };
    pod_mounts::of(cluster, node, uid).await.unwrap_or_else(|error| {
        output::note(format_args!("its mounts are not explained: {}", Chain(&*error)));
        Vec::new()
    })
}

/// A pod; `None` if it does not exist. Errors: the user may not read it, or the cluster cannot be reached.
async fn existing(cluster: &Cluster, key: &ObjectKey) -> anyhow::Result<Option<Pod>> {
    let asked = Asked::one("get", POD, &key.namespace, &key.name);
    let got = cluster.api(POD, Some(&key.namespace)).get_opt(&key.name).await;
    let Some(object) = got.map_err(|error| cluster.in_words(error, &asked))? else { return Ok(None) };
    typed(object).map(Some).with_context(|| format!("{key} cannot be read"))
}
