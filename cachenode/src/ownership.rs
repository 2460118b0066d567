//! Which of a dataset's blocks this node owns: those that it has to keep.
//!
//! [`OwnedBlocks`] applies the [`Sharing`] of a dataset to the blocks of its manifest, for the store, which gives the room of
//! disowned blocks to owned ones.
//!
//! Invariant: the answers are a pure function of the manifest and the present list of nodes.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use larder_dataset::block::block_count;
use larder_dataset::{BlockIndex, FileIndex};
use larder_store::Ownership;

use crate::extent::place_key;
use crate::manifest_file::MappedManifest;
use crate::sharing::Sharing;

/// Files that are passed one by one to the next block. Beyond that, a binary search is quicker.
const STEPS_MOST: usize = 32;

/// The blocks of a dataset that this node owns.
#[derive(Debug)]
pub(crate) struct OwnedBlocks {
    manifest: Arc<MappedManifest>,
    sharing: Arc<Sharing>,
}

impl OwnedBlocks {
    pub(crate) fn new(manifest: Arc<MappedManifest>, sharing: Arc<Sharing>) -> Self {
        Self { manifest, sharing }
    }

    /// The file of a block that is not before the file `near`.
    fn file_of(&self, block: BlockIndex, near: FileIndex) -> Option<FileIndex> {
        for index in (near.0..).map(FileIndex).take(STEPS_MOST) {
            let file = self.manifest.file(index).ok()?;
            if u64::from(block.0) < u64::from(file.first_block.0) + block_count(file.size) {
                return (block >= file.first_block).then_some(index);
            }
        }
        self.manifest.file_of_block(block).ok()
    }
}

impl Ownership for OwnedBlocks {
    fn version(&self) -> Option<u64> {
        self.sharing.owned().map(|owned| owned.version())
    }

    fn retain_disowned(&self, version: u64, blocks: &mut Vec<BlockIndex>) -> bool {
        let Some(owned) = self.sharing.owned().filter(|owned| owned.version() == version) else { return false };
        let mut near = blocks.first().and_then(|&first| self.manifest.file_of_block(first).ok());
        blocks.retain(|&block| {
            let Some(file) = near.and_then(|near| self.file_of(block, near)) else { return false };
            near = Some(file);
            !owned.contains(place_key(&self.manifest, file, block))
        });
        true
    }
}
