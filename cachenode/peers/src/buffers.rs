//! Reusable memory for ranges that are sent to peers or received from them.
//!
//! For allocations of this size, the kernel maps and zeroes memory page by page and unmaps it again when it is freed.
//! That took a fifth of the time of a read from a peer over loopback. A buffer that its reader has dropped is therefore
//! reused.
//!
//! Invariant: idle buffers are bounded in bytes and in number. Buffers in use are bounded by the number of reads.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Smaller buffers come from the allocator, which reuses memory of that size itself.
const LEN_LEAST: usize = 32 << 10;

/// The most bytes that idle buffers may hold.
const IDLE_BYTES_MOST: usize = 32 << 20;

/// The most idle buffers. A search visits all of them.
const IDLE_MOST: usize = 64;

#[derive(Debug, Default)]
struct Idle {
    /// Ordered by use, the least recently used buffer first.
    buffers: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// Reusable buffers, shared by all readers.
#[derive(Debug, Default)]
pub struct Buffers(Mutex<Idle>);

/// A buffer in use. It returns to the idle buffers when it is dropped.
struct Loan {
    bytes: Vec<u8>,
    pool: Arc<Buffers>,
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.bytes));
    }
}

/// The size of a buffer for `len` bytes. Similar lengths share a size, which exceeds the length by at most an eighth.
fn size_for(len: usize) -> usize {
    len.next_multiple_of(len.next_power_of_two() / 16)
}

impl Buffers {
    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an idle buffer of this size.
    fn used(&self, size: usize) -> Option<Vec<u8>> {
        let mut idle = self.lock();
        // The most recently used buffer may still be in the CPU's cache.
        let found = idle.buffers.iter().rposition(|buffer| buffer.capacity() == size);
        let buffer = found.and_then(|at| idle.buffers.remove(at))?;
        idle.bytes -= size;
        Some(buffer)
    }

    /// Takes an empty buffer with capacity for `len` bytes.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        if len < LEN_LEAST {
            return Vec::with_capacity(len);
        }
        let size = size_for(len);
        let mut buffer = self.used(size).unwrap_or_else(|| Vec::with_capacity(size));
        buffer.clear();
        buffer
    }

    /// Takes a buffer of `len` bytes or slightly more, with arbitrary contents.
    pub fn take_filled(&self, len: usize) -> Vec<u8> {
        if len < LEN_LEAST {
            return vec![0; len];
        }
        let size = size_for(len);
        let mut buffer = self.used(size).unwrap_or_else(|| vec![0; size]);
        // Writes nothing if the buffer was filled to this size before.
        buffer.resize(size, 0);
        buffer
    }

    /// Shares a buffer's contents. The buffer returns to the idle buffers when the last reference is dropped.
    pub(crate) fn lend(self: &Arc<Self>, bytes: Vec<u8>) -> Bytes {
        if bytes.len() < LEN_LEAST {
            return bytes.into();
        }
        Bytes::from_owner(Loan { bytes, pool: Arc::clone(self) })
    }

    /// Shares a part of a buffer's contents. A part shorter than half the buffer is copied, so that a shared part keeps
    /// at most twice its length in use.
    pub fn lend_part(self: &Arc<Self>, bytes: Vec<u8>, part: Range<usize>) -> Bytes {
        let is_less = part.len() < bytes.len() / 2;
        let lent = self.lend(bytes);
        if is_less { Bytes::copy_from_slice(&lent[part]) } else { lent.slice(part) }
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut idle = self.lock();
        idle.bytes += buffer.capacity();
        idle.buffers.push_back(buffer);
        let mut excess = Vec::new();
        while idle.bytes > IDLE_BYTES_MOST || idle.buffers.len() > IDLE_MOST {
            let Some(oldest) = idle.buffers.pop_front() else { break };
            idle.bytes -= oldest.capacity();
            excess.push(oldest);
        }
        // The excess buffers are freed after the lock is released.
        drop(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_reused_for_a_similar_length() {
        let buffers = Arc::new(Buffers::default());
        let mut first = buffers.take(111_000);
        first.resize(111_000, 7);
        let place = first.as_ptr();
        let lent = buffers.lend(first);
        let part = lent.slice(5..10);
        drop(lent);
        let another = buffers.take(111_000);
        assert_ne!(another.as_ptr(), place, "a part of the first is in use");
        drop(another);
        assert_eq!(*part, [7; 5]);
        drop(part);
        let mut again = buffers.take(110_000);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        assert!(again.capacity() >= 111_000);
        drop(buffers.lend({
            again.resize(110_000, 7);
            again
        }));
        let filled = buffers.take_filled(109_000);
        assert_eq!((filled.as_ptr(), filled.len()), (place, filled.capacity()));
    }

    #[test]
    fn little_is_kept_and_small_ones_are_not() {
        let buffers = Arc::new(Buffers::default());
        let lend = |len: usize| {
            let mut buffer = buffers.take(len);
            buffer.resize(len, 0);
            buffers.lend(buffer)
        };
        drop((0..20).map(|_| lend(4 << 20)).collect::<Vec<_>>());
        let idle = |buffers: &Buffers| {
            let idle = buffers.lock();
            (idle.bytes, idle.buffers.len())
        };
        assert_eq!(idle(&buffers), (IDLE_BYTES_MOST, 8));
        drop((0..100).map(|_| lend(LEN_LEAST)).collect::<Vec<_>>());
        assert_eq!(idle(&buffers), (IDLE_MOST * LEN_LEAST, IDLE_MOST), "the newest stay");
        drop(lend(LEN_LEAST - 1));
        assert_eq!(idle(&buffers).1, IDLE_MOST);
    }

    #[test]
    fn a_small_part_does_not_keep_the_whole() {
        let buffers = Arc::new(Buffers::default());
        let filled = buffers.take_filled(200_000);
        let (place, len) = (filled.as_ptr(), filled.len());
        let small = buffers.lend_part(filled, 100..1000);
        assert_eq!((buffers.lock().bytes, &small[..]), (len, &[0; 900][..]), "the buffer is back");
        let large = buffers.lend_part(buffers.take_filled(200_000), 4096..len);
        assert_eq!((buffers.lock().bytes, large.as_ptr()), (0, place.wrapping_add(4096)), "nothing is copied");
    }

    #[test]
    fn a_buffer_is_at_most_an_eighth_too_large() {
        for len in [LEN_LEAST, 33_000, 65_536, 65_537, 111_000, 1 << 20, (1 << 20) + 1, 4 << 20] {
            let size = size_for(len);
            assert!(size >= len && size <= len + len / 8 + 1, "{size} for {len}");
        }
    }
}
