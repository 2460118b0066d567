//! A pod of a job and its node, reduced to the fields that decide whether the pod was lost.

use crate::objects::{Devices, PodStage};
use crate::time::Seconds;

/// The identity of a pod. Its name is `JOB-ROLE-INDEX-ATTEMPT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId {
    /// The position of its role in the job's list of roles.
    pub role: usize,
    /// The index within the role.
    pub index: u32,
    pub attempt: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    pub id: PodId,
    pub stage: PodStage,
    /// The deadline for its termination (`deletionTimestamp`), if it was deleted. It is never reached if the job waits
    /// for the pod however long that takes.
    pub leaving: Option<Seconds>,
    /// The scheduler has found that it cannot bind the pod.
    pub is_refused: bool,
    /// `status.reason`.
    pub reason: String,
    /// The exit code with which its program ended last, if that was an error.
    pub exit_code: Option<u8>,
    /// How often the kubelet has restarted its containers.
    pub restarts: u32,
    /// The number that its program wrote to its termination message before it succeeded, if it did.
    pub result: Option<String>,
    /// No container of the pod has started, according to its status.
    pub never_ran: bool,
    /// The reason of its condition `DisruptionTarget`, if that condition is true.
    pub disruption: String,
    /// The reported health of its devices.
    pub devices: Devices,
    /// Its node, once the pod is bound.
    pub node: Option<NodeHealth>,
    /// When the pod was bound. Until then, when it was created.
    pub since: Seconds,
}

/// The node of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// When the node is lost if it does not become ready before; `None` while it is ready or will not be lost.
    pub lost_at: Option<Seconds>,
    /// The node has the taint `node.kubernetes.io/out-of-service`.
    pub is_out_of_service: bool,
    /// The status of its condition `larder.dev/DeviceFault`, if it has one.
    pub device_fault: Option<bool>,
}

impl Default for NodeHealth {
    /// A healthy node.
    fn default() -> Self {
        Self { lost_at: None, is_out_of_service: false, device_fault: None }
    }
}
