//! A pod of another program that carries the label of a queue.

use crate::time::Seconds;
use larder_kube::pod::amounts::Amounts;
use larder_kube::pod::node_affinity::Places;

/// The fields of such a pod that queues need. It has not ended, and belongs to no TrainingJob.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueuedPod {
    pub queue: String,
    /// The priority that it names among those of the queue; empty for none.
    pub named_priority: String,
    /// Its own priority.
    pub priority: i32,
    /// Its requests, also without a node.
    pub requests: Amounts,
    /// It has resource claims. No queue can count their devices.
    pub has_claims: bool,
    /// The scheduler has found that it cannot bind the pod.
    pub is_refused: bool,
    /// When it got its node. Until then, when it was created.
    pub bound_at: Seconds,
    /// The nodes that it may run on.
    pub places: Places,
    /// While the gate of the queue holds it: its other scheduling gates.
    pub gates: Option<Vec<String>>,
}
