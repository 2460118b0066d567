//! Why a pod was lost, from what Kubernetes says about it and its node.

use super::pod::{Devices, NodeHealth, Pod, PodStage};
use crate::time::Seconds;

/// A node that is not ready for this long is lost.
pub const NODE_LOST_SECONDS: i64 = 60;

/// A pod that is this late to end is not waited for.
pub const STUCK_SECONDS: i64 = 60;

/// Why a pod was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its program ended with an error.
    Crashed,
    /// Another job needed its room.
    Preempted,
    /// Its node was drained or short of something, or somebody deleted it.
    Evicted,
    /// Its node is gone, out of service, or has not been ready for 60 s.
    NodeLost,
    /// A device that it holds failed.
    DeviceFault,
}

impl Cause {
    pub const ALL: [Self; 5] = [Self::Crashed, Self::Preempted, Self::Evicted, Self::NodeLost, Self::DeviceFault];

    /// Its name in the job's status, and in metrics.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Crashed => "crashed",
            Self::Preempted => "preempted",
            Self::Evicted => "evicted",
            Self::NodeLost => "nodeLost",
            Self::DeviceFault => "deviceFault",
        }
    }

    /// Its name in events.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crashed => "PodCrashed",
            Self::Preempted => "PodPreempted",
            Self::Evicted => "PodEvicted",
            Self::NodeLost => "NodeLost",
            Self::DeviceFault => "DeviceFault",
        }
    }
}

/// Why a pod is lost; `None` if it is not.
pub fn cause(pod: &Pod, now: Seconds) -> Option<Cause> {
    if pod.stage == PodStage::Succeeded {
        return None;
    }
    if is_on_lost_node(pod, now) {
        return Some(Cause::NodeLost);
    }
    if has_faulty_device(pod) {
        return Some(Cause::DeviceFault);
    }
    // The reasons of the pod's condition DisruptionTarget.
    match pod.disruption.as_str() {
        "" => {}
        "PreemptionByScheduler" => return Some(Cause::Preempted),
        "DeletionByTaintManager" | "DeletionByPodGC" => return Some(Cause::NodeLost),
        _ => return Some(Cause::Evicted),
    }
    match (pod.stage, pod.reason.as_str()) {
        (PodStage::Failed, "Preempting") => Some(Cause::Preempted),
        (PodStage::Failed, "NodeLost") => Some(Cause::NodeLost),
        // The kubelet ended it, or did not take it at all.
        (PodStage::Failed, "Evicted" | "NodeShutdown" | "Terminated" | "NodeAffinity" | "UnexpectedAdmissionError") => {
            Some(Cause::Evicted)
        }
        (PodStage::Failed, reason) if pod.never_ran || reason.starts_with("OutOf") => Some(Cause::Evicted),
        (PodStage::Failed, _) => Some(Cause::Crashed),
        _ if pod.leaving.is_some() => Some(Cause::Evicted),
        _ => None,
    }
}

/// True if a device that the pod holds has failed. The node's condition does not say whose device it is, so it alone counts only
/// where the kubelet reports nothing.
fn has_faulty_device(pod: &Pod) -> bool {
    let of_node = pod.node.and_then(|node| node.device_fault);
    match pod.devices {
        Devices::None | Devices::Well => false,
        Devices::Unreported => of_node == Some(true),
        Devices::Unhealthy => true,
        Devices::UnhealthyToLarder => of_node != Some(false),
    }
}

/// True if the pod's node is lost. Its pods may still run there, and nobody can know.
pub fn is_on_lost_node(pod: &Pod, now: Seconds) -> bool {
    pod.node.is_some_and(|node| is_lost(node, now))
}

/// True if a node is lost.
pub fn is_lost(node: NodeHealth, now: Seconds) -> bool {
    node.is_out_of_service || node.unready_since.is_some_and(|since| now - since >= NODE_LOST_SECONDS)
}

/// True if the pod uses room and quota, or will: until it has ended, or its node is lost.
pub fn uses_quota(pod: &Pod, now: Seconds) -> bool {
    !pod.stage.has_ended() && !is_on_lost_node(pod, now)
}

/// True if others are to wait for the end of the pod, since it may run: not for one that is stuck or on a lost node.
pub fn is_live(pod: &Pod, now: Seconds) -> bool {
    let is_stuck = pod.leaving.is_some_and(|until| now - until >= STUCK_SECONDS);
    uses_quota(pod, now) && !is_stuck
}

/// When [`cause`] or [`is_live`] may change by time alone.
pub fn changes_at(pod: &Pod) -> impl Iterator<Item = Seconds> {
    let lost = pod.node.and_then(|node| node.unready_since).map(|since| since + NODE_LOST_SECONDS);
    let stuck = pod.leaving.map(|until| until + STUCK_SECONDS);
    lost.into_iter().chain(stuck)
}
