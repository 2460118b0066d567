//! The lengths of a dataset's blocks and their files, for the store.

use std::sync::Arc;

use larder_dataset::BlockIndex;
use larder_store::{BlockLens, FileSpan};

use crate::manifest_file::MappedManifest;

/// The lengths of blocks, as the manifest has them.
pub(super) struct ManifestLens(pub(super) Arc<MappedManifest>);

impl BlockLens for ManifestLens {
    fn len_of(&self, block: BlockIndex) -> Option<u32> {
        self.0.block_lens().len_of(block).ok()
    }

    fn in_order(&self) -> Box<dyn FnMut(BlockIndex) -> Option<u32> + '_> {
        let mut lens = self.0.block_lens();
        Box::new(move |block| lens.len_of(block).ok())
    }

    fn file_of(&self, block: BlockIndex) -> Option<FileSpan> {
        let file = self.0.file(self.0.file_of_block(block).ok()?).ok()?;
        Some(FileSpan { first: file.first_block, bytes: file.size })
    }
}
