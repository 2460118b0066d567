//! A job's wish for a dataset, and how far its nodes are.

use crate::time::Seconds;
use std::fmt;

use larder_kube::key::Key;
use larder_kube::pod::node_affinity::Places;

/// Who wishes for data.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requester {
    /// A Workload of Kueue's.
    Workload(Key),
    /// A TrainingJob.
    Job(Key),
}

impl Requester {
    /// Its name.
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

/// Pods of one kind of a job are to find a dataset on their nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmRequest {
    /// The job.
    pub by: Requester,
    /// When it got its room, in seconds since 1970.
    pub since: Seconds,
    /// How many pods there will be.
    pub pods: usize,
    /// Where they may run.
    pub places: Places,
}

/// How far a dataset is on the nodes of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is no such dataset, or the job's namespace may not use it.
    Refused,
    /// It is warmed, as far as `holding` of `wanted` nodes have room for it.
    Warms(Warmth),
}

/// How much of a dataset the nodes of a job have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warmth {
    /// Nodes that its pods can use.
    pub wanted: u64,
    /// Those that have promised room.
    pub holding: u64,
    /// Bytes that are there.
    pub cached_bytes: u64,
    /// Bytes that are to be there.
    pub wanted_bytes: u64,
    /// Why there may never be more; empty if nothing is in the way.
    pub why: String,
}

impl Warmth {
    /// The percentage that is there. A hundredth may be missing: blocks take a little more room than their bytes.
    pub fn percent(&self) -> u64 {
        if self.wanted == 0 {
            return 0;
        }
        let percent = (u128::from(self.cached_bytes) * 100).checked_div(u128::from(self.wanted_bytes)).unwrap_or(100);
        if percent >= 99 { 100 } else { percent as u64 }
    }

    /// This and what other pods of the same job have.
    pub fn and(&self, other: &Self) -> Self {
        Self {
            wanted: self.wanted + other.wanted,
            holding: self.holding + other.holding,
            cached_bytes: self.cached_bytes.saturating_add(other.cached_bytes),
            wanted_bytes: self.wanted_bytes.saturating_add(other.wanted_bytes),
            why: if self.why.is_empty() { other.why.clone() } else { self.why.clone() },
        }
    }
}
