//! The datasets that a peer refused to this node.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_dataset::SnapshotId;

use crate::read::ReadError;

/// Datasets whose refusal is remembered, for each peer.
const REFUSALS_MOST: usize = 1024;

/// The datasets that a peer refused to this node, and when.
#[derive(Debug, Default)]
pub(super) struct RefusedDatasets(Mutex<HashMap<SnapshotId, (ReadError, Instant)>>);

impl RefusedDatasets {
    fn lock(&self) -> MutexGuard<'_, HashMap<SnapshotId, (ReadError, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        refused.insert(snapshot, (error.clone(), Instant::now())).is_none()
    }

    /// The refusal of a dataset, if it is younger than `memory`.
    pub(super) fn known(&self, snapshot: SnapshotId, memory: Duration) -> Option<ReadError> {
        let refused = self.lock();
        let (error, since) = refused.get(&snapshot)?;
        (since.elapsed() < memory).then(|| error.clone())
    }
}
