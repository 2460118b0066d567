//! The uses of a dataset's files: by the cache that has the dataset open, and by adoptions of its blocks by other
//! datasets.
//!
//! Invariant: a dataset in use is not released, and a dataset has at most one cache. A cache that is being closed
//! counts until all of its work has ended.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use larder_dataset::CacheId;

/// The datasets whose files are in use.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    all: Mutex<HashMap<CacheId, Use>>,
    /// Signalled when a use ends or a cache was opened.
    ended: Condvar,
}

/// How the files of one dataset are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// The number of caches that have the dataset open.
    pub(crate) caches: usize,
    /// The number of adoptions of its blocks by other datasets.
    pub(crate) adoptions: usize,
    /// The number of those adoptions before which the dataset had a promise of its own.
    pub(crate) promised: usize,
}

impl Uses {
    /// Locks the uses: no use begins or ends while the guard exists.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<CacheId, Use>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, id: &CacheId) -> Use {
        self.lock().get(id).copied().unwrap_or_default()
    }

    /// Wakes those that wait: a cache whose use began earlier is open now.
    pub(crate) fn opened(&self) {
        // Those that have looked and do not wait yet hold the lock.
        drop(self.lock());
        self.ended.notify_all();
    }

    /// Waits until a use has ended, or a cache was opened.
    pub(crate) fn wait(&self, uses: MutexGuard<'_, HashMap<CacheId, Use>>) {
        drop(self.ended.wait(uses).unwrap_or_else(PoisonError::into_inner));
    }
}

/// Ends a use when it is dropped.
#[derive(Debug)]
pub(crate) struct InUse {
    uses: Arc<Uses>,
    id: CacheId,
    by: Use,
}

impl InUse {
    /// Registers a cache that opens the dataset.
    pub(crate) fn by_cache(uses: &Arc<Uses>, id: CacheId) -> Self {
        Self::by(uses, id, Use { caches: 1, ..Use::default() })
    }

    /// Registers an adoption of this snapshot's blocks. `is_promised`: the snapshot has a promise of its own.
    pub(crate) fn by_adoption(uses: &Arc<Uses>, id: CacheId, is_promised: bool) -> Self {
        Self::by(uses, id, Use { adoptions: 1, promised: is_promised.into(), ..Use::default() })
    }

    fn by(uses: &Arc<Uses>, id: CacheId, by: Use) -> Self {
        uses.lock().entry(id).or_default().add(by);
        Self { uses: Arc::clone(uses), id, by }
    }
}

impl Use {
    fn add(&mut self, other: Self) {
        self.caches += other.caches;
        self.adoptions += other.adoptions;
        self.promised += other.promised;
    }

    fn subtract(&mut self, other: Self) {
        self.caches -= other.caches;
        self.adoptions -= other.adoptions;
        self.promised -= other.promised;
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut uses = self.uses.lock();
        if let Some(all) = uses.get_mut(&self.id) {
            all.subtract(self.by);
            if *all == Use::default() {
                uses.remove(&self.id);
            }
        }
        drop(uses);
        self.uses.ended.notify_all();
    }
}
