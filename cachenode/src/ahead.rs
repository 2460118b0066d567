//! Detects readers that read blocks in order, and says when to fetch ahead of them.
//!
//! A shuffled epoch hardly ever looks like that, and nothing is fetched ahead for it. A *stream* begins when the blocks before
//! a missing one were missed recently: two of them within a large file (or one, if the file begins there), three of them
//! across files. A *mark* lies in the middle of the blocks that were fetched ahead: the read of that block continues the
//! stream. So a stream costs the readers of other blocks a few loads of the marks, and it ends by itself.
//!
//! Invariants: `touched` takes no lock. There are at most [`STREAMS`] streams; a new one replaces the oldest.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use larder_dataset::BlockIndex;

/// The most streams at a time.
pub(crate) const STREAMS: usize = 4;

/// Bytes fetched ahead of a stream. All streams together stay below the window's 64 MiB.
pub(crate) const AHEAD_BYTES: u64 = 12 << 20;

/// The most blocks fetched ahead of a stream.
pub(crate) const AHEAD_BLOCKS: usize = 32;

/// The most misses remembered: those of a few dozen concurrent readers.
const REMEMBERED: usize = 64;

/// Blocks of the snapshot for each miss that is remembered. With more misses remembered, a shuffled order would contain
/// neighbours too often.
const BLOCKS_PER_MISS: u32 = 64;

/// No block: there are fewer than `u32::MAX` of them.
const NONE: u32 = u32::MAX;

/// The blocks that were missed recently, and the marks.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    missed: Mutex<Missed>,
    /// The marked block in the upper half; in the lower half the last block that was fetched ahead, after which the stream
    /// continues.
    marks: [AtomicU64; STREAMS],
    next_mark: AtomicUsize,
}

#[derive(Debug)]
struct Missed {
    blocks: [u32; REMEMBERED],
    next: usize,
    remembered: usize,
}

impl Missed {
    fn contains(&self, block: u32) -> bool {
        self.blocks.contains(&block)
    }

    fn add(&mut self, block: u32) {
        let next = self.next;
        self.blocks[next] = block;
        self.next = (next + 1) % self.remembered;
    }
}

impl ReadAhead {
    /// For a snapshot of `blocks` blocks.
    pub(crate) fn new(blocks: u32) -> Self {
        let remembered = ((blocks / BLOCKS_PER_MISS) as usize).clamp(4, REMEMBERED);
        Self {
            missed: Mutex::new(Missed { blocks: [NONE; REMEMBERED], next: 0, remembered }),
            marks: [const { AtomicU64::new(u64::MAX) }; STREAMS],
            next_mark: AtomicUsize::new(0),
        }
    }

    /// Records that a reader missed a block; true if a stream begins there. `first_of_file` is the first block of its file.
    pub(crate) fn missed(&self, block: BlockIndex, first_of_file: BlockIndex) -> bool {
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        if missed.contains(block.0) {
            // Another part of a block that was missed already.
            return false;
        }
        let follows = |back: u32| block.0.checked_sub(back).is_some_and(|before| missed.contains(before));
        let in_file = block.0 - first_of_file.0;
        let begins = follows(1) && (in_file == 1 || (follows(2) && (in_file > 1 || follows(3))));
        missed.add(block.0);
        begins
    }

    /// Records the end of a run of blocks that one GET fetches, so that the block after the run counts as following it.
    pub(crate) fn fetched_run(&self, last: BlockIndex, blocks: usize) {
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        for block in last.0.saturating_sub(2)..=last.0 {
            if blocks > 2 && !missed.contains(block) {
                missed.add(block);
            }
        }
    }

    /// Marks a block of a stream that is fetched up to `last`.
    pub(crate) fn mark(&self, block: BlockIndex, last: BlockIndex) {
        let at = self.next_mark.fetch_add(1, Ordering::Relaxed) % STREAMS;
        self.marks[at].store((u64::from(block.0) << 32) | u64::from(last.0), Ordering::Relaxed);
    }

    /// If the block is marked, removes the mark and returns the last block that was fetched ahead. One caller gets it.
    pub(crate) fn touched(&self, block: BlockIndex) -> Option<BlockIndex> {
        self.marks.iter().find_map(|mark| {
            let found = mark.load(Ordering::Relaxed);
            let taken = (found >> 32) as u32 == block.0
                && found != u64::MAX
                && mark.compare_exchange(found, u64::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            taken.then_some(BlockIndex(found as u32))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u32) -> BlockIndex {
        BlockIndex(number)
    }

    #[test]
    fn a_large_file_is_a_stream_from_its_second_block_and_small_files_from_the_fourth() {
        let ahead = ReadAhead::new(1 << 20);
        assert!(!ahead.missed(block(10), block(10)));
        assert!(ahead.missed(block(11), block(10)), "the second block of a large file");
        assert!(!ahead.missed(block(11), block(10)), "another part of it");
        for first in 20..23 {
            assert!(!ahead.missed(block(first), block(first)));
        }
        assert!(ahead.missed(block(23), block(23)), "the fourth file in a row");
        for first in 0..3 {
            assert!(!ahead.missed(block(first), block(first)), "fewer than three come before");
        }
        assert!(!ahead.missed(block(501), block(400)) && !ahead.missed(block(502), block(400)), "two in a large file");
        assert!(ahead.missed(block(503), block(400)), "three in a large file");
    }

    #[test]
    fn a_run_that_came_at_once_is_followed() {
        let ahead = ReadAhead::new(1 << 20);
        ahead.missed(block(30), block(30));
        ahead.fetched_run(block(59), 40);
        assert!(ahead.missed(block(60), block(60)));
    }

    #[test]
    fn readers_of_their_own_streams_do_not_hide_each_other_and_old_misses_are_forgotten() {
        let ahead = ReadAhead::new(1 << 20);
        for reader in 0..30 {
            assert!(!ahead.missed(block(reader * 1000), block(reader * 1000)));
        }
        for reader in 0..30 {
            assert!(ahead.missed(block(reader * 1000 + 1), block(reader * 1000)));
        }
        for other in 0..64 {
            ahead.missed(block(100_000 + other * 10), block(100_000));
        }
        assert!(!ahead.missed(block(2), block(0)));
    }

    #[test]
    fn a_shuffled_epoch_of_a_small_dataset_is_no_stream() {
        use rand::SeedableRng;
        use rand::rngs::StdRng;
        use rand::seq::SliceRandom;
        let mut begun = 0;
        for epoch in 0..20 {
            let mut order: Vec<u32> = (0..300).collect();
            order.shuffle(&mut StdRng::seed_from_u64(epoch));
            let ahead = ReadAhead::new(300);
            begun += order.iter().filter(|&&at| ahead.missed(block(at), block(at))).count();
        }
        assert_eq!(begun, 0);
    }

    #[test]
    fn a_mark_is_found_once_and_the_oldest_makes_room() {
        let ahead = ReadAhead::new(1 << 20);
        ahead.mark(block(7), block(9));
        assert_eq!(ahead.touched(block(8)), None);
        assert_eq!(ahead.touched(block(7)), Some(block(9)));
        assert_eq!(ahead.touched(block(7)), None);
        assert_eq!(ahead.touched(block(u32::MAX)), None);
        for number in 0..=STREAMS as u32 {
            ahead.mark(block(number), block(number));
        }
        assert_eq!((ahead.touched(block(0)), ahead.touched(block(1))), (None, Some(block(1))));
    }
}
