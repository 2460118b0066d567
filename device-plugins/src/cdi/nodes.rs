//! The device nodes of an HCA.

use crate::machine::{Hca, LinkLayer};

/// The folder of RDMA's device nodes, below /dev.
pub const FOLDER: &str = "infiniband";

/// The node of the connection manager, which all HCAs share.
pub const RDMA_CM: &str = "rdma_cm";

/// The names of the nodes that a container needs for an HCA, `rdma_cm` last. With `mad`, also the nodes for management
/// datagrams; a RoCE port has no `issm`. `None` if the HCA has no `uverbs`, since it cannot be used without one.
pub fn names(hca: &Hca, mad: bool) -> Option<Vec<String>> {
    let mut names = vec![hca.uverbs.as_ref()?.name.clone()];
    for port in hca.ports.iter().filter(|_| mad) {
        let issm = port.issm.as_ref().filter(|_| port.link_layer == LinkLayer::InfiniBand);
        names.extend(port.umad.iter().chain(issm).map(|node| node.name.clone()));
    }
    names.push(RDMA_CM.to_owned());
    Some(names)
}

/// True if this node is for management datagrams.
pub(super) fn is_mad(name: &str) -> bool {
    name.starts_with("umad") || name.starts_with("issm")
}
