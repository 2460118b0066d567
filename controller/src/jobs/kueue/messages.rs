//! Why a job in a queue of Kueue's waits or stops: one sentence each, mostly in Kueue's own words.

use larder_api::names::KUEUE_QUEUE_LABEL;
use larder_api::training_job::checked::CheckedRole;

use super::workload::{Condition, JobWorkload};
use crate::jobs::plan::Shortage;
use crate::time::Seconds;
use larder_kube::fields::hour;

/// Loses pods because `replicas` was lowered.
pub(super) const FEWER: &str =
    "spec.roles[].replicas was lowered; with Kueue the job grows again only after a suspension";

/// Has no Workload yet.
pub(super) fn asks(queue: &str) -> String {
    format!("asks Kueue's queue {queue} for quota")
}

/// Cannot ask. `is_unknown`: this cluster has Kueue, and its objects cannot be listed.
pub fn absent(queue: &str, is_unknown: bool) -> String {
    if is_unknown {
        return format!("waits in Kueue's queue {queue}, but Kueue's objects cannot be listed yet");
    }
    format!(
        "waits in Kueue's queue {queue}, but this cluster has no Kueue, or larder-controller may not read its objects; to use a \
         queue of Larder, submit the job again with spec.queue and without the label {KUEUE_QUEUE_LABEL}"
    )
}

/// Has quota, and no nodes.
pub fn no_nodes(shortage: &Shortage) -> String {
    format!("has Kueue's quota; {shortage}")
}

/// Has had room, and its pods were not bound.
pub fn held_back(until: Seconds) -> String {
    format!("has Kueue's quota; it is retried at {}", hour(until.0))
}

/// Has no quota.
pub(super) fn pending(queue: &str, workload: &JobWorkload) -> String {
    let said = workload.condition("QuotaReserved").map(|condition| condition.message);
    let later = workload.requeue_at.map(|at| format!("; queued again at {}", hour(at.0))).unwrap_or_default();
    match said.filter(|said| !said.is_empty()) {
        Some(said) => format!("Kueue's queue {queue}: {said}{later}"),
        None => format!("Kueue's queue {queue} has not decided yet{later}"),
    }
}

/// Has quota, and not every check is ready.
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

/// Has lost its quota.
pub(super) fn evicted(workload: &JobWorkload, evicted: Option<&Condition>) -> String {
    let said = evicted.map(|evicted| format!("Kueue has evicted it ({}): {}", evicted.reason, evicted.message));
    if workload.active {
        return said.unwrap_or_default();
    }
    let name = &workload.meta.key.name;
    let how = format!("its Workload {name} is not active: set spec.active to true to queue it again");
    said.map_or(how.clone(), |said| format!("{said}; {how}"))
}

/// Its Workload is finished, and the job is not.
pub(super) fn finished(workload: &JobWorkload, finished: &Condition) -> String {
    let name = &workload.meta.key.name;
    format!(
        "its Workload {name} is finished ({}): {}; delete it to queue the job again",
        finished.reason, finished.message
    )
}

/// Has quota for fewer pods than it runs with.
pub(super) fn too_few(role: &CheckedRole, may_have: Option<u32>) -> String {
    let (name, needs) = (&role.name, role.min.max(1));
    match may_have {
        Some(may_have) => {
            format!("Kueue has admitted {may_have} of {name}, but the job needs {needs} now; the job asks again")
        }
        None => format!("Kueue has admitted none of {name}; the job asks again"),
    }
}
