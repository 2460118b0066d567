//! What the datasets of one store share: the folder and its lock, the index, the disk's health, the counters.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::counters::StoreCounters;
use crate::folder::{Abilities, Folder};
use crate::free_share::FreeShare;
use crate::health::Health;
use crate::index::{Index, LastRun};
use crate::reservations::Reservations;

/// What a store's datasets share.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) counters: Arc<StoreCounters>,
    pub(crate) health: Health,
    pub(crate) free_share: FreeShare,
    pub(crate) index: Index,
    pub(crate) reservations: Reservations,
    pub(crate) last_run: LastRun,
    pub(crate) abilities: Abilities,
    pub(crate) segment_bytes: u64,
    pub(crate) closed: AtomicBool,
    pub(crate) logged: LoggedFlaws,
    /// Last, so that the lock is released after RocksDB is closed.
    pub(crate) folder: Folder,
}

/// Which kinds of flaws were logged: each is logged once, and the counters have the rest.
#[derive(Debug, Default)]
pub(crate) struct LoggedFlaws {
    pub(crate) torn: AtomicBool,
    pub(crate) foreign: AtomicBool,
    pub(crate) rotten: AtomicBool,
    pub(crate) unreadable: AtomicBool,
}
