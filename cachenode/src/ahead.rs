//! Detects readers that read blocks in order, and says when to fetch ahead of them.
//!
//! A *stream* begins with a missing block of which those before it were missed recently. Within a large file these are
//! the two blocks before it (or one, if the file begins there), and the stream ends with the file. Across files they
//! are the `k` files before it, where a run of files that one GET fetched counts as one. A stream continues when the
//! middle of the blocks that it brought is read and half of those before the middle were read, too; otherwise it ends.
//!
//! A shuffled epoch must not look like a stream across files. Of `n` files in random order, the `k` before a given one
//! are all among the `m` that were read last before it with the probability
//! `m/(n-1) * (m-1)/(n-2) * ... * (m-k+1)/(n-k)`, and there are fewer than `n` files to which that can happen. (If some
//! are in the store, fewer are missed, in a random order as well.) A stream that begins falsely brings 32 blocks. The
//! middle one comes after half of the 16 before it with the probability 9/17, and then 16 more are brought, and so on;
//! as some of these were read already, that makes 79 GETs in the mean (a test simulates it). `k` is the least number
//! for which `n` times the probability times 128 GETs is at most 1/1000: fewer than one false GET in 1,000 epochs. With
//! `m = n/64`, but 4 to 64, that is
//!
//! | files | 50 | 200 | 2,000 | 5,000 | 10,000 | 100,000 | 1,000,000 |
//! |---|---|---|---|---|---|---|---|
//! | `m` | 6 | 4 | 31 | 64 | 64 | 64 | 64 |
//! | `k` | 6 | 4 | 5 | 5 | 5 | 4 | 3 |
//!
//! Fewer than 26 files have no streams across files.
//!
//! Invariants: `touched` takes no lock. There are at most [`STREAMS`] streams; a new one replaces the oldest.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use larder_dataset::BlockIndex;

/// The most streams at a time.
pub(crate) const STREAMS: usize = 4;

/// Bytes fetched ahead of a stream. Of all streams together, half of the window holds what the store does not.
pub(crate) const AHEAD_BYTES: u64 = 12 << 20;

/// The most blocks fetched ahead of a stream. At most 64, the bits of [`Stream::read`].
pub(crate) const AHEAD_BLOCKS: usize = 32;

/// The most misses remembered: those of a few dozen concurrent readers.
const REMEMBERED: u32 = 64;

/// The least misses remembered, and the least files in a row that are evidence of a stream.
const REMEMBERED_LEAST: u32 = 4;
const EVIDENCE_LEAST: u32 = 3;

/// Files for each miss that is remembered.
const FILES_PER_MISS: u32 = 64;

/// GETs of a stream that began falsely: more than the mean.
const FALSE_GETS: f64 = 128.0;

/// False GETs in a shuffled epoch that are expected at most.
const FALSE_GETS_MOST: f64 = 1e-3;

/// No block: there are fewer than `u32::MAX` of them.
const NONE: u32 = u32::MAX;

/// A slot without a stream.
const NO_STREAM: u64 = u64::MAX;

/// How many misses are remembered, and how many files in a row begin a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Evidence {
    remembered: u32,
    /// None: however many they are.
    files_in_row: Option<u32>,
}

impl Evidence {
    /// For a dataset of this many files, or runs of files that one GET fetches.
    fn for_files(files: u32) -> Self {
        let base = (files / FILES_PER_MISS).clamp(REMEMBERED_LEAST, REMEMBERED);
        let enough = |k: &u32| false_streams(files, base.max(*k), *k) * FALSE_GETS <= FALSE_GETS_MOST;
        let files_in_row = (EVIDENCE_LEAST..=files.saturating_sub(1).min(REMEMBERED)).find(enough);
        Self { remembered: base.max(files_in_row.unwrap_or_default()), files_in_row }
    }
}

/// More streams than are expected to begin in a shuffled epoch of `files` if `k` files in a row of the last `m` begin
/// one.
fn false_streams(files: u32, m: u32, k: u32) -> f64 {
    let n = f64::from(files);
    (0..k).map(|i| (f64::from(m - i) / (n - 1.0 - f64::from(i))).min(1.0)).product::<f64>() * n
}

/// A stream: the blocks that were fetched ahead, and where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    /// The first and the last block that were fetched ahead.
    pub(crate) first: BlockIndex,
    pub(crate) last: BlockIndex,
    /// No block after this one is fetched.
    pub(crate) limit: BlockIndex,
    /// One bit for each of the blocks that was read, the first in the lowest.
    pub(crate) read: u64,
}

impl Stream {
    /// The position of the block at which to continue.
    fn middle(self) -> u32 {
        (self.last.0 - self.first.0).div_ceil(2)
    }
}

/// Where a stream that begins may fetch ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    /// To the end of the file.
    InFile,
    /// Beyond it.
    AcrossFiles,
}

/// The blocks that were missed recently, and the streams.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    missed: Mutex<Missed>,
    evidence: Evidence,
    slots: [Slot; STREAMS],
    next_slot: AtomicUsize,
}

/// A stream, for readers that take no lock. Those that see it half replaced end it too early or too late.
#[derive(Debug)]
struct Slot {
    /// The first block in the upper half, the last one in the lower half.
    blocks: AtomicU64,
    limit: AtomicU32,
    read: AtomicU64,
}

/// Runs of blocks that were missed.
#[derive(Clone, Debug)]
struct Missed {
    /// The first and the last block of each.
    runs: [(u32, u32); REMEMBERED as usize],
    next: usize,
}

impl Missed {
    /// The run with this block.
    fn find(&self, block: u32) -> Option<(u32, u32)> {
        self.runs.iter().copied().find(|&(first, last)| first <= block && block <= last)
    }

    fn add(&mut self, run: (u32, u32), remembered: u32) {
        let next = self.next;
        self.runs[next] = run;
        self.next = (next + 1) % remembered as usize;
    }
}

impl ReadAhead {
    /// For a snapshot of this many files, or runs of files that one GET fetches.
    pub(crate) fn new(files: u32) -> Self {
        Self::with_evidence(Evidence::for_files(files))
    }

    fn with_evidence(evidence: Evidence) -> Self {
        let slot = || Slot { blocks: AtomicU64::new(NO_STREAM), limit: AtomicU32::new(0), read: AtomicU64::new(0) };
        Self {
            missed: Mutex::new(Missed { runs: [(NONE, NONE); REMEMBERED as usize], next: 0 }),
            evidence,
            slots: std::array::from_fn(|_| slot()),
            next_slot: AtomicUsize::new(0),
        }
    }

    /// Records that a reader missed a block; says if a stream begins there. `first_of_file` is the first block of its
    /// file; `previous` finds the first block of the file before the one that begins at a block.
    pub(crate) fn missed(
        &self,
        block: BlockIndex,
        first_of_file: BlockIndex,
        previous: impl Fn(BlockIndex) -> Option<BlockIndex>,
    ) -> Option<Begins> {
        let before = {
            let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
            if missed.find(block.0).is_some() {
                // Another part of a block that was missed already.
                return None;
            }
            // A copy: `previous` reads the manifest, which may wait for its disk, and must not hold this lock.
            let before = missed.clone();
            missed.add((block.0, block.0), self.evidence.remembered);
            before
        };
        let follows = |back: u32| block.0.checked_sub(back).is_some_and(|block| before.find(block).is_some());
        let in_file = block.0 - first_of_file.0;
        if in_file > 0 {
            return (follows(1) && (in_file == 1 || follows(2))).then_some(Begins::InFile);
        }
        let mut first = block;
        for _ in 0..self.evidence.files_in_row? {
            let file = previous(first)?;
            let (run, _) = before.find(file.0)?;
            first = BlockIndex(run);
        }
        Some(Begins::AcrossFiles)
    }

    /// Records a run of blocks that one GET fetches for a missed one.
    pub(crate) fn fetched_run(&self, first: BlockIndex, last: BlockIndex) {
        if first != last {
            let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
            missed
                .runs
                .iter_mut()
                .filter(|run| first.0 <= run.0 && run.1 <= last.0)
                .for_each(|run| *run = (NONE, NONE));
            missed.add((first.0, last.0), self.evidence.remembered);
        }
    }

    /// Starts or continues a stream.
    pub(crate) fn follow(&self, stream: Stream) {
        let slot = &self.slots[self.next_slot.fetch_add(1, Ordering::Relaxed) % STREAMS];
        // First, so that a reader of a half replaced slot finds no stream in most cases.
        slot.blocks.store(NO_STREAM, Ordering::Relaxed);
        slot.limit.store(stream.limit.0, Ordering::Relaxed);
        slot.read.store(stream.read, Ordering::Relaxed);
        // Pairs with the Acquire of `touched`: a reader that sees the blocks sees their limit.
        slot.blocks.store((u64::from(stream.first.0) << 32) | u64::from(stream.last.0), Ordering::Release);
    }

    /// Records the read of a block. If it is the middle of what a stream brought, the stream ends, and is returned if
    /// it is to continue. One caller gets it.
    pub(crate) fn touched(&self, block: BlockIndex) -> Option<Stream> {
        self.slots.iter().find_map(|slot| slot.touched(block))
    }
}

impl Slot {
    fn touched(&self, block: BlockIndex) -> Option<Stream> {
        let blocks = self.blocks.load(Ordering::Acquire);
        let (first, last) = ((blocks >> 32) as u32, blocks as u32);
        if block.0 < first || block.0 > last || blocks == NO_STREAM {
            return None;
        }
        let at = block.0 - first;
        // A stream has at most 64 blocks; the modulo keeps a half replaced slot from overflowing the shift.
        let read = self.read.fetch_or(1 << (at % u64::BITS), Ordering::Relaxed);
        let limit = BlockIndex(self.limit.load(Ordering::Relaxed));
        let stream = Stream { first: BlockIndex(first), last: BlockIndex(last), limit, read };
        let middle = stream.middle();
        // The exchange: of several readers of the middle block, one continues the stream.
        if at != middle
            || self.blocks.compare_exchange(blocks, NO_STREAM, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return None;
        }
        let read_before = (read & ((1 << middle) - 1)).count_ones();
        (2 * read_before >= middle).then_some(stream)
    }
}

#[cfg(test)]
mod tests;
