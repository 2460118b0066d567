//! Determines the dataset's snapshot from the reports of import jobs, which list the origin or publish a manifest.
//!
//! Each manifest is also stored under its snapshot's id, so an earlier snapshot can become current again. Pods read the
//! current manifest, and only a job with the dataset's own credentials changes it.

use larder_api::dataset::SNAPSHOTS_MAX;
use larder_api::names::ROLE_IMPORT;
use larder_api::{ConditionKind, ImportedStatus, Reason, SnapshotStatus};
use serde::Deserialize;

use super::status_draft::{Draft, time};
use super::task::Task;
use super::{origin, pods, quota};
use crate::objects::{Job, Pod};
use crate::time::Seconds;
use crate::write::Change;
use larder_kube::kinds::Kind;

/// The delay before a failed import is retried.
const RETRY_SECONDS: i64 = 60;

/// How long the report of an ended job may take to arrive.
const REPORT_SECONDS: i64 = 10;

/// The last line of an import job's output: `larder import --report`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Outcome {
    snapshot: String,
    files: u64,
    bytes: u64,
    /// The manifest already existed.
    found: bool,
    /// The manifest was written to its location.
    published: bool,
    error: Option<Failure>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Failure {
    kind: String,
    message: String,
}

/// The progress of a job.
enum Progress {
    Ended(Outcome, Seconds),
    Fails(Reason, String),
    Runs(String),
    /// The job has ended. Its report is awaited until this time.
    Reports(Seconds),
}

pub(super) fn step(draft: &mut Draft<'_>) {
    if origin::is_folder(&draft.spec) {
        let message = "each node that mounts the directory lists it";
        draft.find(ConditionKind::Imported, true, Reason::ListedByNodes, message);
        return;
    }
    // Each iteration consumes one report. The next report may have arrived already.
    for _ in 0..3 {
        let Some((task, purpose)) = next_task(draft) else { break };
        match job_of(draft, &purpose) {
            None => {
                match quota::may_import(draft, draft.status.snapshots.is_empty()) {
                    Ok(()) => {
                        begin(draft, &task, &purpose);
                        report_running(draft, &task, Reason::Importing, "starting the import".to_owned());
                    }
                    Err(message) => report_running(draft, &task, Reason::QuotaExceeded, message),
                }
                return;
            }
            Some(Progress::Ended(outcome, at)) => consume(draft, &task, outcome, at),
            Some(Progress::Fails(reason, message)) => {
                report_failure(draft, &task, reason, message);
                return;
            }
            Some(Progress::Runs(message)) => {
                report_running(draft, &task, Reason::Importing, message);
                return;
            }
            Some(Progress::Reports(until)) => {
                draft.decision.again(until);
                let message = "the import has ended; waiting for its report".to_owned();
                report_running(draft, &task, Reason::Importing, message);
                return;
            }
        }
    }
    report_success(draft);
}

/// The next task for a job, and its purpose, from which the name of the job is derived.
fn next_task(draft: &mut Draft<'_>) -> Option<(Task, String)> {
    let fingerprint = origin::digest(&draft.spec);
    let has_moved = origin::has_moved(&draft.spec, &draft.status);
    let Some(newest) = draft.status.snapshots.first().cloned().filter(|_| !has_moved) else {
        return Some((Task::First, format!("first {fingerprint}")));
    };
    let listed = draft.status.snapshots.iter().filter_map(|snapshot| snapshot.listed.as_ref());
    let listed = listed.map(Seconds::of).max().unwrap_or(Seconds(draft.dataset.meta.created));
    let pinned = draft.spec.snapshot.map(|snapshot| snapshot.to_string());
    let target = pinned.unwrap_or(newest.id);
    let published = !draft.status.imported.as_ref().is_some_and(|imported| imported.by_nodes);
    if draft.status.snapshot.as_ref() != Some(&target) {
        if !published {
            // Nodes list the directory themselves, and pods read what the nodes find.
            draft.status.snapshot = Some(target);
        } else {
            // Each roll needs a job of its own: the job of an earlier roll to the same snapshot may still exist, and
            // has ended.
            let is_known = known(draft, &target);
            let known = draft.status.snapshots.iter().find(|known| known.id == target);
            let Seconds(listed) = known.and_then(|known| known.listed.as_ref()).map(Seconds::of).unwrap_or_default();
            let generation = draft.dataset.dataset.metadata.generation.unwrap_or_default();
            let purpose = format!("publish {target} {listed} {generation} {fingerprint}");
            if draft.status.snapshot.is_none() || !is_known || job_of(draft, &purpose).is_some() {
                return Some((Task::Publish(target), purpose));
            }
            draft.status.next = Some(target);
            draft.switch = Some(purpose);
        }
    } else {
        draft.status.next = None;
    }
    let refresh = i64::try_from(draft.spec.refresh?.as_secs()).unwrap_or(i64::MAX);
    let due = listed + refresh;
    if draft.view.now < due {
        draft.decision.again(due);
        return None;
    }
    let found = draft.status.imported.as_ref().is_some_and(|imported| imported.found);
    Some((Task::Again { found }, format!("again {} {fingerprint}", listed.0)))
}

/// Publishes the next snapshot once the nodes that this pass has chosen for it hold it, or if there is no room for
/// both. This runs after the placement, because the choice of an earlier pass may never have been written.
pub(super) fn switch(draft: &mut Draft<'_>) {
    let (Some(next), Some(purpose)) = (draft.status.next.clone(), draft.switch.take()) else { return };
    if super::warm::next_is_ready(draft, &next) && quota::may_import(draft, false).is_ok() {
        begin(draft, &Task::Publish(next), &purpose);
    }
}

fn job_of(draft: &Draft<'_>, purpose: &str) -> Option<Progress> {
    let name = pods::import_job_name(draft, purpose);
    let job = draft.view.jobs.iter().find(|job| job.meta.key.name == name)?;
    if job.meta.deleting {
        return Some(Progress::Runs("an earlier import is being deleted".to_owned()));
    }
    let pod = draft.view.job_pods.iter().filter(|pod| pod.is_of(job)).max_by_key(|pod| pod.meta.created);
    Some(progress(draft.view.now, job, pod.copied()))
}

fn progress(now: Seconds, job: &Job, pod: Option<&Pod>) -> Progress {
    let outcome: Option<Outcome> =
        pod.and_then(|pod| pod.terminated.as_ref()).and_then(|end| serde_json::from_str(end.message.trim()).ok());
    let log = format!("see `kubectl logs -n {} job/{}`", job.meta.key.namespace, job.meta.key.name);
    if let Some(end) = &job.end {
        return match outcome {
            Some(outcome) if !end.failed && outcome.error.is_none() && !outcome.snapshot.is_empty() => {
                Progress::Ended(outcome, end.at)
            }
            // Jobs and pods are watched separately, and the report comes from the pod.
            None if !end.failed && now < end.at + REPORT_SECONDS => Progress::Reports(end.at + REPORT_SECONDS),
            _ => Progress::Fails(Reason::ImportFailed, format!("the job ended without a result: {}; {log}", end.why)),
        };
    }
    if let Some(failure) = outcome.and_then(|outcome| outcome.error) {
        return Progress::Fails(reason_of(&failure.kind), format!("{}; retrying", failure.message));
    }
    match pod {
        None => Progress::Runs("waiting for the import pod".to_owned()),
        Some(Pod { terminated: Some(end), .. }) if end.exit_code != 0 => {
            let said = end.message.trim().lines().last().unwrap_or_default();
            let said = if said.is_empty() { &end.reason } else { said };
            Progress::Fails(Reason::ImportFailed, format!("{said}; {log}"))
        }
        Some(Pod { waiting: Some(waiting), .. }) if waiting.reason != "ContainerCreating" => Progress::Runs(
            format!("the import pod is waiting: {} {}", waiting.reason, waiting.message).trim().to_owned(),
        ),
        Some(pod) => {
            let minutes = (now - Seconds(pod.meta.created)).max(0) / 60;
            let since = if minutes > 0 { format!(" for {minutes} min") } else { String::new() };
            Progress::Runs(format!("the origin is being listed{since}; {log}"))
        }
    }
}

fn reason_of(kind: &str) -> Reason {
    match kind {
        "no-credentials" => Reason::SecretMissing,
        "not-found" => Reason::BucketMissing,
        "denied" => Reason::AccessDenied,
        "unavailable" => Reason::OriginUnreachable,
        _ => Reason::ImportFailed,
    }
}

fn begin(draft: &mut Draft<'_>, task: &Task, purpose: &str) {
    let (namespace, uid_jobs) = (draft.key().namespace.clone(), &draft.view.jobs);
    // An outdated job that keeps failing would be retried forever.
    let stale: Vec<_> = uid_jobs
        .iter()
        .filter(|job| job.role.role == ROLE_IMPORT && job.end.is_none() && !job.meta.deleting)
        .map(|job| (job.meta.key.name.clone(), job.meta.uid.clone()))
        .collect();
    for (name, uid) in stale {
        draft.write(Kind::Job, &namespace, &name, Change::Delete(uid));
    }
    let job = pods::import_job(draft, purpose, &pods::import_arguments(draft, task));
    let name = pods::import_job_name(draft, purpose);
    draft.write(Kind::Job, &namespace, &name, Change::Create(job));
}

fn consume(draft: &mut Draft<'_>, task: &Task, outcome: Outcome, at: Seconds) {
    let now = draft.view.now;
    let (has_moved, found) = (origin::has_moved(&draft.spec, &draft.status), is_anothers(draft, &outcome));
    let digest = origin::digest(&draft.spec);
    let status = &mut draft.status;
    // A listing gets a later time than all earlier ones, even if the clock has not advanced: the name of the next job
    // is derived from this time.
    let before = status.snapshots.iter().filter_map(|known| known.listed.as_ref()).map(Seconds::of).max();
    let at = (if at > Seconds(0) { at } else { now }).max(before.map_or(Seconds(0), |before| before + 1));
    let entry = SnapshotStatus {
        id: outcome.snapshot.clone(),
        files: outcome.files,
        bytes: outcome.bytes,
        listed: Some(time(at)),
    };
    if *task == Task::First {
        let by_nodes = !outcome.published && !outcome.found;
        status.imported = Some(ImportedStatus { from: digest, found, by_nodes });
        if has_moved {
            // The copies of the other manifests are at the previous location.
            status.snapshots.clear();
            (status.snapshot, status.next) = (None, None);
        }
    }
    match task {
        Task::First | Task::Again { .. } => {
            status.snapshots.retain(|snapshot| snapshot.id != entry.id);
            status.snapshots.insert(0, entry);
        }
        Task::Publish(_) => {
            if !status.snapshots.iter().any(|snapshot| snapshot.id == entry.id) {
                status.snapshots.push(entry);
            }
        }
    }
    let wanted = draft.spec.snapshot.is_none_or(|wanted| wanted.to_string() == outcome.snapshot);
    if matches!(task, Task::First) && wanted || matches!(task, Task::Publish(_)) {
        status.snapshot = Some(outcome.snapshot);
        status.next = None;
    }
    // Drops the oldest snapshots first, except the one that pods read.
    while status.snapshots.len() > SNAPSHOTS_MAX {
        let current = status.snapshot.clone();
        let Some(oldest) = status.snapshots.iter().rposition(|snapshot| Some(&snapshot.id) != current.as_ref()) else {
            break;
        };
        status.snapshots.remove(oldest);
    }
}

/// True if another owner maintains the manifest that a first import found. A manifest that this dataset's own import
/// published is not another owner's, even if it is now read with other credentials or from another server.
fn is_anothers(draft: &Draft<'_>, outcome: &Outcome) -> bool {
    let manifest = |digest: &str| digest.split('-').next().map(str::to_owned);
    let own = draft.status.imported.as_ref().filter(|before| !before.found);
    let is_own = own.is_some_and(|before| manifest(&before.from) == manifest(&origin::digest(&draft.spec)));
    outcome.found && !(is_own && known(draft, &outcome.snapshot))
}

/// Reports an import that runs, or that waits for the reason given.
fn report_running(draft: &mut Draft<'_>, task: &Task, reason: Reason, message: String) {
    match task {
        Task::Publish(target)
            if draft.spec.snapshot.is_some_and(|wanted| wanted.to_string() == *target) && !known(draft, target) =>
        {
            draft.find(ConditionKind::Imported, false, reason, message);
        }
        Task::First => {
            draft.decision.again(draft.view.now + 60);
            draft.find(ConditionKind::Imported, false, reason, message);
        }
        // The current snapshot is still served.
        Task::Publish(_) | Task::Again { .. } => report_success(draft),
    }
}

fn known(draft: &Draft<'_>, snapshot: &str) -> bool {
    draft.status.snapshots.iter().any(|known| known.id == snapshot)
}

fn report_failure(draft: &mut Draft<'_>, task: &Task, reason: Reason, message: String) {
    draft.decision.again(draft.view.now + RETRY_SECONDS);
    match task {
        Task::First => draft.find(ConditionKind::Imported, false, reason, message),
        Task::Publish(target) if !known(draft, target) => {
            let message = format!("spec.snapshot {target} is not one of the dataset's snapshots: {message}");
            draft.find(ConditionKind::Imported, false, Reason::SnapshotUnknown, message);
        }
        Task::Again { .. } | Task::Publish(_) => {
            report_success(draft);
            draft.find(ConditionKind::Degraded, true, Reason::RefreshFailed, message);
        }
    }
}

fn report_success(draft: &mut Draft<'_>) {
    let current = draft.status.snapshot.clone();
    let entry = draft.status.snapshots.iter().find(|snapshot| Some(&snapshot.id) == current.as_ref()).cloned();
    if let Some(entry) = entry {
        draft.status.files = Some(entry.files);
        draft.status.bytes = Some(entry.bytes);
    }
    let reason = match &draft.status.imported {
        Some(ImportedStatus { found: true, .. }) => Reason::Found,
        Some(ImportedStatus { by_nodes: true, .. }) => Reason::ListedByNodes,
        _ => Reason::Listed,
    };
    let files = draft.status.files.unwrap_or_default();
    let message = match reason {
        Reason::Found => format!("{files} files, from the manifest that was found at {}", draft.spec.manifest),
        Reason::ListedByNodes => format!(
            "{files} files; the credentials may not write {}, so each node lists the origin itself",
            draft.spec.manifest
        ),
        _ => format!("{files} files; the manifest is at {}", draft.spec.manifest),
    };
    draft.find(ConditionKind::Imported, true, reason, message);
}
