//! `larder job submit`
//!
//! Jobs are applied, not created, so that repeating a submission whose response was lost changes nothing.

use std::process::ExitCode;

use anyhow::{Context, bail};
use futures::StreamExt;
use larder_api::explain::job::Around;
use larder_api::{Phase, TrainingJob, explain_job};
use larder_kube::api::{DynamicObject, Patch, PatchParams, ValidationDirective};
use serde_json::{Value, json};

use super::manifest::{self, Manifest};
use super::{convert, follow, quick};
use crate::args::cluster::ObjectKey;
use crate::args::job::SubmitArgs;
use crate::cluster::{Asked, Cluster, JOB, MANAGER, typed};
use crate::output;

/// The most jobs that are followed at the same time.
const FOLLOWED: usize = 16;

pub(super) async fn run(args: &SubmitArgs) -> anyhow::Result<ExitCode> {
    let mut manifests = match quick::job(&args.quick) {
        Some(value) => vec![of_flags(value)?],
        None => manifest::read(&args.files)?,
    };
    let cluster = Cluster::within(&args.cluster, &args.namespace).await?;
    let given = args.namespace.namespace.as_deref();
    let keys: anyhow::Result<Vec<ObjectKey>> =
        manifests.iter_mut().map(|found| place(found, given, &cluster.namespace)).collect();
    let keys = keys?;
    // All jobs are validated before the first is sent.
    for found in &manifests {
        found.job.check().with_context(|| found.from.clone())?;
        if found.was.is_some() {
            convert::note(found);
        }
    }
    let mut submitted = Vec::new();
    let mut all_went_well = true;
    for (found, key) in manifests.iter().zip(&keys) {
        match apply(&cluster, found, key, args.dry_run).await {
            Ok(job) => submitted.push((key.clone(), job)),
            Err(error) => {
                all_went_well = false;
                output::error(&error);
            }
        }
    }
    if args.dry_run {
        show_dry(args, &manifests, all_went_well)?;
    } else if args.wait {
        all_went_well &= wait(args, &cluster, submitted).await?;
    } else {
        show(args, &submitted)?;
    }
    Ok(if all_went_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn of_flags(value: Value) -> anyhow::Result<Manifest> {
    let job = serde_json::from_value(value.clone()).context("the flags")?;
    Ok(Manifest { from: "the flags".to_owned(), value, job, was: None, warnings: Vec::new() })
}

/// Sets a job's namespace: from its manifest, from `--namespace`, or from the context, in this order.
pub(super) fn place(found: &mut Manifest, given: Option<&str>, default: &str) -> anyhow::Result<ObjectKey> {
    let own = found.job.metadata.namespace.clone();
    if let (Some(own), Some(given)) = (&own, given)
        && own != given
    {
        bail!("{}: metadata.namespace is {own} but --namespace is {given}: omit one of them", found.from);
    }
    let namespace = own.unwrap_or_else(|| given.unwrap_or(default).to_owned());
    found.value["metadata"]["namespace"] = json!(namespace);
    found.job.metadata.namespace = Some(namespace.clone());
    Ok(ObjectKey { namespace, name: found.job.metadata.name.clone().unwrap_or_default() })
}

/// Applies a job if the cluster accepts it in a dry run. The dry run comes first so that a rejected job changes
/// nothing.
async fn apply(cluster: &Cluster, found: &Manifest, key: &ObjectKey, dry_run: bool) -> anyhow::Result<TrainingJob> {
    let (tried, mut params) = try_out(cluster, found, key).await?;
    let mut job = decoded(cluster, found, key, Ok(tried))?;
    if !dry_run {
        startable(cluster, key, &job)?;
        params.dry_run = false;
        job = decoded(cluster, found, key, patch(cluster, found, key, &params).await)?;
    }
    startable(cluster, key, &job)?;
    Ok(job)
}

/// Applies a job in a dry run. Returns the object as it would be, and the parameters with which the cluster accepts it.
pub(super) async fn try_out(
    cluster: &Cluster,
    found: &Manifest,
    key: &ObjectKey,
) -> anyhow::Result<(DynamicObject, PatchParams)> {
    let mut params = PatchParams {
        dry_run: true,
        field_manager: Some(MANAGER.to_owned()),
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::default()
    };
    let mut tried = patch(cluster, found, key, &params).await;
    if tried.as_ref().is_err_and(is_with_larder_alone) {
        params.force = true;
        tried = patch(cluster, found, key, &params).await;
    }
    Ok((in_words(cluster, found, key, tried)?, params))
}

async fn patch(
    cluster: &Cluster,
    found: &Manifest,
    key: &ObjectKey,
    params: &PatchParams,
) -> Result<DynamicObject, larder_kube::Error> {
    cluster.api(JOB, Some(&key.namespace)).patch(&key.name, params, &Patch::Apply(&found.value)).await
}

fn in_words<T>(
    cluster: &Cluster,
    found: &Manifest,
    key: &ObjectKey,
    answer: Result<T, larder_kube::Error>,
) -> anyhow::Result<T> {
    let asked = Asked::one("patch", JOB, &key.namespace, &key.name);
    answer.map_err(|error| cluster.in_words(error, &asked)).with_context(|| found.from.clone())
}

fn decoded(
    cluster: &Cluster,
    found: &Manifest,
    key: &ObjectKey,
    answer: Result<DynamicObject, larder_kube::Error>,
) -> anyhow::Result<TrainingJob> {
    let job = answer.and_then(|object| typed(object).map_err(larder_kube::Error::SerdeError));
    in_words(cluster, found, key, job)
}

/// Whether all conflicting fields were set by this program: `larder job cancel --suspend` and `resume` set a field.
fn is_with_larder_alone(error: &larder_kube::Error) -> bool {
    let larder_kube::Error::Api(status) = error else { return false };
    let causes = status.details.as_ref().map(|details| &details.causes[..]).unwrap_or_default();
    let by_larder = format!("conflict with \"{MANAGER}\"");
    status.code == 409 && !causes.is_empty() && causes.iter().all(|cause| cause.message.starts_with(&by_larder))
}

/// Fails if a job of this name exists that has ended or is being deleted, because it would not start again.
fn startable(cluster: &Cluster, key: &ObjectKey, job: &TrainingJob) -> anyhow::Result<()> {
    let cancel = || cluster.command(&format!("larder job cancel {key} --wait"));
    if job.metadata.deletion_timestamp.is_some() {
        bail!("{key} is being deleted: submit it again once it is gone (`{}`)", cancel());
    }
    if let Some(phase) = phase(job).filter(|phase| phase.is_terminal()) {
        bail!("{key} has ended before ({phase:?}) and does not start again: `{}`, or give it another name", cancel());
    }
    Ok(())
}

fn phase(job: &TrainingJob) -> Option<Phase> {
    job.status.as_ref()?.phase
}

fn show_dry(args: &SubmitArgs, manifests: &[Manifest], all_went_well: bool) -> anyhow::Result<()> {
    let values = manifests.iter().map(|found| &found.value);
    if args.json {
        output::json(&values.collect::<Vec<_>>())?;
    } else {
        output::text(&manifest::yaml(values)?)?;
    }
    if all_went_well {
        output::note(format_args!("the cluster accepts the job; nothing was submitted (--dry-run)"));
    }
    Ok(())
}

fn show(args: &SubmitArgs, submitted: &[(ObjectKey, TrainingJob)]) -> anyhow::Result<()> {
    if args.json {
        return output::json(&submitted.iter().map(|(key, job)| as_json(key, job)).collect::<Vec<_>>());
    }
    for (key, job) in submitted {
        match phase(job) {
            None => output::line(format_args!("{key} submitted"))?,
            Some(phase) => output::line(format_args!("{key} already existed, and is {phase:?}"))?,
        }
    }
    Ok(())
}

fn as_json(key: &ObjectKey, job: &TrainingJob) -> Value {
    json!({"job": key.to_string(), "uid": job.metadata.uid, "phase": phase(job), "status": job.status})
}

/// Follows jobs to their end. Returns whether all have succeeded.
async fn wait(args: &SubmitArgs, cluster: &Cluster, submitted: Vec<(ObjectKey, TrainingJob)>) -> anyhow::Result<bool> {
    let followed = futures::stream::iter(submitted).map(|(key, job)| async move {
        let ended = follow::to_its_end(cluster, &key, &job).await;
        (key, ended)
    });
    let mut followed = followed.buffer_unordered(FOLLOWED);
    let (mut all_went_well, mut ended) = (true, Vec::new());
    while let Some((key, job)) = followed.next().await {
        match job {
            Ok(job) => {
                all_went_well &= phase(&job) == Some(Phase::Succeeded);
                if args.json {
                    ended.push(as_json(&key, &job));
                } else {
                    let sentence = explain_job(&job, &Around::default()).sentence(&key.to_string());
                    output::line(format_args!("{sentence}"))?;
                }
            }
            Err(error) => {
                all_went_well = false;
                output::error(&error);
            }
        }
    }
    if args.json {
        output::json(&ended)?;
    }
    Ok(all_went_well)
}
