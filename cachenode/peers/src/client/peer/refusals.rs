//! The datasets that a peer refused to this node.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_dataset::SnapshotId;
use tokio::time::Instant;

use crate::read::ReadError;

/// Datasets whose refusal is remembered, for each peer.
const REFUSALS_MOST: usize = 1024;

/// The datasets that a peer refused to this node, and when.
#[derive(Debug, Default)]
pub(super) struct RefusedDatasets {
    refused: Mutex<HashMap<SnapshotId, (ReadError, Instant)>>,
    /// False if the table is empty: looked at for each range that the peer gives.
    any: AtomicBool,
}

impl RefusedDatasets {
    fn lock(&self) -> MutexGuard<'_, HashMap<SnapshotId, (ReadError, Instant)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a refusal if it is one of the whole dataset. True if it is the first one of that dataset.
    pub(super) fn note(&self, snapshot: SnapshotId, error: &ReadError) -> bool {
        if !matches!(error, ReadError::UnknownDataset | ReadError::Denied) {
            return false;
        }
        let mut refused = self.lock();
        if refused.len() >= REFUSALS_MOST {
            refused.clear();
        }
        self.any.store(true, Ordering::Relaxed);
        refused.insert(snapshot, (error.clone(), Instant::now())).is_none()
    }

    /// Notes that the peer serves a dataset. True if it had refused it.
    pub(super) fn clear(&self, snapshot: SnapshotId) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut refused = self.lock();
        let had = refused.remove(&snapshot).is_some();
        self.any.store(!refused.is_empty(), Ordering::Relaxed);
        had
    }

    /// True if the peer refused the dataset when it was last asked for it.
    pub(super) fn contains(&self, snapshot: SnapshotId) -> bool {
        self.lock().contains_key(&snapshot)
    }

    /// The refusal of a dataset, if it is younger than `memory`.
    pub(super) fn known(&self, snapshot: SnapshotId, memory: Duration) -> Option<ReadError> {
        let refused = self.lock();
        let (error, since) = refused.get(&snapshot)?;
        (since.elapsed() < memory).then(|| error.clone())
    }
}
