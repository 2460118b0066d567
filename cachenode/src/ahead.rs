//! Notices readers that take blocks one after the other, and says what to bring in ahead of them.
//!
//! A shuffled epoch hardly ever looks like that, and nothing is brought in for it. A *stream* begins when the blocks before
//! a missing one were missed lately: two within a large file, or all there are; three across files. Half-way into what was
//! brought in ahead lies a *mark*: whoever reads that block carries the stream on. So a stream costs readers of other
//! blocks a few loads of the marks, and ends by itself.
//!
//! Invariant: `touched` takes no lock. At most [`STREAMS`] streams at a time; a newer one replaces the oldest.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use larder_dataset::BlockIndex;

/// Streams followed at a time.
pub(crate) const STREAMS: usize = 4;

/// Bytes brought in ahead of a stream. All streams together stay below the window's 64 MiB.
pub(crate) const AHEAD_BYTES: u64 = 12 << 20;

/// Blocks brought in ahead of a stream, at most.
pub(crate) const AHEAD_BLOCKS: usize = 32;

/// Misses remembered at most: those of a few dozen readers at once.
const REMEMBERED: usize = 64;

/// One miss is remembered for so many blocks: with fewer blocks a shuffled order has neighbours in it too often.
const BLOCKS_A_MISS: u32 = 64;

/// No block: there are fewer than `u32::MAX` of them.
const NONE: u32 = u32::MAX;

/// What was missed lately, and the marks.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    missed: Mutex<Missed>,
    /// The block in the upper half, the last block that was brought in ahead in the lower: it goes on behind that.
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
    fn knows(&self, block: u32) -> bool {
        self.blocks.contains(&block)
    }

    fn note(&mut self, block: u32) {
        let next = self.next;
        self.blocks[next] = block;
        self.next = (next + 1) % self.remembered;
    }
}

impl ReadAhead {
    /// For a snapshot of so many blocks.
    pub(crate) fn new(blocks: u32) -> Self {
        let remembered = ((blocks / BLOCKS_A_MISS) as usize).clamp(4, REMEMBERED);
        Self {
            missed: Mutex::new(Missed { blocks: [NONE; REMEMBERED], next: 0, remembered }),
            marks: [const { AtomicU64::new(u64::MAX) }; STREAMS],
            next_mark: AtomicUsize::new(0),
        }
    }

    /// Notes that a reader misses a block; true if that begins a stream. `first_of_file` is the first block of its file.
    pub(crate) fn missed(&self, block: BlockIndex, first_of_file: BlockIndex) -> bool {
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        if missed.knows(block.0) {
            // Another piece of it.
            return false;
        }
        let follows = |back: u32| block.0.checked_sub(back).is_some_and(|before| missed.knows(before));
        let in_file = block.0 - first_of_file.0;
        let begins = follows(1) && (in_file == 1 || (follows(2) && (in_file > 1 || follows(3))));
        missed.note(block.0);
        begins
    }

    /// Notes the end of a run of blocks that is brought in at once: the next one follows it.
    pub(crate) fn brought(&self, last: BlockIndex, blocks: usize) {
        let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        for block in last.0.saturating_sub(2)..=last.0 {
            if blocks > 2 && !missed.knows(block) {
                missed.note(block);
            }
        }
    }

    /// Puts a mark on a block of a stream that has been brought in up to `last`.
    pub(crate) fn mark(&self, block: BlockIndex, last: BlockIndex) {
        let at = self.next_mark.fetch_add(1, Ordering::Relaxed) % STREAMS;
        self.marks[at].store((u64::from(block.0) << 32) | u64::from(last.0), Ordering::Relaxed);
    }

    /// If the block has a mark, takes that away and gives the last block that was brought in: for each mark to one caller.
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
        assert!(!ahead.missed(block(11), block(10)), "another piece of it");
        for first in 20..23 {
            assert!(!ahead.missed(block(first), block(first)));
        }
        assert!(ahead.missed(block(23), block(23)), "the fourth file in a row");
        for first in 0..3 {
            assert!(!ahead.missed(block(first), block(first)), "less than three come before");
        }
        assert!(!ahead.missed(block(501), block(400)) && !ahead.missed(block(502), block(400)), "two in a large file");
        assert!(ahead.missed(block(503), block(400)), "three in a large file");
    }

    #[test]
    fn a_run_that_came_at_once_is_followed() {
        let ahead = ReadAhead::new(1 << 20);
        ahead.missed(block(30), block(30));
        ahead.brought(block(59), 40);
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
