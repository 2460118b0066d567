//! Adoption from the view of a dataset's callers: how it starts and ends, and how blocks that it has not reached yet
//! are read.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use larder_dataset::BlockIndex;
use tracing::warn;

use super::DatasetCache;
use super::ancestor::Ancestor;
use super::shared::Shared;
use crate::earlier::Earlier;
use crate::lookup::PartBytes;
use crate::pages::PagePart;
use crate::record::Part;
use crate::uses::InUse;
use crate::whole_file::is_damaged;

/// How often an adoption that waits for the rebuild checks whether it was stopped.
const STEP: Duration = Duration::from_secs(1);

impl DatasetCache {
    /// Adopts the blocks that the store holds of other snapshots of the same origin, without copying them, on a thread
    /// of its own. None of those snapshots can be released until the adoption has ended.
    ///
    /// Calls `done` when the adoption ends, even if it was stopped or panicked. The argument is true if nothing remains
    /// to be adopted. `done` must not block.
    pub fn adopt(&self, earlier: Vec<Arc<dyn Earlier>>, done: impl FnOnce(bool) + Send + 'static) {
        if self.is_adopting() {
            return done(false);
        }
        let shared = Arc::clone(&self.shared);
        let mut all_opened = true;
        let open = |earlier: Arc<dyn Earlier>| {
            // Registered before the files are opened: a file that is open then cannot be released.
            let in_use = InUse::by_adoption(&shared.base.uses, earlier.cache(), earlier.is_promised());
            let opened = Ancestor::open(&shared.base, earlier).unwrap_or_else(|error| {
                warn!(
                    dataset = shared.config.name, %error,
                    "the cache of another snapshot cannot be read: its blocks are fetched again"
                );
                // A cache that cannot be opened now may be adopted later.
                all_opened &= is_damaged(&error);
                None
            });
            Some((opened?, in_use))
        };
        let (ancestors, in_use): (Vec<Ancestor>, Vec<InUse>) = earlier.into_iter().filter_map(open).unzip();
        if ancestors.is_empty() {
            return done(all_opened);
        }
        let ancestors = Arc::new(ancestors);
        shared.ancestors.store(Some(Arc::clone(&ancestors)));
        let mut ended = Ended { shared: Arc::clone(&shared), in_use, is_complete: false, done: Some(done) };
        let adopt = move || {
            while !shared.wait_rebuilt(STEP) && shared.is_rebuilding() && !shared.is_stopped() {}
            let adopted_room = shared.adopted_room.lock().unwrap_or_else(PoisonError::into_inner);
            ended.is_complete = ancestors.iter().all(|ancestor| shared.adopt(ancestor)) && all_opened;
            drop(adopted_room);
            drop(ended);
        };
        match std::thread::Builder::new().name("larder-adopt".into()).spawn(adopt) {
            Ok(thread) => self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread),
            Err(error) => {
                warn!(
                    dataset = self.shared.config.name, %error,
                    "cannot start the adoption of another snapshot's blocks: they are fetched again"
                );
            }
        }
    }

    /// True while blocks of another snapshot are being adopted. Costs one load.
    pub fn is_adopting(&self) -> bool {
        self.shared.ancestors.load().is_some()
    }

    /// True if the slot table of another snapshot's cache has a block that is to be adopted. The record is not
    /// verified.
    pub fn has_earlier(&self, block: BlockIndex) -> bool {
        let ancestors = self.shared.ancestors.load();
        ancestors.as_ref().is_some_and(|ancestors| ancestors.iter().any(|ancestor| ancestor.has(block)))
    }

    /// The number of the disk with a block that is to be adopted, as [`disk_of`](Self::disk_of) has it.
    pub fn earlier_disk_of(&self, block: BlockIndex) -> Option<usize> {
        let ancestors = self.shared.ancestors.load();
        let disk = ancestors.as_ref()?.iter().find_map(|ancestor| ancestor.disk_of(block))?;
        self.shared.base.answering(&disk)
    }

    /// Reads exactly `len` bytes from `start` of a block that is to be adopted, checked against their CRCs, into newly
    /// allocated memory. `block_len` is the length of the whole block. None if no other snapshot's cache holds the
    /// bytes, or no adoption is in progress. Blocks on the disk.
    pub fn read_earlier(&self, block: BlockIndex, block_len: u32, start: u32, len: u32) -> Option<PartBytes> {
        let ancestors = self.shared.ancestors.load_full()?;
        let (part, pages) = (Part::new(block_len, start, len)?, PagePart::new(block_len, start, len)?);
        let span = self.shared.span_of(block);
        let found = ancestors.iter().find_map(|ancestor| {
            ancestor.read(block, &part).or_else(|| ancestor.read_pages(span.as_ref()?, block, &pages))
        })?;
        let counters = &self.shared.base.counters;
        counters.hits.add(1);
        counters.hit_bytes.add(len.into());
        Some(found)
    }

    /// Frees the space in adopted segments that no dataset uses, unless blocks are being adopted. Call it after another
    /// dataset was released. Blocks on the disk.
    pub fn free_unused(&self) {
        if !self.is_rebuilding()
            && let Ok(_adopted_room) = self.shared.adopted_room.try_lock()
        {
            self.shared.free_unused();
            self.shared.free_unused_pages();
        }
    }

    /// Disk bytes of adopted blocks. Other datasets may share them.
    pub(crate) fn adopted_disk_bytes(&self) -> u64 {
        self.shared.adopted_disk_bytes.load(Ordering::Relaxed)
    }
}

/// Ends an adoption when dropped, including one that was stopped or panicked.
struct Ended<F: FnOnce(bool)> {
    shared: Arc<Shared>,
    /// Keeps the other datasets from being released.
    in_use: Vec<InUse>,
    /// True if nothing remains to be adopted.
    is_complete: bool,
    /// The callback; taken on drop.
    done: Option<F>,
}

impl<F: FnOnce(bool)> Drop for Ended<F> {
    fn drop(&mut self) {
        self.shared.ancestors.store(None);
        self.shared.remember_adopted();
        // Cleared before the callback runs: `done` may release the other datasets.
        self.in_use.clear();
        if let Some(done) = self.done.take() {
            done(self.is_complete);
        }
    }
}
