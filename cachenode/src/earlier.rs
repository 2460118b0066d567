//! An earlier snapshot of a dataset's origin, as the store asks about it: which of its blocks have the same bytes.
//!
//! It is found in the two manifests. A row that cannot be read counts as different, and its blocks are fetched.

use std::sync::Arc;

use larder_dataset::manifest::FileChange;
use larder_dataset::{BlockIndex, CacheId, ManifestError, block};
use larder_store::{Earlier, SameBlocks};
use tracing::warn;

use crate::manifest_file::MappedManifest;

/// A cache whose blocks may be adopted, and the manifest of its snapshot.
#[derive(Clone, Debug)]
pub(crate) struct EarlierCache {
    pub(crate) cache: CacheId,
    pub(crate) manifest: Arc<MappedManifest>,
}

/// The manifests of two snapshots of one origin. That they are of one is for the caller to know.
#[derive(Debug)]
pub(crate) struct EarlierSnapshot {
    pub(crate) old: EarlierCache,
    pub(crate) new: Arc<MappedManifest>,
    /// The earlier one has room of its own.
    pub(crate) is_promised: bool,
}

impl EarlierSnapshot {
    fn find_block(&self, block: BlockIndex) -> Result<Option<BlockIndex>, ManifestError> {
        let index = self.new.file_of_block(block)?;
        let Some(earlier) = self.new.find_unchanged(&self.old.manifest, index)? else { return Ok(None) };
        let nth = block.0.checked_sub(self.new.file(index)?.first_block.0);
        let first = self.old.manifest.file(earlier)?.first_block;
        Ok(nth.and_then(|nth| first.0.checked_add(nth)).map(BlockIndex))
    }

    fn runs(&self, is_stopped: &dyn Fn() -> bool, f: &mut dyn FnMut(SameBlocks) -> bool) -> Result<(), ManifestError> {
        for change in self.new.compare(&self.old.manifest).take_while(|_| !is_stopped()) {
            let FileChange::Unchanged { old, new } = change? else { continue };
            let (file, earlier) = (self.new.file(new)?, self.old.manifest.file(old)?.first_block);
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
    fn cache(&self) -> CacheId {
        self.old.cache
    }

    fn blocks(&self) -> u32 {
        self.old.manifest.totals().blocks
    }

    fn is_promised(&self) -> bool {
        self.is_promised
    }

    fn find(&self, block: BlockIndex) -> Option<BlockIndex> {
        self.find_block(block).ok().flatten()
    }

    fn each_run(&self, is_stopped: &dyn Fn() -> bool, f: &mut dyn FnMut(SameBlocks) -> bool) {
        if let Err(error) = self.runs(is_stopped, f) {
            warn!(
                snapshot = %self.old.manifest.snapshot(), %error,
                "an earlier snapshot cannot be compared to its end: its other blocks are fetched again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::fetch::tests::manifest;

    // SEMANTICS: C16
    #[test]
    fn a_comparison_ends_when_it_is_stopped_however_many_files_differ() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let old = manifest(folders[0].path(), &[1; 1000]);
        // The first file alone is the same.
        let new = manifest(folders[1].path(), &[&[1; 1][..], &[2; 999][..]].concat());
        let old = EarlierCache { cache: old.snapshot().into(), manifest: old };
        let earlier = EarlierSnapshot { old, new, is_promised: false };
        let (asked, mut found) = (Cell::new(0), 0);
        let is_stopped = || {
            asked.set(asked.get() + 1);
            asked.get() == 10
        };
        earlier.each_run(&is_stopped, &mut |run| {
            found += run.count;
            true
        });
        assert_eq!((asked.get(), found), (10, 1));
    }
}
