//! A job as the plan sees it, and the nodes of its pods.

use super::cluster::NodeIndex;
use larder_kube::key::Key;
use larder_kube::pod::amounts::Amounts;
use larder_kube::pod::node_affinity::Places;

/// The pods of a job that need nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gang {
    /// Identical pods, one entry per role.
    pub roles: Vec<Want>,
    /// The job's datasets and their sizes in bytes.
    pub datasets: Vec<(Key, u64)>,
    /// The node label whose values are the topology domains; empty for none.
    pub topology_key: String,
    /// The nodes of the pods that the job already has. New pods go to the same domains if possible.
    pub near: Vec<NodeIndex>,
}

/// Identical pods of one role.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Want {
    /// The role's name, for messages.
    pub name: String,
    /// The requests of each pod. The pod's own slot (the `pods` resource) is added automatically.
    pub requests: Amounts,
    pub places: Places,
    /// Nodes that refused such pods. The plan uses them only if there is no plan without them.
    pub refused_by: Vec<NodeIndex>,
    /// No two of the pods can be on one node.
    pub apart: bool,
    /// The pods are to be spread over nodes: the plan puts two on one node only if there is no plan without that.
    pub spread: bool,
    /// If they are apart, the nodes of such pods that the job already has.
    pub occupied: Vec<NodeIndex>,
    /// If any of these pods has no node, none of the gang's pods gets one.
    pub required: u32,
    /// The number of further pods that get a node if there is room.
    pub optional: u32,
}

/// The nodes of a gang's pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Per role: one node for each required pod, then one for each optional pod that had room. Pods with neighbouring
    /// indexes are on the same node or on nodes close to it.
    pub roles: Vec<Vec<NodeIndex>>,
}
