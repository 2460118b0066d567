//! Adoption as the callers of a dataset's cache see it: it begins, blocks that it has not reached yet are read, and it
//! ends.

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
use crate::record::Part;
use crate::uses::InUse;

/// How long the adoption waits for the rebuild before it looks whether it was stopped.
const STEP: Duration = Duration::from_secs(1);

impl DatasetCache {
    /// Adopts the blocks that the store has of other snapshots of the same origin, without copying them, on a thread of
    /// its own. None of these is released until that has ended.
    ///
    /// Calls `done` when it has ended, however it ends, with true if nothing is left to adopt; `done` must not block.
    pub fn adopt(&self, earlier: Vec<Arc<dyn Earlier>>, done: impl FnOnce(bool) + Send + 'static) {
        if self.is_adopting() {
            return done(false);
        }
        let shared = Arc::clone(&self.shared);
        let open = |earlier: Arc<dyn Earlier>| {
            // First: what is opened then stays.
            let in_use = InUse::by_adoption(&shared.base.uses, earlier.snapshot(), earlier.is_promised());
            let opened = Ancestor::open(&shared.base, earlier).unwrap_or_else(|error| {
                warn!(
                    dataset = shared.config.name, %error,
                    "the cache of another snapshot cannot be read: its blocks are fetched again"
                );
                None
            });
            Some((opened?, in_use))
        };
        let (ancestors, in_use): (Vec<Ancestor>, Vec<InUse>) = earlier.into_iter().filter_map(open).unzip();
        if ancestors.is_empty() {
            return done(true);
        }
        let ancestors = Arc::new(ancestors);
        shared.ancestors.store(Some(Arc::clone(&ancestors)));
        let mut ended = Ended { shared: Arc::clone(&shared), in_use, is_complete: false, done: Some(done) };
        let adopt = move || {
            while !shared.wait_rebuilt(STEP) && shared.is_rebuilding() && !shared.is_stopped() {}
            let adopted_room = shared.adopted_room.lock().unwrap_or_else(PoisonError::into_inner);
            ended.is_complete = ancestors.iter().all(|ancestor| shared.adopt(ancestor));
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

    /// True while blocks of another snapshot are being adopted. One load.
    pub fn is_adopting(&self) -> bool {
        self.shared.ancestors.load().is_some()
    }

    /// True if another snapshot's cache has a block that is to be adopted, as far as its slot table knows.
    pub fn has_earlier(&self, block: BlockIndex) -> bool {
        let ancestors = self.shared.ancestors.load();
        ancestors.as_ref().is_some_and(|ancestors| ancestors.iter().any(|ancestor| ancestor.has(block)))
    }

    /// Exactly `len` bytes from `start` of a block that is to be adopted, checked against their CRCs, in memory of
    /// their own. `block_len` is the length of the whole block. None if they are in no other snapshot's cache, or no
    /// adoption is under way. Blocks on the disk.
    pub fn read_earlier(&self, block: BlockIndex, block_len: u32, start: u32, len: u32) -> Option<PartBytes> {
        let ancestors = self.shared.ancestors.load_full()?;
        let part = Part::new(block_len, start, len)?;
        let found = ancestors.iter().find_map(|ancestor| ancestor.read(block, &part))?;
        let counters = &self.shared.base.counters;
        counters.hits.add(1);
        counters.hit_bytes.add(len.into());
        Some(found)
    }

    /// Frees the room of adopted segments that no dataset uses, unless blocks are being adopted. Called after
    /// another dataset was released. Blocks on the disk.
    pub fn free_unused(&self) {
        if !self.is_rebuilding()
            && let Ok(_adopted_room) = self.shared.adopted_room.try_lock()
        {
            self.shared.free_unused();
        }
    }

    /// Bytes of adopted blocks on the disk, which other datasets may share.
    pub(crate) fn adopted_disk_bytes(&self) -> u64 {
        self.shared.adopted_disk_bytes.load(Ordering::Relaxed)
    }
}

/// Ends an adoption, also one that was stopped or panicked.
struct Ended<F: FnOnce(bool)> {
    shared: Arc<Shared>,
    /// The other datasets.
    in_use: Vec<InUse>,
    /// Nothing is left to adopt.
    is_complete: bool,
    /// Taken when it is dropped.
    done: Option<F>,
}

impl<F: FnOnce(bool)> Drop for Ended<F> {
    fn drop(&mut self) {
        self.shared.ancestors.store(None);
        self.shared.remember_adopted();
        // Before anyone is notified: the others may be released now.
        self.in_use.clear();
        if let Some(done) = self.done.take() {
            done(self.is_complete);
        }
    }
}
