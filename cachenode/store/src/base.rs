//! State shared by the datasets of one store: the folder and its lock, the index, the disk's health, the counters.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use larder_dataset::CacheId;

use crate::counters::StoreCounters;
use crate::folder::{Abilities, Folder};
use crate::free_share::FreeShare;
use crate::health::Health;
use crate::index::{Index, LastRun};
use crate::measured::Measured;
use crate::promises::Promises;
use crate::quotas::Quotas;
use crate::reservations::{Known, Reservations};
use crate::uses::Uses;

/// State shared by a store's datasets.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) counters: Arc<StoreCounters>,
    pub(crate) health: Health,
    pub(crate) free_share: FreeShare,
    pub(crate) index: Index,
    pub(crate) reservations: Reservations,
    pub(crate) promises: Promises,
    pub(crate) quotas: Quotas,
    pub(crate) uses: Arc<Uses>,
    pub(crate) measured: Measured,
    pub(crate) last_run: LastRun,
    pub(crate) abilities: Abilities,
    pub(crate) segment_bytes: u64,
    pub(crate) closed: AtomicBool,
    pub(crate) logged: LoggedFlaws,
    /// None if the cache folder cannot be used; datasets then have no cache. Declared last: fields drop in order, so
    /// RocksDB closes before the folder's lock is released.
    pub(crate) folder: Option<Folder>,
}

/// Which kinds of flaws were logged. Each kind is logged once; the counters hold the totals.
#[derive(Debug, Default)]
pub(crate) struct LoggedFlaws {
    pub(crate) torn: AtomicBool,
    pub(crate) foreign: AtomicBool,
    pub(crate) rotten: AtomicBool,
    pub(crate) unreadable: AtomicBool,
}

impl Base {
    /// Removes a dataset's folder. Returns before its disk space is free.
    pub(crate) fn remove(&self, folder: &Folder, id: &CacheId) -> io::Result<()> {
        let shared = self.measured.of(id, &folder.dataset(id)).shared;
        let removed = folder.remove(id);
        self.measured.forget(id, &shared);
        removed
    }

    /// Changes what is known about a dataset. Blocks on the disk.
    pub(crate) fn change(&self, id: &CacheId, change: impl FnOnce(&mut Known)) -> Known {
        self.reservations.put(id, self.dataset(id).as_deref(), change)
    }

    /// The same, but a change of the time of the last use alone may be lost.
    pub(crate) fn change_news(&self, id: &CacheId, change: impl FnOnce(&mut Known)) -> Known {
        self.reservations.put_news(id, self.dataset(id).as_deref(), change)
    }

    /// Writes the time of a dataset's last use, if that is in memory only. Blocks on the disk.
    pub(crate) fn write_use(&self, id: &CacheId) {
        self.reservations.put_use(id, self.dataset(id).as_deref());
    }

    /// The folder of a dataset.
    fn dataset(&self, id: &CacheId) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.dataset(id))
    }
}
