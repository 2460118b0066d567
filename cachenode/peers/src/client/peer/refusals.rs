//! The datasets that a peer refused to serve to this node.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_dataset::CacheId;
use tokio::time::Instant;

use crate::read::ReadError;

/// The most refused datasets that are remembered per peer.
const REFUSALS_MOST: usize = 1024;

/// The datasets that a peer refused to serve to this node, with the time of each refusal.
#[derive(Debug, Default)]
pub(super) struct RefusedDatasets {
    refused: Mutex<HashMap<CacheId, (ReadError, Instant)>>,
    /// False while the table is empty. Checked without the lock for each range that the peer returns.
    any: AtomicBool,
}

impl RefusedDatasets {
    fn lock(&self) -> MutexGuard<'_, HashMap<CacheId, (ReadError, Instant)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a refusal if it concerns the whole dataset. True if it is the first refusal of that dataset.
    pub(super) fn note(&self, cache: CacheId, error: &ReadError) -> bool {
        if !matches!(error, ReadError::UnknownDataset | ReadError::Denied) {
            return false;
        }
        let mut refused = self.lock();
        if refused.len() >= REFUSALS_MOST {
            refused.clear();
        }
        self.any.store(true, Ordering::Relaxed);
        refused.insert(cache, (error.clone(), Instant::now())).is_none()
    }

    /// Records that the peer serves a dataset. True if the peer had refused it.
    pub(super) fn clear(&self, cache: CacheId) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut refused = self.lock();
        let had = refused.remove(&cache).is_some();
        self.any.store(!refused.is_empty(), Ordering::Relaxed);
        had
    }

    /// True if the peer refused the dataset at the last request for it.
    pub(super) fn contains(&self, cache: CacheId) -> bool {
        self.lock().contains_key(&cache)
    }

    /// The refusal of a dataset, if it is younger than `memory`.
    pub(super) fn known(&self, cache: CacheId, memory: Duration) -> Option<ReadError> {
        let refused = self.lock();
        let (error, since) = refused.get(&cache)?;
        (since.elapsed() < memory).then(|| error.clone())
    }
}
