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

/// How long the adoption waits for the rebuild before it looks whether it was stopped.
const STEP: Duration = Duration::from_secs(1);

impl DatasetCache {
    /// Adopts the blocks that the store has of other snapshots of the same origin, without copying them, on a thread of
    /// its own. Calls `done` when that has ended, however it ends; `done` must not block.
    pub fn adopt(&self, earlier: Vec<Arc<dyn Earlier>>, done: impl FnOnce() + Send + 'static) {
        if self.is_adopting() {
            return done();
        }
        let shared = Arc::clone(&self.shared);
        let open = |earlier| {
            Ancestor::open(&shared.base, earlier).unwrap_or_else(|error| {
                warn!(
                    dataset = shared.config.name, %error,
                    "the cache of another snapshot cannot be read: its blocks are fetched again"
                );
                None
            })
        };
        let ancestors: Arc<Vec<Ancestor>> = Arc::new(earlier.into_iter().filter_map(open).collect());
        if ancestors.is_empty() {
            return done();
        }
        shared.ancestors.store(Some(Arc::clone(&ancestors)));
        let ended = Ended { shared: Arc::clone(&shared), done: Some(done) };
        let adopt = move || {
            let _ended = ended;
            while !shared.wait_rebuilt(STEP) && shared.is_rebuilding() && !shared.is_stopped() {}
            ancestors.iter().for_each(|ancestor| shared.adopt(ancestor));
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

    /// Calls `use_bytes` with all bytes of a block that is to be adopted, checked against their CRCs. None if the block
    /// is in no other snapshot's cache, or no adoption is under way. Blocks on the disk.
    pub fn read_earlier<R>(&self, block: BlockIndex, block_len: u32, use_bytes: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let ancestors = self.shared.ancestors.load_full()?;
        let mut use_bytes = Some(use_bytes);
        let mut used = |bytes: &[u8]| use_bytes.take().map(|use_bytes| use_bytes(bytes));
        let used = ancestors.iter().find_map(|ancestor| ancestor.read(block, block_len, &mut used)).flatten()?;
        let counters = &self.shared.base.counters;
        counters.hits.add(1);
        counters.hit_bytes.add(block_len.into());
        Some(used)
    }

    /// Frees the room of adopted segments that no dataset uses any more. Called after another dataset was released.
    /// Blocks on the disk.
    pub fn free_unused(&self) {
        if !self.is_adopting() && !self.is_rebuilding() {
            self.shared.free_unused();
        }
    }

    /// Bytes of adopted blocks on the disk, which other datasets may share.
    pub(crate) fn adopted_disk_bytes(&self) -> u64 {
        self.shared.adopted_disk_bytes.load(Ordering::Relaxed)
    }
}

/// Ends an adoption, also one that was stopped or panicked.
struct Ended<F: FnOnce()> {
    shared: Arc<Shared>,
    /// Taken when it is dropped.
    done: Option<F>,
}

impl<F: FnOnce()> Drop for Ended<F> {
    fn drop(&mut self) {
        self.shared.ancestors.store(None);
        self.shared.remember_adopted();
        if let Some(done) = self.done.take() {
            done();
        }
    }
}
