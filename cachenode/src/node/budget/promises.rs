//! Promises: room for datasets, whether or not they are open.

use std::io;

use larder_dataset::{CacheId, CacheKey};
use larder_store::{DatasetInfo, Promise};

use super::{Budget, Promises};

/// The cache as a whole, in bytes on the disk.
pub(in super::super) struct Totals {
    /// Room for all datasets.
    pub(in super::super) capacity_bytes: u64,
    /// The limit of that room, with its remedy.
    pub(in super::super) limit: String,
    /// Promised room, and that of open datasets.
    pub(in super::super) promised_bytes: u64,
    /// Promised room, and what open datasets have filled beyond it.
    pub(in super::super) needed_bytes: u64,
}

impl Budget<'_> {
    /// Replaces the promises. Each keeps the room that it has, and in their order they get room that is promised to
    /// nobody. Blocks of closed datasets make room when the promised bytes come. Blocks on the disk. Errors: the disk
    /// does not tell its free room, or they cannot be written down; those before stand.
    pub(in super::super) fn promise(&self, mut promises: Vec<Promise>) -> io::Result<()> {
        let standing = self.store.promises();
        for promise in &mut promises {
            let same = |other: &&Promise| {
                let of = |promise: &Promise| (promise.snapshot, promise.owner.clone(), promise.holder.clone());
                of(other) == of(promise)
            };
            let has = standing.iter().find(same).map_or(0, |standing| standing.disk_bytes);
            promise.disk_bytes = has.min(promise.wanted_disk_bytes);
        }
        let mut datasets = self.store.datasets_under(&promises, None);
        let (budget, _) = self.promisable(&datasets)?;
        for promise in &mut promises {
            if promise.disk_bytes < promise.wanted_disk_bytes
                && let Some(cache) = promise.cache_among(&datasets)
            {
                let room = Self::room_beside(cache, budget, &datasets);
                promise.disk_bytes = room.clamp(promise.disk_bytes, promise.wanted_disk_bytes);
                // The disk was read once, for all of them: nothing on it has changed.
                if let Some(info) = datasets.iter_mut().find(|info| info.cache() == cache) {
                    info.promised_disk_bytes = info.promised_disk_bytes.max(promise.disk_bytes);
                }
            }
        }
        self.store.promise(promises)
    }

    /// Bytes on the disk that are promised to no other dataset.
    fn room_beside(cache: CacheId, budget: u64, datasets: &[DatasetInfo]) -> u64 {
        let own = datasets.iter().find(|info| info.cache() == cache);
        budget.saturating_sub(Promises::beside(own, datasets.iter().filter(|info| info.cache() != cache)))
    }

    /// The room for all datasets and what takes it. Blocks on the disk.
    pub(in super::super) fn totals(&self, datasets: &[DatasetInfo]) -> io::Result<Totals> {
        let (capacity_bytes, limit) = self.promisable(datasets)?;
        let promised_bytes = Promises::of(datasets.iter()).bytes;
        let needed_bytes = Promises::filled(datasets.iter()).bytes;
        Ok(Totals { capacity_bytes, limit: limit.to_string(), promised_bytes, needed_bytes })
    }

    /// True if a cache is promised room.
    pub(in super::super) fn is_promised(&self, key: &CacheKey) -> bool {
        self.store.promises().iter().any(|promise| promise.is_for(key))
    }
}
