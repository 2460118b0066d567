//! An earlier snapshot of a dataset's origin, as the store asks about it: which of its blocks have the same bytes.
//!
//! It is found in the two manifests. A row that cannot be read counts as different, and its blocks are fetched.

use std::sync::Arc;

use larder_dataset::manifest::FileChange;
use larder_dataset::{BlockIndex, ManifestError, SnapshotId, block};
use larder_store::{Earlier, SameBlocks};
use tracing::warn;

use crate::manifest_file::MappedManifest;

/// The manifests of two snapshots of one origin. That they are of one is for the caller to know.
#[derive(Debug)]
pub(crate) struct EarlierSnapshot {
    pub(crate) old: Arc<MappedManifest>,
    pub(crate) new: Arc<MappedManifest>,
}

impl EarlierSnapshot {
    fn find_block(&self, block: BlockIndex) -> Result<Option<BlockIndex>, ManifestError> {
        let index = self.new.file_of_block(block)?;
        let Some(earlier) = self.new.find_unchanged(&self.old, index)? else { return Ok(None) };
        let nth = block.0.checked_sub(self.new.file(index)?.first_block.0);
        let first = self.old.file(earlier)?.first_block;
        Ok(nth.and_then(|nth| first.0.checked_add(nth)).map(BlockIndex))
    }

    fn runs(&self, f: &mut dyn FnMut(SameBlocks) -> bool) -> Result<(), ManifestError> {
        for change in self.new.compare(&self.old) {
            let FileChange::Unchanged { old, new } = change? else { continue };
            let (file, earlier) = (self.new.file(new)?, self.old.file(old)?.first_block);
            // A manifest has at most u32::MAX blocks.
            let count = block::block_count(file.size) as u32;
            if count > 0 && !f(SameBlocks { first: file.first_block, earlier, count }) {
                break;
            }
        }
        Ok(())
    }
}

impl Earlier for EarlierSnapshot {
    fn snapshot(&self) -> SnapshotId {
        self.old.snapshot()
    }

    fn blocks(&self) -> u32 {
        self.old.totals().blocks
    }

    fn find(&self, block: BlockIndex) -> Option<BlockIndex> {
        self.find_block(block).ok().flatten()
    }

    fn each_run(&self, f: &mut dyn FnMut(SameBlocks) -> bool) {
        if let Err(error) = self.runs(f) {
            warn!(
                snapshot = %self.old.snapshot(), %error,
                "an earlier snapshot cannot be compared to its end: its other blocks are fetched again"
            );
        }
    }
}
