//! A job's request for a dataset on its nodes, and its progress.

use crate::time::Seconds;
use std::fmt;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Toleration};
use larder_kube::key::Key;
use larder_kube::pod::node_affinity::Places;

/// The object that requests data.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requester {
    /// A Workload of Kueue.
    Workload(Key),
    Job(Key),
}

impl Requester {
    pub fn key(&self) -> &Key {
        match self {
            Self::Workload(key) | Self::Job(key) => key,
        }
    }
}

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key().fmt(f)
    }
}

/// A request that pods of one kind of a job find a dataset on their nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmRequest {
    pub by: Requester,
    /// When the job got its room, in seconds since 1970.
    pub since: Seconds,
    /// The number of pods.
    pub pods: usize,
    /// Where the pods may run.
    pub places: Places,
    /// The job has GPUs, which may be idle until the data is there.
    pub gpus: bool,
}

impl WarmRequest {
    /// A request for these nodes, whatever their taints.
    pub fn on(by: Requester, since: Seconds, nodes: Vec<String>, gpus: bool) -> Self {
        let pods = nodes.len();
        let named =
            NodeSelectorRequirement { key: "metadata.name".to_owned(), operator: "In".to_owned(), values: Some(nodes) };
        let term = NodeSelectorTerm { match_fields: Some(vec![named]), ..NodeSelectorTerm::default() };
        let any = Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() };
        let places = Places { terms: vec![term], tolerations: vec![any], ..Places::default() };
        Self { by, since, pods, places, gpus }
    }
}

/// The progress of a dataset on the nodes of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The dataset does not exist, or the job's namespace may not use it.
    Refused,
    /// The dataset is being warmed; `holding` of the `wanted` nodes have room for it.
    Warms(Warmth),
}

/// How much of a dataset the nodes of a job hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warmth {
    /// The number of nodes that the pods can use.
    pub wanted: u64,
    /// The number of those nodes that have promised room.
    pub holding: u64,
    /// The bytes that the nodes hold.
    pub cached_bytes: u64,
    /// The bytes that the nodes should hold.
    pub wanted_bytes: u64,
    /// Why the nodes may never hold more; empty if there is no obstacle.
    pub why: String,
    /// The obstacle is the CacheQuota of the dataset's namespace.
    pub is_over_quota: bool,
}

impl Warmth {
    /// The percentage that the nodes hold. One percent may be missing and still count as complete: blocks take slightly
    /// more room than their bytes.
    pub fn percent(&self) -> u64 {
        if self.wanted == 0 {
            return 0;
        }
        let percent = (u128::from(self.cached_bytes) * 100).checked_div(u128::from(self.wanted_bytes)).unwrap_or(100);
        if percent >= 99 { 100 } else { percent as u64 }
    }

    /// The sum of this and the progress for other pods of the same job.
    pub fn and(&self, other: &Self) -> Self {
        Self {
            wanted: self.wanted + other.wanted,
            holding: self.holding + other.holding,
            cached_bytes: self.cached_bytes.saturating_add(other.cached_bytes),
            wanted_bytes: self.wanted_bytes.saturating_add(other.wanted_bytes),
            why: if self.why.is_empty() { other.why.clone() } else { self.why.clone() },
            is_over_quota: if self.why.is_empty() { other.is_over_quota } else { self.is_over_quota },
        }
    }
}
