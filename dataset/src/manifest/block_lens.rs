//! The lengths of blocks, for a caller that goes through them in order.

use super::bytes::ManifestBytes;
use super::error::{ManifestError, corrupt};
use super::layout::{FILE_BYTES, Section};
use super::read::Manifest;
use crate::block::{self, BLOCK_BYTES, BlockIndex};

/// Files to step over before a search is cheaper.
const STEPS: u32 = 64;

/// Rows are announced to the manifest's bytes this far ahead, in bytes.
const AHEAD_BYTES: usize = 4 << 20;

/// The lengths of a manifest's blocks. Asked in ascending order it steps from file to file; asked in any other order it
/// searches.
#[derive(Debug)]
pub struct BlockLens<'a, B> {
    manifest: &'a Manifest<B>,
    /// The file found last.
    file: u32,
    blocks: std::ops::Range<u64>,
    size: u64,
    /// Rows up to here were announced, in bytes of the section.
    announced: usize,
}

impl<B: ManifestBytes> Manifest<B> {
    /// The lengths of the blocks.
    pub const fn block_lens(&self) -> BlockLens<'_, B> {
        BlockLens { manifest: self, file: 0, blocks: 0..0, size: 0, announced: 0 }
    }
}

impl<B: ManifestBytes> BlockLens<'_, B> {
    /// The length of a block in bytes. Errors: `Corrupt`, also when there is no such block.
    pub fn len_of(&mut self, block: BlockIndex) -> Result<u32, ManifestError> {
        let block = u64::from(block.0);
        let mut steps = 0;
        while !self.blocks.contains(&block) {
            if block < self.blocks.start || steps == STEPS {
                let file = self.manifest.file_of_block(BlockIndex(block as u32))?;
                self.go_to(file.0)?;
                // The row has changed since the search if it does not have the block.
                return if self.blocks.contains(&block) {
                    Ok(self.found(block))
                } else {
                    Err(corrupt("block numbers"))
                };
            }
            // The first file has no predecessor to step from.
            self.go_to(if self.blocks.end == 0 && steps == 0 { self.file } else { self.file + 1 })?;
            steps += 1;
        }
        Ok(self.found(block))
    }

    fn found(&self, block: u64) -> u32 {
        let at = (block - self.blocks.start) * BLOCK_BYTES;
        // At most BLOCK_BYTES, which a u32 holds.
        (self.size - at).min(BLOCK_BYTES) as u32
    }

    fn go_to(&mut self, file: u32) -> Result<(), ManifestError> {
        let row_at = file as usize * FILE_BYTES;
        if row_at + AHEAD_BYTES / 2 > self.announced || row_at + 2 * AHEAD_BYTES < self.announced {
            self.manifest.sections.will_read(Section::Files, row_at..row_at + AHEAD_BYTES);
            self.announced = row_at + AHEAD_BYTES;
        }
        let (first, size) = self.manifest.blocks_of(file)?;
        (self.file, self.size) = (file, size);
        self.blocks = u64::from(first.0)..u64::from(first.0) + block::block_count(size);
        Ok(())
    }
}
