//! New nodes for pods: the result of a plan, and an input of the state machine. And the nodes that the next plan
//! avoids.

use crate::time::Seconds;
use serde::{Deserialize, Serialize};

/// The answer of the planner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// A node for each of these pods, or the choice is left to the scheduler.
    Nodes(Vec<PlannedPod>),
    /// No nodes were found, for this reason.
    None(String),
}

/// A pod with its planned node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPod {
    /// The position of its role in the job's list of roles.
    pub role: usize,
    /// The index within the role.
    pub index: u32,
    /// The planned node; `None` if the scheduler chooses.
    pub node: Option<String>,
}

/// A node that refused pods of a role: kube-scheduler could not bind them there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedBy {
    /// The position of the role in the job's list of roles.
    pub role: usize,
    pub node: String,
    pub at: Seconds,
}
