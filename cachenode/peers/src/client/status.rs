//! The state of peers, for people and for `GetStats`.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::blocks::{DatasetStats, OtherSnapshot};
use crate::counters::Cause;

/// How a node identifies itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its name.
    pub node: String,
    /// Its version of Larder.
    pub version: String,
}

/// A node's cached datasets and its counters.
#[derive(Clone, Debug, Default)]
pub struct NodeStats {
    /// Of each dataset.
    pub datasets: Vec<DatasetStats>,
    /// Its counters, by name.
    pub counters: HashMap<String, u64>,
    /// Other snapshots of origins that it was asked about.
    pub others: Vec<OtherSnapshot>,
}

/// The state of a peer, for people.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: SocketAddr,
    /// True if reads are sent to it.
    pub up: bool,
    /// The last failure, unless the peer has come back up since.
    pub failure: Option<(Cause, String)>,
}
