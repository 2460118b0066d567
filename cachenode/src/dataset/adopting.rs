//! Blocks of another snapshot of the dataset's origin, which the store adopts.

use std::sync::Arc;

use larder_dataset::CacheId;
use larder_store::Earlier;

use super::Dataset;
use crate::earlier::{EarlierCache, EarlierSnapshot};

impl Dataset {
    /// Takes over what the store has of earlier snapshots of the same origin; those of them that are `promised` have
    /// room of their own. Calls `done` when that has ended, with true if nothing is left to adopt. `done` must not
    /// block.
    pub(crate) fn adopt(
        &self,
        earlier: Vec<EarlierCache>,
        promised: &[CacheId],
        done: impl FnOnce(bool) + Send + 'static,
    ) {
        let snapshot = |old: EarlierCache| {
            let (new, is_promised) = (Arc::clone(&self.manifest), promised.contains(&old.cache));
            Arc::new(EarlierSnapshot { old, new, is_promised }) as Arc<dyn Earlier>
        };
        self.cache.adopt(earlier.into_iter().map(snapshot).collect(), done);
    }

    /// True while blocks of another snapshot are adopted.
    pub(crate) fn is_adopting(&self) -> bool {
        self.cache.is_adopting()
    }

    /// Frees the room of adopted blocks that no dataset uses. Blocks on the disk.
    pub(crate) fn free_unused(&self) {
        self.cache.free_unused();
    }
}
