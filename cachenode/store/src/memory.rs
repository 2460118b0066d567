//! Memory of records on their way from the origin to the disk. That of large ones is used again.
//!
//! The kernel maps and clears a thousand pages for a block of 4 MiB, which costs a stream more than its copies and its
//! checksums together. So the memory of a large record that has left goes to the next one that comes.
//!
//! Invariant: no more is kept than is in use, and at most [`KEPT_MOST`]; nothing, when no large record is in memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_dataset::BLOCK_BYTES;

use crate::buffer::bytes_for;
use crate::record::extent_bytes;

/// A record of this size is large. It fills most of the memory that it gets, all of which may have pages from an earlier
/// one: the memory that is held stays within a third of what the records are counted for.
const LARGE_BYTES: usize = 3 << 20;

/// The size of the memory of all large records, so that each fits into that of any other.
const KEPT_BYTES: usize = bytes_for(extent_bytes(BLOCK_BYTES as u32));

/// The most large records whose memory is kept. Streams take and give back in turns, so a few are enough.
const KEPT_MOST: usize = 8;

static KEPT: Mutex<Kept> = Mutex::new(Kept { in_use: 0, free: Vec::new() });

/// The memory of large records.
struct Kept {
    in_use: usize,
    free: Vec<Vec<u8>>,
}

impl Kept {
    fn lock() -> MutexGuard<'static, Self> {
        KEPT.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bytes of a record. They never move.
#[derive(Debug)]
pub(crate) struct RecordMemory {
    pub(crate) bytes: Vec<u8>,
    is_large: bool,
}

impl RecordMemory {
    /// Memory without bytes, for up to `len` aligned ones.
    pub(crate) fn new(len: usize) -> Self {
        if !(LARGE_BYTES..=KEPT_BYTES).contains(&bytes_for(len)) {
            return Self { bytes: Vec::with_capacity(bytes_for(len)), is_large: false };
        }
        let mut kept = Kept::lock();
        kept.in_use += 1;
        let bytes = kept.free.pop();
        drop(kept);
        Self { bytes: bytes.unwrap_or_else(|| Vec::with_capacity(KEPT_BYTES)), is_large: true }
    }
}

impl AsRef<[u8]> for RecordMemory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for RecordMemory {
    fn drop(&mut self) {
        if !self.is_large {
            return;
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let mut kept = Kept::lock();
        kept.in_use -= 1;
        kept.free.push(bytes);
        let most = kept.in_use.min(KEPT_MOST).min(kept.free.len());
        // The lock is free while the kernel unmaps them.
        let too_many = kept.free.split_off(most);
        drop(kept);
        drop(too_many);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests of one process take turns: what is kept is the process's.
    static TURN: Mutex<()> = Mutex::new(());

    fn counts() -> (usize, usize) {
        let kept = Kept::lock();
        (kept.in_use, kept.free.len())
    }

    #[test]
    fn the_memory_of_a_large_record_goes_to_the_next_one_and_no_more_is_kept_than_is_in_use() {
        let _turn = TURN.lock().unwrap();
        let large = || RecordMemory::new(extent_bytes(3 << 20));
        let mut all: Vec<_> = (0..20).map(|_| large()).collect();
        assert_eq!(counts(), (20, 0));
        all.truncate(15);
        assert_eq!(counts(), (15, 5));
        let mut next = large();
        assert_eq!(counts(), (16, 4), "it has the memory of one that left");
        assert!(next.bytes.is_empty() && next.bytes.capacity() >= KEPT_BYTES);
        next.bytes.resize(KEPT_BYTES, 1);
        drop(next);
        assert!(large().bytes.is_empty());
        all.truncate(10);
        assert_eq!(counts(), (10, KEPT_MOST));
        all.truncate(3);
        assert_eq!(counts(), (3, 3));
        drop(all);
        assert_eq!(counts(), (0, 0));
    }

    #[test]
    fn the_memory_of_a_small_record_is_its_own() {
        let _turn = TURN.lock().unwrap();
        for len in [111_000, 2 << 20] {
            let small = RecordMemory::new(len);
            assert_eq!(counts(), (0, 0));
            assert!(small.bytes.capacity() < len + (1 << 20));
        }
    }
}
