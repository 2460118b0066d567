//! Copies the current snapshot to each mirror that is kept. A copy is one Job, whose report is that of
//! `larder sync --report`. Objects that an earlier copy has left in the mirror are not copied again.

use larder_api::names::ROLE_SYNC;
use larder_api::{ConditionKind, MirrorStatus, Reason};
use larder_dataset::mirrors::MirrorSpec;
use larder_kube::kinds::Kind;
use larder_kube::short_hash::short_hash;
use serde::Deserialize;

use super::status_draft::{Draft, time};
use super::{origin, pods};
use crate::objects::{Job, Pod};
use crate::time::Seconds;
use crate::write::Change;

/// How long the report of an ended job may take to arrive.
const REPORT_SECONDS: i64 = 10;

/// The report of a copy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Outcome {
    /// The bytes of the snapshot, and those of them that the mirror has.
    bytes: u64,
    bytes_there: u64,
    complete: bool,
    error: Option<Failure>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Failure {
    message: String,
}

/// The progress of a copy.
enum Progress {
    Ended(Seconds),
    /// With the contents of the mirror, if there is a report.
    Fails(String, Option<Outcome>),
    Runs,
    /// The job has ended. Its report is awaited until this time.
    Reports(Seconds),
}

pub(super) fn step(draft: &mut Draft<'_>) {
    let kept: Vec<MirrorSpec> =
        draft.spec.mirrors.iter().filter(|mirror| draft.spec.kept_mirrors.contains(&mirror.name)).cloned().collect();
    draft.status.mirrors.retain(|status| kept.iter().any(|mirror| mirror.name == status.name));
    let mut wanted = Vec::new();
    if let Some(snapshot) = current(draft) {
        for mirror in &kept {
            wanted.extend(keep(draft, mirror, &snapshot));
        }
    }
    drop_others(draft, &wanted);
}

/// The snapshot that mirrors should have: the one that pods read, if its manifest is in the origin.
fn current(draft: &Draft<'_>) -> Option<String> {
    let is_published = draft.status.imported.as_ref().is_some_and(|imported| !imported.by_nodes);
    if !is_published || origin::is_folder(&draft.spec) || origin::has_moved(&draft.spec, &draft.status) {
        return None;
    }
    draft.status.snapshot.clone()
}

/// Copies the snapshot to a mirror that does not have it. Returns the name of the Job.
fn keep(draft: &mut Draft<'_>, mirror: &MirrorSpec, snapshot: &str) -> Option<String> {
    let known = draft.status.mirrors.iter().position(|status| status.name == mirror.name);
    let nth = known.unwrap_or_else(|| {
        draft.status.mirrors.push(MirrorStatus { name: mirror.name.clone(), ..MirrorStatus::default() });
        draft.status.mirrors.len() - 1
    });
    let of = fingerprint(draft, mirror);
    let is_same_place = draft.status.mirrors[nth].of.as_deref() == Some(of.as_str());
    if !is_same_place {
        // Nothing is known of what another place has.
        let fresh = MirrorStatus { name: mirror.name.clone(), of: Some(of.clone()), ..MirrorStatus::default() };
        draft.status.mirrors[nth] = fresh;
    }
    if draft.status.mirrors[nth].snapshot.as_deref() == Some(snapshot) {
        return None;
    }
    let purpose = format!("sync {} {snapshot} {of}", mirror.name);
    let name = pods::sync_job_name(draft, &purpose);
    match draft.view.jobs.iter().find(|job| job.meta.key.name == name) {
        None => begin(draft, mirror, snapshot, &purpose, &name, nth),
        Some(job) if job.meta.deleting => {}
        Some(job) => {
            let pod = draft.view.job_pods.iter().filter(|pod| pod.is_of(job)).max_by_key(|pod| pod.meta.created);
            let progress = progress(draft.view.now, job, pod.copied());
            note(draft, snapshot, nth, progress);
        }
    }
    Some(name)
}

/// A digest of where a mirror is. The keys are not part of it, because they do not change what is there.
fn fingerprint(draft: &Draft<'_>, mirror: &MirrorSpec) -> String {
    let dataset = &draft.spec.dataset;
    // A mirror may be on the dataset's server, and the region goes with it.
    let endpoint = mirror.endpoint.as_deref().or(dataset.endpoint.as_deref()).unwrap_or_default();
    let region = mirror.region.as_deref().or(dataset.region.as_deref()).unwrap_or_default();
    short_hash(&[&mirror.source, endpoint, region])
}

fn begin(draft: &mut Draft<'_>, mirror: &MirrorSpec, snapshot: &str, purpose: &str, name: &str, nth: usize) {
    let bytes = draft.status.snapshots.iter().find(|known| known.id == snapshot).map(|known| known.bytes);
    let status = &mut draft.status.mirrors[nth];
    // The first report says how much of it the mirror has.
    (status.percent, status.behind_bytes) = (0, bytes.unwrap_or_default());
    let namespace = draft.key().namespace.clone();
    let job = pods::sync_job(draft, purpose, pods::sync_arguments(draft, mirror, snapshot));
    draft.write(Kind::Job, &namespace, name, Change::Create(job));
}

fn progress(now: Seconds, job: &Job, pod: Option<&Pod>) -> Progress {
    let terminated = pod.and_then(|pod| pod.terminated.as_ref());
    let outcome: Option<Outcome> = terminated.and_then(|end| serde_json::from_str(end.message.trim()).ok());
    let log = format!("see `kubectl logs -n {} job/{}`", job.meta.key.namespace, job.meta.key.name);
    if let Some(end) = &job.end {
        return match outcome {
            Some(outcome) if !end.failed && outcome.complete && outcome.error.is_none() => {
                Progress::Ended(if end.at > Seconds(0) { end.at } else { now })
            }
            // Jobs and pods are watched separately, and the report comes from the pod.
            None if !end.failed && now < end.at + REPORT_SECONDS => Progress::Reports(end.at + REPORT_SECONDS),
            _ => Progress::Fails(format!("the job ended without a result: {}; {log}", end.why), None),
        };
    }
    if let Some(failure) = outcome.as_ref().and_then(|outcome| outcome.error.clone()) {
        return Progress::Fails(format!("{}; retrying", failure.message), outcome);
    }
    match terminated {
        Some(end) if end.exit_code != 0 => {
            let said = end.message.trim().lines().last().unwrap_or_default();
            let said = if said.is_empty() { &end.reason } else { said };
            Progress::Fails(format!("{said}; {log}"), None)
        }
        _ => Progress::Runs,
    }
}

fn note(draft: &mut Draft<'_>, snapshot: &str, nth: usize, progress: Progress) {
    let status = &mut draft.status.mirrors[nth];
    match progress {
        Progress::Ended(at) => {
            (status.snapshot, status.copied, status.error) = (Some(snapshot.to_owned()), Some(time(at)), None);
            (status.percent, status.behind_bytes) = (100, 0);
        }
        Progress::Fails(error, outcome) => {
            if let Some(Outcome { bytes: bytes @ 1.., bytes_there, .. }) = outcome {
                status.behind_bytes = bytes.saturating_sub(bytes_there);
                // 100 means that the mirror's manifest is written too.
                status.percent = (bytes_there.saturating_mul(100) / bytes).min(99) as u32;
            }
            let message = format!("the mirror {} does not have snapshot {snapshot}: {error}", status.name);
            status.error = Some(error);
            degrade(draft, message);
        }
        Progress::Runs => {
            // The condition would come and go with each try of a copy that fails.
            if let Some(error) = &status.error {
                let message = format!("the mirror {} is behind: {error}", status.name);
                degrade(draft, message);
            }
        }
        Progress::Reports(until) => draft.decision.again(until),
    }
}

fn degrade(draft: &mut Draft<'_>, message: String) {
    if draft.found(ConditionKind::Degraded).is_none() {
        draft.find(ConditionKind::Degraded, true, Reason::MirrorBehind, message);
    }
}

/// Deletes the running copies of other snapshots, and to mirrors that are no longer kept.
fn drop_others(draft: &mut Draft<'_>, wanted: &[String]) {
    let namespace = draft.key().namespace.clone();
    let stale: Vec<_> = draft
        .view
        .jobs
        .iter()
        .filter(|job| job.role.role == ROLE_SYNC && job.end.is_none() && !job.meta.deleting)
        .filter(|job| !wanted.contains(&job.meta.key.name))
        .map(|job| (job.meta.key.name.clone(), job.meta.uid.clone()))
        .collect();
    for (name, uid) in stale {
        draft.write(Kind::Job, &namespace, &name, Change::Delete(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{JobEnd, Terminated};

    fn said(message: &str, exit_code: i32) -> Pod {
        let terminated = Terminated { exit_code, reason: "Error".into(), message: message.into() };
        Pod { terminated: Some(terminated), ..Pod::default() }
    }

    #[test]
    fn only_a_complete_copy_counts() {
        let job = |failed: bool| {
            let end = JobEnd { failed, at: Seconds(100), why: "it ended".into() };
            Job { end: Some(end), ..Job::default() }
        };
        let complete = said(r#"{"bytes":5,"bytes_there":5,"complete":true}"#, 0);
        let ends = |now: i64, job: &Job, pod: Option<&Pod>| progress(Seconds(now), job, pod);
        assert!(matches!(ends(101, &job(false), Some(&complete)), Progress::Ended(Seconds(100))));
        assert!(matches!(ends(101, &job(true), Some(&complete)), Progress::Fails(..)));
        let part = said(r#"{"bytes":5,"bytes_there":5}"#, 0);
        assert!(matches!(ends(101, &job(false), Some(&part)), Progress::Fails(..)));
        // The report may come after the end of the job.
        assert!(matches!(ends(101, &job(false), None), Progress::Reports(Seconds(110))));
        assert!(matches!(ends(110, &job(false), None), Progress::Fails(..)));
        let running = Job::default();
        assert!(matches!(ends(101, &running, Some(&complete)), Progress::Runs));
        assert!(matches!(ends(101, &running, None), Progress::Runs));
        let Progress::Fails(words, None) = ends(101, &running, Some(&said("killed by\nthe kernel", 137))) else {
            panic!()
        };
        assert!(words.starts_with("the kernel; see `kubectl logs"), "{words}");
        let failed = said(r#"{"bytes":8,"bytes_there":2,"error":{"kind":"denied","message":"no"}}"#, 1);
        let Progress::Fails(words, Some(outcome)) = ends(101, &running, Some(&failed)) else { panic!() };
        assert_eq!((&*words, outcome.bytes_there), ("no; retrying", 2));
    }
}
