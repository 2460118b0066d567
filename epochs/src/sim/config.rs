//! The settings of a simulation.

use std::str::FromStr;

use larder_dataset::PolicyKind;
use serde::Serialize;

use super::files::Sizes;

/// A policy that can be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimPolicy {
    /// A policy of the store.
    Store(PolicyKind),
    /// Bélády: keeps the files that are used soonest, by the order of this epoch and the next.
    Belady,
}

impl SimPolicy {
    /// All policies, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        PolicyKind::ALL.into_iter().map(Self::Store).chain([Self::Belady])
    }
}

impl std::fmt::Display for SimPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(kind) => kind.fmt(f),
            Self::Belady => f.pad("belady"),
        }
    }
}

impl FromStr for SimPolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::all()
            .find(|policy| policy.to_string() == name)
            .ok_or_else(|| format!("unknown policy {name:?}: use nr, smallest, lru, fifo, random or belady"))
    }
}

/// The size of a node's cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// A share of the dataset; 1 is all of it.
    Share(f64),
    /// Bytes.
    Bytes(u64),
}

impl CacheSize {
    /// The size in bytes for a dataset of `dataset_bytes`, rounded as a mount rounds its reservation.
    pub fn bytes(self, dataset_bytes: u64) -> u64 {
        match self {
            Self::Share(share) => (dataset_bytes as f64 * share).ceil() as u64,
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// How the dataset is distributed over the nodes' caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SimPlacement {
    /// Each node caches the files that it reads: a different share of the shuffle each epoch.
    Local,
    /// Each block has one owner; all nodes read it through the owner's cache.
    Partitioned,
}

/// The settings of a simulation.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Number of files.
    pub files: u32,
    /// The sizes of the files.
    pub sizes: Sizes,
    /// Cache sizes; each applies to every node.
    pub caches: Vec<CacheSize>,
    /// Number of epochs; at least 2.
    pub epochs: u32,
    /// Numbers of nodes.
    pub nodes: Vec<u32>,
    /// How the dataset is distributed over the nodes' caches.
    pub placement: SimPlacement,
    /// The policies.
    pub policies: Vec<SimPolicy>,
    /// Seed of sizes, shuffles and the random policy.
    pub seed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_parsed_by_name() {
        for policy in SimPolicy::all() {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("mru".parse::<SimPolicy>().unwrap_err().contains("belady"));
    }
}
