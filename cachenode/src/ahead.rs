//! Detects readers that read blocks in order, and says when to fetch ahead of them.
//!
//! A *stream* begins with a missing block of which those before it were missed recently. Within a large file these are
//! the two blocks before it (or one, if the file begins there), and the stream ends with the file. Across files they
//! are the `k` files before it, where a run of files that one GET fetched counts as one. `streams` has the streams, and
//! says how far ahead of each is fetched and when it ends.
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
//! Invariant: a read of a block that is not ahead of a stream takes no lock.

mod streams;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use larder_dataset::BlockIndex;

pub(crate) use streams::{AHEAD_BLOCKS, AHEAD_BYTES_LEAST, AHEAD_BYTES_MOST, NO_LIMIT, Next};
use streams::{STREAMS, Streams};

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

/// The range of a stream without blocks ahead: it begins after its end.
const NOTHING_AHEAD: u64 = (NONE as u64) << 32;

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
    streams: Mutex<Streams>,
    /// The blocks ahead of each stream, for readers that take no lock: the first in the upper half, the last in the
    /// lower half.
    ahead: [AtomicU64; STREAMS],
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
        Self {
            missed: Mutex::new(Missed { runs: [(NONE, NONE); REMEMBERED as usize], next: 0 }),
            evidence,
            streams: Mutex::default(),
            ahead: std::array::from_fn(|_| AtomicU64::new(NOTHING_AHEAD)),
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

    /// Begins a stream at a block that is being read. Nothing after `limit` is fetched. Returns what is to be fetched
    /// ahead of it now.
    pub(crate) fn begin(&self, block: BlockIndex, limit: BlockIndex) -> Option<Next> {
        self.change(|streams| streams.begin(block, limit))
    }

    /// Records that the blocks of a stream up to `last` are here or in flight, and the last of them that was not here.
    /// Returns what is to be fetched next.
    pub(crate) fn extended(&self, stream: u64, last: BlockIndex, fetched: Option<BlockIndex>) -> Option<Next> {
        self.change(|streams| streams.extended(stream, last, fetched))
    }

    /// Ends a stream for which nothing more is fetched.
    pub(crate) fn end(&self, stream: u64) {
        self.change(|streams| streams.end(stream));
    }

    /// Records the read of a block. Returns what is to be fetched ahead of it now.
    pub(crate) fn read(&self, block: BlockIndex) -> Option<Next> {
        let has_it = |ahead: &AtomicU64| {
            let ahead = ahead.load(Ordering::Relaxed);
            (ahead >> 32) as u32 <= block.0 && block.0 <= ahead as u32
        };
        if !self.ahead.iter().any(has_it) {
            return None;
        }
        self.change(|streams| streams.read(block))
    }

    /// Records that a read waits for a block. Returns what is to be fetched ahead of it now.
    pub(crate) fn waited(&self, block: BlockIndex) -> Option<Next> {
        self.change(|streams| streams.waited(block))
    }

    /// Records that a block was dropped before it was read.
    pub(crate) fn dropped(&self, block: BlockIndex) {
        self.change(|streams| streams.dropped(block));
    }

    /// Changes the streams, and shows what is ahead of them.
    fn change<T>(&self, change: impl FnOnce(&mut Streams) -> T) -> T {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut streams);
        for (shown, range) in self.ahead.iter().zip(streams.ahead()) {
            let range = range.map_or(NOTHING_AHEAD, |(first, last)| (u64::from(first) << 32) | u64::from(last));
            // Most are the same, and other threads read them.
            if shown.load(Ordering::Relaxed) != range {
                shown.store(range, Ordering::Relaxed);
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests;
