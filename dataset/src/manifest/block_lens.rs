//! The lengths of blocks, for callers that visit blocks in order.

use super::bytes::ManifestBytes;
use super::error::{ManifestError, corrupt};
use super::layout::{FILE_BYTES, Section};
use super::read::Manifest;
use crate::block::{self, BLOCK_BYTES, BlockIndex};

/// The most files to step over. Beyond that, a search is cheaper.
const STEPS: u32 = 64;

/// How far ahead rows are announced to the manifest's bytes, in bytes.
const AHEAD_BYTES: usize = 4 << 20;

/// The lengths of a manifest's blocks. In ascending order, a request steps from file to file; in any other order, it
/// searches.
#[derive(Debug)]
pub struct BlockLens<'a, B> {
    manifest: &'a Manifest<B>,
    /// The last file that was found.
    file: u32,
    blocks: std::ops::Range<u64>,
    size: u64,
    /// The end of the announced rows, as an offset in the section.
    announced: usize,
}

impl<B: ManifestBytes> Manifest<B> {
    /// Starts with no file found; see [`BlockLens`].
    pub const fn block_lens(&self) -> BlockLens<'_, B> {
        BlockLens { manifest: self, file: 0, blocks: 0..0, size: 0, announced: 0 }
    }
}

impl<B: ManifestBytes> BlockLens<'_, B> {
    /// The length of a block in bytes. Errors: `Corrupt`, also if the block does not exist.
    pub fn len_of(&mut self, block: BlockIndex) -> Result<u32, ManifestError> {
        let block = u64::from(block.0);
        let mut steps = 0;
        while !self.blocks.contains(&block) {
            if block < self.blocks.start || steps == STEPS {
                let file = self.manifest.file_of_block(BlockIndex(block as u32))?;
                self.go_to(file.0)?;
                // If the row does not contain the block, its bytes have changed since the search.
                return if self.blocks.contains(&block) {
                    Ok(self.found(block))
                } else {
                    Err(corrupt("block numbers"))
                };
            }
            // There is no previous file before the first, so the first step reads the first file itself.
            self.go_to(if self.blocks.end == 0 && steps == 0 { self.file } else { self.file + 1 })?;
            steps += 1;
        }
        Ok(self.found(block))
    }

    fn found(&self, block: u64) -> u32 {
        let at = (block - self.blocks.start) * BLOCK_BYTES;
        // The value is at most BLOCK_BYTES, so the cast cannot truncate.
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
