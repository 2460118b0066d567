//! Why a job in a queue of Kueue waits or stops: one sentence each, mostly Kueue's own text.

use larder_api::names::KUEUE_QUEUE_LABEL;
use larder_api::training_job::checked::CheckedRole;

use crate::jobs::plan::Shortage;
use crate::kueue::workload::JobWorkload;
use crate::time::Seconds;
use larder_kube::fields::{ConditionFields, hour};

/// The job loses pods because `replicas` was lowered.
pub(super) const FEWER: &str =
    "spec.roles[].replicas was lowered; with Kueue the job grows again only after a suspension";

/// The job has no Workload yet.
pub(super) fn asks(queue: &str) -> String {
    format!("asks Kueue's queue {queue} for quota")
}

/// The job has a Workload that MultiKueue makes, and it is not there.
pub(super) fn is_not_made(workload: &str) -> String {
    format!("waits for its Workload {workload}, which MultiKueue makes in this cluster")
}

/// Another object has the Workload with the name of the job's.
pub(super) fn is_of_another(workload: &str) -> String {
    format!("the Workload {workload} belongs to something else: delete it")
}

/// The job cannot request quota. `is_unknown`: the cluster has Kueue, but its objects cannot be listed.
pub fn absent(queue: &str, is_unknown: bool) -> String {
    if is_unknown {
        return format!("waits in Kueue's queue {queue}, but Kueue's objects cannot be listed yet");
    }
    format!(
        "waits in Kueue's queue {queue}, but this cluster has no Kueue, or larder-controller may not read its objects; to use a \
         queue of Larder, submit the job again with spec.queue and without the label {KUEUE_QUEUE_LABEL}"
    )
}

/// The job has quota but no nodes.
pub fn no_nodes(shortage: &Shortage) -> String {
    format!("has Kueue's quota; {shortage}")
}

/// The job had room before, and its pods were not bound.
pub fn held_back(until: Seconds) -> String {
    format!("has Kueue's quota; it is retried at {}", hour(until.0))
}

/// The job has no quota.
pub(super) fn pending(queue: &str, workload: &JobWorkload) -> String {
    let said = workload.condition("QuotaReserved").map(|condition| condition.message);
    let later = workload.requeue_at.map(|at| format!("; queued again at {}", hour(at.0))).unwrap_or_default();
    match said.filter(|said| !said.is_empty()) {
        Some(said) => format!("Kueue's queue {queue}: {said}{later}"),
        None => format!("Kueue's queue {queue} has not decided yet{later}"),
    }
}

/// The job has quota, and not every check is ready.
pub(super) fn checks(workload: &JobWorkload) -> String {
    let waits = workload.checks.iter().filter(|check| check.state != "Ready").map(|check| {
        let state = if check.state.is_empty() { "Pending" } else { &check.state };
        if check.message.is_empty() {
            format!("{} is {state}", check.name)
        } else {
            format!("{} is {state} ({})", check.name, check.message)
        }
    });
    let waits: Vec<String> = waits.collect();
    let what = if waits.is_empty() { "Kueue's admission".to_owned() } else { format!("checks: {}", waits.join("; ")) };
    format!("has quota in the ClusterQueue {}, waits for {what}", workload.cluster_queue)
}

/// The job has lost its quota.
pub(super) fn evicted(workload: &JobWorkload, evicted: Option<&ConditionFields>) -> String {
    let said = evicted.map(|evicted| format!("Kueue has evicted it ({}): {}", evicted.reason, evicted.message));
    if workload.active {
        return said.unwrap_or_default();
    }
    let name = &workload.meta.key.name;
    let how = format!("its Workload {name} is not active: set spec.active to true to queue it again");
    said.map_or(how.clone(), |said| format!("{said}; {how}"))
}

/// The Workload is finished, but the job is not.
pub(super) fn finished(workload: &JobWorkload, finished: &ConditionFields) -> String {
    let name = &workload.meta.key.name;
    format!(
        "its Workload {name} is finished ({}): {}; delete it to queue the job again",
        finished.reason, finished.message
    )
}

/// The job has quota for fewer pods than its minimum.
pub(super) fn too_few(role: &CheckedRole, may_have: Option<u32>) -> String {
    let (name, needs) = (&role.name, role.min.max(1));
    match may_have {
        Some(may_have) => {
            format!("Kueue has admitted {may_have} of {name}, but the job needs {needs} now; the job asks again")
        }
        None => format!("Kueue has admitted none of {name}; the job asks again"),
    }
}
