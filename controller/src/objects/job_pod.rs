//! A pod of a TrainingJob.

use crate::time::Seconds;
use larder_kube::key::Key;

/// The fields of a pod that belongs to a TrainingJob.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobPod {
    pub job: Key,
    pub uid: String,
    /// The job is not its owner any more, so it is not deleted with the job.
    pub is_orphan: bool,
    /// The queue that admitted the pod, from its label; empty for none.
    pub queue: String,
    /// The flavor of its node, from its label; empty for none.
    pub flavor: String,
    pub stage: PodStage,
    /// When the pod got its node. Until then, when it was created.
    pub bound_at: Seconds,
    /// The deadline for its termination, if it was deleted.
    pub leaving: Option<Seconds>,
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
    /// The scheduler has found that it cannot bind the pod.
    pub is_refused: bool,
    /// Why the pod has no node, in the scheduler's words.
    pub unscheduled: String,
    /// The reason of its condition `DisruptionTarget`, if that condition is true.
    pub disruption: String,
    /// The reported health of its devices.
    pub devices: Devices,
    /// The job's Service selects the pod.
    pub serves: bool,
}

/// The health of the devices that a pod holds, such as GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// The pod requests no devices.
    #[default]
    None,
    /// The kubelet does not report device health: before Kubernetes 1.36, or before the pod runs.
    Unreported,
    /// The kubelet reports no unhealthy device.
    Well,
    /// The kubelet reports at least one device as unhealthy (`allocatedResourcesStatus`).
    Unhealthy,
    /// As [`Self::Unhealthy`], and all unhealthy devices belong to larder-devices. It also reports healthy devices as
    /// unhealthy while it excludes them, and only the condition of the node distinguishes the two cases.
    UnhealthyToLarder,
}

/// The progress of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodStage {
    /// The pod has no node yet.
    #[default]
    Pending,
    /// The pod has a node.
    Bound,
    /// The pod is running and ready.
    Ready,
    /// Its program has exited successfully.
    Succeeded,
    /// Its program has exited with an error, or the kubelet has stopped it.
    Failed,
}

impl PodStage {
    /// True if no container of the pod runs any more.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}
