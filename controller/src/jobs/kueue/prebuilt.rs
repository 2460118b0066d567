//! A Workload that MultiKueue has made in this cluster for its copy of a job.
//!
//! It is a copy, too, and Kueue may have admitted it before the job is there. MultiKueue deletes both if the spec of the
//! Workload differs from the one in its home, so larder-controller makes itself the owner and changes nothing else. The
//! quota in it is for the pods of the home's JobType. Pods that would use other quota are not created.

use k8s_openapi::api::core::v1::Pod;
use larder_api::training_job::checked::CheckedJob;
use larder_kube::kinds::{Kind, KueueKind, KueueVersion};
use larder_kube::pod::requests::requests;
use serde_json::json;

use crate::jobs::render::owner;
use crate::kueue::workload::{JOB_UID_LABEL, JobWorkload};
use crate::write::{Change, Write};

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
        Some(format!("its Workload {name} has {what}; the JobType {kind} must be the same here and in the job's home"))
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
        if workload.requests.get(name) != Some(&now) {
            return differs(format!("pods of {name} with other requests than the job"));
        }
    }
    None
}
