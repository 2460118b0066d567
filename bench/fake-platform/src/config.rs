//! The settings of the simulation, and the record of its events.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The settings of the simulation.
#[derive(Clone, Debug)]
pub struct Config {
    /// The namespace whose jobs the simulation completes.
    pub namespace: String,
    /// The nodes that get a simulated larderd.
    pub nodes: BTreeSet<String>,
    /// The size of each node's cache.
    pub capacity_bytes: u64,
    /// The number of files that each import reports.
    pub files: u64,
    /// The size that each import reports, and that each node caches.
    pub bytes: u64,
    /// The time from the start of a warming job until its node has all bytes.
    pub warming: Duration,
    /// The minimum interval between two reports of a node.
    pub report_every: Duration,
}

/// A node that has all bytes of a dataset.
#[derive(Clone, Debug)]
pub struct Filled {
    /// The node's name.
    pub node: String,
    /// The Dataset's name, without its namespace.
    pub dataset: String,
    /// When the last byte arrived; the node reports it later.
    pub at: Instant,
}

/// The events of the simulation so far.
#[derive(Debug, Default)]
pub struct Seen {
    filled: Mutex<Vec<Filled>>,
    reporting: AtomicU64,
    writes: AtomicU64,
}

impl Seen {
    /// Every pair of node and dataset that is complete, in the order of completion.
    pub fn filled(&self) -> Vec<Filled> {
        self.filled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of nodes that have reported their cache.
    pub fn reporting(&self) -> u64 {
        self.reporting.load(Ordering::Relaxed)
    }

    /// The number of the simulation's writes to the API.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    pub(crate) fn add_filled(&self, filled: Filled) {
        self.filled.lock().unwrap_or_else(PoisonError::into_inner).push(filled);
    }

    pub(crate) fn add_reporting(&self) {
        self.reporting.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }
}

/// The snapshot that an import reports: 64 hex digits, derived from the Dataset's name.
pub fn snapshot_of(dataset: &str) -> String {
    let digits: String = dataset.bytes().map(|byte| format!("{byte:02x}")).collect();
    let digits: String = digits.chars().rev().take(64).collect();
    format!("{digits:0>64}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_64_hex_digits_of_its_own() {
        let names = ["a", "b", "bench-0001", "bench-0010", &"x".repeat(40)];
        let snapshots: BTreeSet<String> = names.iter().map(|name| snapshot_of(name)).collect();
        assert_eq!(snapshots.len(), names.len());
        assert!(snapshots.iter().all(|id| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())));
    }
}
