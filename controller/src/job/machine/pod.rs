//! A pod of a job, and its node, cut to what decides whether it was lost.

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

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Which one it is.
    pub id: PodId,
    /// How far it is.
    pub stage: PodStage,
    /// It is ending, and should be gone at this time (`deletionTimestamp`).
    pub leaving: Option<i64>,
    /// `status.reason`.
    pub reason: String,
    /// No container of it was ever begun, as far as its status says.
    pub never_ran: bool,
    /// The reason of its condition `DisruptionTarget`, if that is true.
    pub disruption: String,
    /// One of its devices is unhealthy (`allocatedResourcesStatus`).
    pub device_is_unhealthy: bool,
    /// Its node, once it is bound.
    pub node: Option<NodeHealth>,
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
    pub unready_since: Option<i64>,
    /// It has the taint `node.kubernetes.io/out-of-service`.
    pub is_out_of_service: bool,
    /// It has the condition `larder.dev/DeviceFault`.
    pub has_device_fault: bool,
}

impl Default for NodeHealth {
    /// A node that is well.
    fn default() -> Self {
        Self { unready_since: None, is_out_of_service: false, has_device_fault: false }
    }
}
