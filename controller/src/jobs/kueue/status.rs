//! The writes of a job's controller to its Workload: that it is finished, that its pods are ready, that pods have ended
//! and that an eviction was obeyed; and the removal of its finalizer.
//!
//! A merge patch replaces whole lists, so each patch contains all conditions as they were read, with the resource
//! version at which they were read. If the Workload has changed since, the write fails and the next decision replaces
//! it. Kueue applies its own conditions, and [`crate::kueue::check`] applies the states of checks. Neither changes what
//! is written here.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::names::FINALIZER;
use crate::kueue::workload::{JobWorkload, since};
use crate::time::Seconds;
use crate::write::{Change, Write};
use larder_kube::kinds::{Kind, KueueKind, KueueVersion};

/// The longest message of a condition.
const MESSAGE_MAX: usize = 1024;

/// The changes to a Workload's status.
pub(super) struct Status<'a> {
    workload: &'a JobWorkload,
    version: KueueVersion,
    now: Seconds,
    conditions: Vec<Value>,
    others: Value,
    is_changed: bool,
}

impl<'a> Status<'a> {
    pub(super) fn of(workload: &'a JobWorkload, version: KueueVersion, now: Seconds) -> Self {
        let conditions = workload.conditions.clone();
        Self { workload, version, now, conditions, others: json!({}), is_changed: false }
    }

    /// Sets a condition. A different message alone is not a change.
    pub(super) fn set(&mut self, kind: &str, holds: bool, reason: &str, message: &str) {
        let status = if holds { "True" } else { "False" };
        let before = self.workload.condition(kind);
        if before.as_ref().is_some_and(|before| before.status == status && before.reason == reason) {
            return;
        }
        let since = match &before {
            Some(before) if before.status == status => before.last_transition_time.clone(),
            _ => Timestamp::from_second(self.now.0).unwrap_or(Timestamp::MAX).to_string(),
        };
        self.conditions.retain(|condition| condition["type"] != kind);
        self.conditions.push(json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message.chars().take(MESSAGE_MAX).collect::<String>(),
            "observedGeneration": self.workload.generation,
            "lastTransitionTime": since,
        }));
        self.is_changed = true;
    }

    /// Reports how many pods of each role no longer need their quota. Kueue accepts no decrease.
    pub(super) fn give_back(&mut self, pods: &[(String, u32)]) {
        let before = |name: &String| self.workload.reclaimable.get(name).copied().unwrap_or(0);
        if pods.iter().all(|(name, count)| *count <= before(name)) {
            return;
        }
        let all = pods.iter().map(|(name, count)| (name, *count.max(&before(name)))).filter(|(_, count)| *count > 0);
        let all: Vec<Value> = all.map(|(name, count)| json!({"name": name, "count": count})).collect();
        self.others["reclaimablePods"] = all.into();
        self.is_changed = true;
    }

    /// Gives the quota back after an eviction, once no pod uses it. Only then does Kueue give the quota to other jobs
    /// and queue this one again.
    pub(super) fn release(&mut self) {
        let Some(evicted) = self.workload.condition("Evicted") else { return };
        // A job that waits for another reason is requeued by Kueue itself.
        let requeued = ["Preempted", "NodeFailures"].contains(&evicted.reason.as_str());
        self.set("Requeued", requeued, &evicted.reason, &evicted.message);
        self.set("QuotaReserved", false, "Pending", &evicted.message);
        if let Some(admitted) = self.workload.holding("Admitted") {
            self.set("Admitted", false, "NoReservation", "The workload has no reservation");
            let field = match self.version {
                KueueVersion::V1beta1 => "accumulatedPastExexcutionTimeSeconds",
                KueueVersion::V1beta2 => "accumulatedPastExecutionTimeSeconds",
            };
            self.others[field] = (self.workload.past_seconds + (self.now - since(&admitted)).max(0)).into();
        }
        if self.workload.holding("PodsReady").is_some() {
            self.set("PodsReady", false, "WaitForStart", "Not all pods are ready or succeeded");
        }
        self.others["admission"] = Value::Null;
        self.others["reclaimablePods"] = Value::Null;
        self.is_changed = true;
    }

    /// The write; `None` if nothing has changed.
    pub(super) fn write(self) -> Option<Write> {
        if !self.is_changed {
            return None;
        }
        let mut status = self.others;
        status["conditions"] = self.conditions.into();
        let metadata = json!({"resourceVersion": self.workload.meta.version.to_string()});
        Some(write(self.workload, self.version, Change::MergeStatus(json!({"metadata": metadata, "status": status}))))
    }
}

/// The write that removes Kueue's finalizer, so that the Workload can be deleted; `None` if it does not have the
/// finalizer.
pub(super) fn let_go(workload: &JobWorkload, version: KueueVersion) -> Option<Write> {
    if !workload.finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        return None;
    }
    let others: Vec<&String> = workload.finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).collect();
    let metadata = json!({"resourceVersion": workload.meta.version.to_string(), "finalizers": others});
    Some(write(workload, version, Change::Merge(json!({"metadata": metadata}))))
}

/// The next write towards the deletion of a Workload, which frees its quota; `None` if nothing remains to be done. The
/// finalizer is removed only after the deletion has been observed, so no Workload remains without a finalizer.
pub(super) fn remove(workload: &JobWorkload, version: KueueVersion) -> Option<Write> {
    if workload.meta.deleting {
        return let_go(workload, version);
    }
    Some(write(workload, version, Change::Delete(workload.meta.uid.clone())))
}

fn write(workload: &JobWorkload, version: KueueVersion, change: Change) -> Write {
    let key = &workload.meta.key;
    Write::new(Kind::Kueue(KueueKind::Workload, version), &key.namespace, &key.name, change)
}
