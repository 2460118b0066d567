//! `larder job cancel` and `larder job resume`

use std::process::ExitCode;

use anyhow::bail;
use larder_api::{Phase, TrainingJob};
use larder_kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;

use super::follow;
use crate::args::cluster::ObjectKey;
use crate::args::job::{CancelArgs, ResumeArgs};
use crate::cluster::{Asked, Cluster, JOB, MANAGER, typed};
use crate::output;

pub(super) async fn run(args: &CancelArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::within(&args.cluster, &args.namespace).await?;
    let mut records = Vec::new();
    let mut all_went_well = true;
    for name in &args.jobs {
        let key = name.within(&cluster.namespace);
        let cancelled = if args.suspend {
            suspend(&cluster, &key, true).await.map(|job| (job, "suspended"))
        } else {
            delete(&cluster, &key).await.map(|job| (job, "cancelled"))
        };
        match cancelled {
            Ok((job, what)) => {
                if !args.json {
                    let phase = phase(&job).map_or("not begun".to_owned(), |phase| format!("{phase:?}"));
                    output::line(format_args!("{key} {what}; it was {phase}"))?;
                }
                records.push((key, job));
            }
            Err(error) => {
                all_went_well = false;
                output::error(&error);
            }
        }
    }
    // Printed before the wait, because the wait may fail and the deleted jobs cannot be read afterwards.
    if args.json {
        output::json(&records.iter().map(|(_, job)| job).collect::<Vec<_>>())?;
    }
    if args.wait {
        for (key, job) in &records {
            if let Err(error) = wait(&cluster, key, job, args.suspend).await {
                all_went_well = false;
                output::error(&error);
            }
        }
    }
    Ok(if all_went_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) async fn resume(args: &ResumeArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::within(&args.cluster, &args.namespace).await?;
    let mut all_went_well = true;
    for name in &args.jobs {
        let key = name.within(&cluster.namespace);
        match suspend(&cluster, &key, false).await {
            Ok(_) => output::line(format_args!("{key} is resumed and waits for room"))?,
            Err(error) => {
                all_went_well = false;
                output::error(&error);
            }
        }
    }
    Ok(if all_went_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits until a job is deleted, or, if it was suspended, until none of its pods run.
async fn wait(cluster: &Cluster, key: &ObjectKey, job: &TrainingJob, suspended: bool) -> anyhow::Result<()> {
    let uid = follow::uid(key, job)?;
    let is_done = |job: &TrainingJob| {
        let is_active = job.status.iter().flat_map(|status| &status.roles).any(|role| role.active > 0);
        let stands = phase(job).is_some_and(|phase| phase == Phase::Suspended || phase.is_terminal());
        suspended && stands && !is_active
    };
    follow::until(cluster, key, Some(uid), is_done).await?;
    Ok(())
}

fn phase(job: &TrainingJob) -> Option<Phase> {
    job.status.as_ref()?.phase
}

/// Deletes a job, but not a newer job of the same name. Returns the job as it was.
async fn delete(cluster: &Cluster, key: &ObjectKey) -> anyhow::Result<TrainingJob> {
    let job: TrainingJob = cluster.get(&Asked::one("get", JOB, &key.namespace, &key.name)).await?;
    let preconditions = Preconditions { uid: Some(follow::uid(key, &job)?.to_owned()), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::foreground() };
    match cluster.api(JOB, Some(&key.namespace)).delete(&key.name, &params).await {
        // Another client has deleted it in between.
        Err(larder_kube::Error::Api(status)) if status.code == 404 => Ok(job),
        Err(error) => Err(cluster.in_words(error, &Asked::one("delete", JOB, &key.namespace, &key.name))),
        Ok(_) => Ok(job),
    }
}

/// Sets `spec.suspend`. Errors: the job has ended.
async fn suspend(cluster: &Cluster, key: &ObjectKey, suspend: bool) -> anyhow::Result<TrainingJob> {
    let job: TrainingJob = cluster.get(&Asked::one("get", JOB, &key.namespace, &key.name)).await?;
    has_not_ended(key, &job, suspend)?;
    let asked = Asked::one("patch", JOB, &key.namespace, &key.name);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
    let patched = cluster.api(JOB, Some(&key.namespace)).patch(&key.name, &params, &patch).await;
    let patched = patched.and_then(|object| typed(object).map_err(larder_kube::Error::SerdeError));
    let job: TrainingJob = patched.map_err(|error| cluster.in_words(error, &asked))?;
    has_not_ended(key, &job, suspend)?;
    Ok(job)
}

fn has_not_ended(key: &ObjectKey, job: &TrainingJob, suspend: bool) -> anyhow::Result<()> {
    if let Some(phase) = phase(job).filter(|phase| phase.is_terminal()) {
        bail!("{key} has ended ({phase:?}): there is nothing to {}", if suspend { "suspend" } else { "resume" });
    }
    Ok(())
}
