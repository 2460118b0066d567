//! Why a pod was lost, derived from the status of the pod and its node.

use super::pod::{NodeHealth, Pod};
use crate::objects::{Devices, PodStage};
use crate::time::Seconds;

/// A pod that is this long past its deletion deadline is stuck, and no pod waits for it.
const STUCK_SECONDS: i64 = 60;

/// Why a pod was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its program exited with an error.
    Crashed,
    /// Another job needed its room.
    Preempted,
    /// Its node was drained or short of a resource, or another client deleted the pod.
    Evicted,
    /// Its node was deleted, is out of service, or has not been ready for too long.
    NodeLost,
    /// A device that it holds failed.
    DeviceFault,
}

impl Cause {
    pub const ALL: [Self; 5] = [Self::Crashed, Self::Preempted, Self::Evicted, Self::NodeLost, Self::DeviceFault];

    /// The name in the job's status and in metrics.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Crashed => "crashed",
            Self::Preempted => "preempted",
            Self::Evicted => "evicted",
            Self::NodeLost => "nodeLost",
            Self::DeviceFault => "deviceFault",
        }
    }

    /// The name in Events.
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

/// Why a pod was lost; `None` if it was not.
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
    // The reasons of the pod condition `DisruptionTarget`.
    match pod.disruption.as_str() {
        "" => {}
        "PreemptionByScheduler" => return Some(Cause::Preempted),
        "DeletionByTaintManager" | "DeletionByPodGC" => return Some(Cause::NodeLost),
        _ => return Some(Cause::Evicted),
    }
    match (pod.stage, pod.reason.as_str()) {
        (PodStage::Failed, "Preempting") => Some(Cause::Preempted),
        (PodStage::Failed, "NodeLost") => Some(Cause::NodeLost),
        // The kubelet stopped the pod, or rejected it before it ran.
        (PodStage::Failed, "Evicted" | "NodeShutdown" | "Terminated" | "NodeAffinity" | "UnexpectedAdmissionError") => {
            Some(Cause::Evicted)
        }
        (PodStage::Failed, reason) if pod.never_ran || reason.starts_with("OutOf") => Some(Cause::Evicted),
        (PodStage::Failed, _) => Some(Cause::Crashed),
        _ if pod.leaving.is_some() => Some(Cause::Evicted),
        _ => None,
    }
}

/// True if a device that the pod holds has failed. The node's condition does not name the pods that hold the device, so
/// it decides alone only if the kubelet does not report device health.
fn has_faulty_device(pod: &Pod) -> bool {
    let of_node = pod.node.and_then(|node| node.device_fault);
    match pod.devices {
        Devices::None | Devices::Well => false,
        Devices::Unreported => of_node == Some(true),
        Devices::Unhealthy => true,
        Devices::UnhealthyToLarder => of_node != Some(false),
    }
}

/// True if the pod's node is lost. The pod may still run there, but the API server cannot know.
pub fn is_on_lost_node(pod: &Pod, now: Seconds) -> bool {
    pod.node.is_some_and(|node| is_lost(node, now))
}

/// True if a node is lost.
pub fn is_lost(node: NodeHealth, now: Seconds) -> bool {
    node.is_out_of_service || node.lost_at.is_some_and(|at| now >= at)
}

/// True if the pod uses room and quota or will use them: until it has ended or its node is lost.
pub fn uses_quota(pod: &Pod, now: Seconds) -> bool {
    !pod.stage.has_ended() && !is_on_lost_node(pod, now)
}

/// True if other pods must wait until this pod ends, because it may be running. Pods that are stuck or on a lost node
/// are not live.
pub fn is_live(pod: &Pod, now: Seconds) -> bool {
    let is_stuck = stuck_at(pod).is_some_and(|at| now >= at);
    uses_quota(pod, now) && !is_stuck
}

/// The time at which the pod is stuck.
pub fn stuck_at(pod: &Pod) -> Option<Seconds> {
    pod.leaving.map(|until| until + STUCK_SECONDS)
}
