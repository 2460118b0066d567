//! A job as the plan sees it, and where its pods go.

use super::cluster::NodeIndex;
use larder_kube::key::Key;
use larder_kube::pod::amounts::Amounts;
use larder_kube::pod::node_affinity::Places;

/// The pods of a job that want nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gang {
    /// Equal pods, by role.
    pub roles: Vec<Want>,
    /// Its datasets and their bytes.
    pub datasets: Vec<(Key, u64)>,
    /// The label of nodes whose values are topology domains; empty for none.
    pub topology_key: String,
    /// Where it has pods already: others go to the same domains, if they can.
    pub near: Vec<NodeIndex>,
}

/// Equal pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Want {
    /// Their role, for sentences.
    pub name: String,
    /// What each of them requests. It counts as a pod without being listed here.
    pub requests: Amounts,
    /// The nodes that they may run on.
    pub places: Places,
    /// Without a node for each of these, none of the gang has one.
    pub required: u32,
    /// So many more get one if there is room.
    pub optional: u32,
}

/// The nodes of a gang's pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// By role: one node for each required pod, then for as many of the optional ones as there was room. Pods of neighbouring
    /// indexes are on the same node or near.
    pub roles: Vec<Vec<NodeIndex>>,
}
