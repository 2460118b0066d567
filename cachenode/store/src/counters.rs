//! The store's counters. The struct is passed in, so that metrics and tests read the same numbers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows. It occupies a cache line of its own, so that cores updating different counters do not slow
/// each other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counter(AtomicU64);

impl Counter {
    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

/// Counts for one store since it was opened, summed over all its datasets.
#[derive(Debug, Default)]
pub struct StoreCounters {
    /// Reads of a cached block, whole or in part.
    pub hits: Counter,
    /// Bytes requested by those reads.
    pub hit_bytes: Counter,
    /// Reads of a block that was not cached, for any reason.
    pub misses: Counter,
    /// Blocks written.
    pub admitted: Counter,
    /// Bytes of the blocks written.
    pub admitted_bytes: Counter,
    /// Blocks adopted from another snapshot of their origin.
    pub adopted: Counter,
    /// Bytes of the blocks adopted.
    pub adopted_bytes: Counter,
    /// Blocks that were not kept: the policy refused, admissions are paused, or a rebuild is in progress.
    pub refused: Counter,
    /// Blocks that were fetched and not written, because too many waited for the disk already.
    pub unwritten: Counter,
    /// Blocks that a policy evicted to make room.
    pub evicted: Counter,
    /// Bytes of the blocks evicted.
    pub evicted_bytes: Counter,
    /// Blocks that another node owns now and that were dropped to make room for a block of this node.
    pub disowned: Counter,
    /// Records found cut off or never completely written.
    pub corrupt_torn: Counter,
    /// Records found to belong to another block or snapshot.
    pub corrupt_foreign: Counter,
    /// Records whose bytes have changed.
    pub corrupt_rotten: Counter,
    /// Reads that failed on the disk; each was a miss.
    pub read_errors: Counter,
    /// Blocks that could not be written.
    pub write_errors: Counter,
    /// Changes to the index that failed.
    pub index_errors: Counter,
    /// Changes to the index that were dropped because its queue was full.
    pub index_dropped: Counter,
}

impl StoreCounters {
    /// All records found unusable, for any reason.
    pub fn corrupt(&self) -> u64 {
        self.corrupt_torn.get() + self.corrupt_foreign.get() + self.corrupt_rotten.get()
    }
}
