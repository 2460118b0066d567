//! A Workload that MultiKueue has made in this cluster for its copy of a job.
//!
//! It is a copy, too, and Kueue may have admitted it before the job is there. MultiKueue deletes both if the spec of the
//! Workload differs from the one in its home, so larder-controller makes itself the owner and changes nothing else. The
//! quota in it is for the pods of the home's JobType. Pods that would use other quota are not created. The job says
//! why, and a minute later its Workload is finished, unless pods of the job still run. Kueue's own integrations finish
//! such a Workload at once (`ensurePrebuiltWorkloadInSync`).

use k8s_openapi::api::core::v1::Pod;
use larder_api::quantity::words::show;
use larder_api::training_job::checked::CheckedJob;
use larder_kube::kinds::{Kind, KueueKind, KueueVersion};
use larder_kube::pod::requests::requests;
use serde_json::json;

use crate::jobs::render::owner;
use crate::kueue::workload::{JOB_UID_LABEL, JobWorkload};
use crate::write::{Change, Write};

/// The reason of a finished Workload that is for other pods than its job has. MultiKueue then deletes both, and queues
/// the job in its home again.
pub(super) const OUT_OF_SYNC: &str = "OutOfSync";

/// How long the status of the job has said why before the Workload is finished. MultiKueue copies the status to the
/// home in that time, and not afterwards. It may then choose this cluster again, so the time also limits how often.
pub(super) const SAYS_SECONDS: i64 = 60;

/// The write by which the job with this name and uid becomes the owner of a Workload, as Kueue's own integrations do it.
/// If the Workload has changed, the write fails.
pub(super) fn take_over(workload: &JobWorkload, (name, uid): (&str, &str), version: KueueVersion) -> Option<Write> {
    if workload.meta.deleting {
        return None;
    }
    let key = &workload.meta.key;
    let metadata = json!({
        "resourceVersion": workload.meta.version.to_string(),
        "labels": {JOB_UID_LABEL: uid},
        "ownerReferences": [owner(name, uid)],
    });
    let kind = Kind::Kueue(KueueKind::Workload, version);
    Some(Write::new(kind, &key.namespace, &key.name, Change::Merge(json!({"metadata": metadata}))))
}

/// Why a Workload is not one for these pods: one per role, in the order of the roles. `None`: it is.
pub(super) fn difference(workload: &JobWorkload, job: &CheckedJob, pods: &[Pod]) -> Option<String> {
    let differs = |what: String| {
        let (name, kind) = (&workload.meta.key.name, &job.kind);
        // The sentence is also read in the home, to which MultiKueue copies it.
        Some(format!(
            "its Workload {name} has {what}; apply the same JobType {kind} in its home and in the cluster that runs it"
        ))
    };
    if workload.asked.len() != job.roles.len() {
        return differs(format!("{} roles, the job {}", workload.asked.len(), job.roles.len()));
    }
    for (role, pod) in job.roles.iter().zip(pods) {
        let (name, replicas) = (&role.name, role.replicas);
        match workload.asked.get(name) {
            Some(asked) if *asked == replicas => {}
            asked => return differs(format!("{} pods of {name}, the job {replicas}", asked.copied().unwrap_or(0))),
        }
        let now = pod.spec.as_ref().map(requests).unwrap_or_default();
        let asked = workload.requests.get(name).cloned().unwrap_or_default();
        let mut resources = asked.iter().chain(now.iter()).map(|(resource, _)| resource);
        if let Some(resource) = resources.find(|resource| asked.get(resource) != now.get(resource)) {
            let [asked, now] = [&asked, &now].map(|amounts| show(resource, amounts.get(resource)));
            return differs(format!("{asked} in each pod of {name}, the job {now}"));
        }
    }
    None
}
