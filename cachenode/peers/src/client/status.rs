//! The state of peers, for operators and for `GetStats`.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::blocks::{DatasetStats, OtherSnapshot};
use crate::counters::Cause;

/// The identity that a node reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node's name within the cluster.
    pub node: String,
    /// The version of Larder that the node runs.
    pub version: String,
}

/// A node's cached datasets and counters.
#[derive(Clone, Debug, Default)]
pub struct NodeStats {
    /// The requested datasets that the node shares, with their statistics.
    pub datasets: Vec<DatasetStats>,
    /// The node's counters about its peers, by name.
    pub counters: HashMap<String, u64>,
    /// Snapshots that the node shares from the same origins as requested datasets that it does not share.
    pub others: Vec<OtherSnapshot>,
}

/// The state of a peer, for operators.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// The peer's name.
    pub name: String,
    /// The address of the peer's server.
    pub address: SocketAddr,
    /// True if reads are sent to it.
    pub up: bool,
    /// The last failure, unless the peer has come back up since.
    pub failure: Option<(Cause, String)>,
}
