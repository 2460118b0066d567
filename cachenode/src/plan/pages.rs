//! The kernel's page cache: a block that it has needs no fetch, and its reader asks nobody for it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_dataset::{BlockIndex, FileIndex};
use tokio::sync::oneshot;

/// The page cache of a mount.
pub trait PageCache: fmt::Debug + Send + Sync {
    /// Asks whether the page at an offset of a file is cached. Does not wait. Without an answer, that is not known.
    fn ask(&self, file: FileIndex, offset: u64) -> oneshot::Receiver<bool>;
}

/// The blocks that were read since the dataset was opened. The page cache cannot have any other.
#[derive(Debug)]
pub(super) struct SeenBlocks {
    /// A bit for each block.
    words: Box<[AtomicU64]>,
    /// An earlier process may have answered reads of any block.
    are_all: AtomicBool,
}

impl SeenBlocks {
    /// For a dataset of so many blocks.
    pub(super) fn new(blocks: u32) -> Self {
        let words = (0..blocks.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect();
        Self { words, are_all: AtomicBool::new(false) }
    }

    /// Marks a block.
    pub(super) fn mark(&self, block: BlockIndex) {
        let bit = 1 << (block.0 % u64::BITS);
        // Most reads are of blocks that were read before, and need not write to memory that other threads read.
        if let Some(word) = self.word(block)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// From now on, all blocks count as read.
    pub(super) fn mark_all(&self) {
        self.are_all.store(true, Ordering::Relaxed);
    }

    /// True if the block may have been read.
    pub(super) fn contains(&self, block: BlockIndex) -> bool {
        let bit = 1 << (block.0 % u64::BITS);
        self.are_all.load(Ordering::Relaxed)
            || self.word(block).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn word(&self, block: BlockIndex) -> Option<&AtomicU64> {
        self.words.get((block.0 / u64::BITS) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_has_its_own_bit() {
        let seen = SeenBlocks::new(130);
        for block in [0, 63, 64, 129] {
            seen.mark(BlockIndex(block));
        }
        let found: Vec<u32> = (0..200).filter(|&block| seen.contains(BlockIndex(block))).collect();
        assert_eq!(found, [0, 63, 64, 129]);
        seen.mark(BlockIndex(u32::MAX));
        seen.mark_all();
        assert!((0..130).all(|block| seen.contains(BlockIndex(block))));
    }
}
