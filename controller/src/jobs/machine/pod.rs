//! A pod of a job, and its node, cut to what decides whether it was lost.

use crate::time::Seconds;
/// A pod of a job. Its name is `JOB-ROLE-INDEX-ATTEMPT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId {
    /// The place of its role in the job's list.
    pub role: usize,
    /// Its index in the role.
    pub index: u32,
    /// The attempt that it belongs to.
    pub attempt: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Which one it is.
    pub id: PodId,
    /// How far it is.
    pub stage: PodStage,
    /// It is ending, and should be gone at this time (`deletionTimestamp`).
    pub leaving: Option<Seconds>,
    /// `status.reason`.
    pub reason: String,
    /// No container of it was ever begun, as far as its status says.
    pub never_ran: bool,
    /// The reason of its condition `DisruptionTarget`, if that is true.
    pub disruption: String,
    /// What is known of its devices.
    pub devices: Devices,
    /// Its node, once it is bound.
    pub node: Option<NodeHealth>,
}

/// What is known of the devices that a pod holds, such as GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// It requests none.
    #[default]
    None,
    /// The kubelet does not report them: before Kubernetes 1.36, or before the pod runs.
    Unreported,
    /// The kubelet reports them, and none is unhealthy.
    Well,
    /// The kubelet reports one of them as unhealthy (`allocatedResourcesStatus`).
    Unhealthy,
    /// The same, and all of those are devices of larder-devices. It also reports healthy devices as unhealthy while it withholds
    /// them, and only the condition of its node tells both cases apart.
    UnhealthyToLarder,
}

/// How far a pod is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodStage {
    /// It has no node.
    #[default]
    Pending,
    /// It has one.
    Bound,
    /// It runs and is ready.
    Ready,
    /// Its program has ended well.
    Succeeded,
    /// Its program has ended with an error, or the kubelet has ended it.
    Failed,
}

impl PodStage {
    /// True if nothing of it runs any more.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The node of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Since when it is not ready; a node that is not there has not been ready since the pod was bound.
    pub unready_since: Option<Seconds>,
    /// It has the taint `node.kubernetes.io/out-of-service`.
    pub is_out_of_service: bool,
    /// What its condition `larder.dev/DeviceFault` says, if it has one.
    pub device_fault: Option<bool>,
}

impl Default for NodeHealth {
    /// A node that is well.
    fn default() -> Self {
        Self { unready_since: None, is_out_of_service: false, device_fault: None }
    }
}
