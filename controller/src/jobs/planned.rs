//! Nodes for pods that need others, as the plan finds them and the state machine takes them.

/// Nodes for pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Each of these has a node; without one the scheduler chooses.
    Nodes(Vec<PlannedPod>),
    /// There is none. The sentence says why.
    None(String),
}

/// A pod and its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPod {
    /// The place of its role in the job's list.
    pub role: usize,
    /// Its index in the role.
    pub index: u32,
    /// Its node; `None`: the scheduler chooses.
    pub node: Option<String>,
}
