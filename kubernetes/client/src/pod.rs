//! Pods: what they request, and the nodes that they may run on.

pub mod amounts;
pub mod node_affinity;
pub mod requests;
