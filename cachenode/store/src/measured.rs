//! The disk use of each dataset: measured when it is first needed, and again only once the dataset's files have
//! changed. A list of all datasets therefore costs no walk over the folders of those that did not change.
//!
//! Invariant: a change marks the use as stale after the files have changed, and a measurement removes the mark before
//! it begins. A use without a mark is that of the files, except for a few KiB of small files beside the segments.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_dataset::CacheId;

use crate::folder::{DiskUse, SharedFile, disk_use};

/// The disk use of the datasets of a store.
#[derive(Debug, Default)]
pub(crate) struct Measured(Mutex<HashMap<CacheId, Measurement>>);

#[derive(Debug, Default)]
struct Measurement {
    stale: Stale,
    used: DiskUse,
}

/// Marks the use of one dataset as stale. Costs one store.
#[derive(Clone, Debug)]
pub(crate) struct Stale(Arc<AtomicBool>);

impl Default for Stale {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Stale {
    /// Call it after the dataset's files have changed.
    pub(crate) fn mark(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Measured {
    /// The disk use of a dataset. Walks over its `folders` if the use is stale.
    pub(crate) fn of(&self, id: &CacheId, folders: impl FnOnce() -> Vec<PathBuf>) -> DiskUse {
        let mut all = self.lock();
        let measurement = all.entry(*id).or_default();
        if measurement.stale.0.swap(false, Ordering::AcqRel) {
            measurement.used = disk_use(folders());
        }
        measurement.used.clone()
    }

    /// The mark of a dataset, for those that change its files.
    pub(crate) fn stale(&self, id: &CacheId) -> Stale {
        self.lock().entry(*id).or_default().stale.clone()
    }

    /// Forgets a dataset whose folder was removed, and marks those that have shared one of these files with it.
    pub(crate) fn forget(&self, id: &CacheId, shared: &[SharedFile]) {
        let mut all = self.lock();
        all.remove(id);
        let has_some = |used: &DiskUse| used.shared.iter().any(|file| shared.iter().any(|it| it.id == file.id));
        all.values().filter(|other| has_some(&other.used)).for_each(|other| other.stale.mark());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CacheId, Measurement>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
