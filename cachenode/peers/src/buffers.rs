//! Memory for ranges that go to peers and come from them, used again and again.
//!
//! Fresh memory of such sizes comes from the kernel page by page, zeroed, and goes back to it: that was a fifth of the time of
//! a read from a peer over loopback. So what a reader has dropped is filled again.
//!
//! Invariant: what is kept for later is bounded in bytes and in number. What is lent is bounded by who asks for ranges.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Smaller ones are left to the allocator, which keeps such memory itself.
const LEN_LEAST: usize = 32 << 10;

/// Bytes that are kept at most.
const KEPT_BYTES_MOST: usize = 32 << 20;

/// Buffers that are kept at most: all are looked through.
const KEPT_MOST: usize = 64;

#[derive(Debug, Default)]
struct Kept {
    /// The longest unused first.
    buffers: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// Buffers that are used again. Shared by all who need one.
#[derive(Debug, Default)]
pub struct Buffers(Mutex<Kept>);

/// A buffer on loan.
struct Lent {
    bytes: Vec<u8>,
    home: Arc<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.put(std::mem::take(&mut self.bytes));
    }
}

/// Buffers for lengths that are about the same are of one size, up to an eighth more than is needed.
fn size_for(len: usize) -> usize {
    len.next_multiple_of(len.next_power_of_two() / 16)
}

impl Buffers {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of this size that was used before.
    fn used(&self, size: usize) -> Option<Vec<u8>> {
        let mut kept = self.lock();
        // The one used last may still be in the processor's cache.
        let found = kept.buffers.iter().rposition(|buffer| buffer.capacity() == size);
        let buffer = found.and_then(|at| kept.buffers.remove(at))?;
        kept.bytes -= size;
        Some(buffer)
    }

    /// An empty buffer that takes `len` bytes without growing.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        if len < LEN_LEAST {
            return Vec::with_capacity(len);
        }
        let size = size_for(len);
        let mut buffer = self.used(size).unwrap_or_else(|| Vec::with_capacity(size));
        buffer.clear();
        buffer
    }

    /// A buffer of `len` bytes or somewhat more, which hold anything.
    pub fn take_filled(&self, len: usize) -> Vec<u8> {
        if len < LEN_LEAST {
            return vec![0; len];
        }
        let size = size_for(len);
        let mut buffer = self.used(size).unwrap_or_else(|| vec![0; size]);
        // Nothing, where it was filled before.
        buffer.resize(size, 0);
        buffer
    }

    /// What is in a buffer; the last who drops it gives it back.
    pub(crate) fn lend(self: &Arc<Self>, bytes: Vec<u8>) -> Bytes {
        if bytes.len() < LEN_LEAST {
            return bytes.into();
        }
        Bytes::from_owner(Lent { bytes, home: Arc::clone(self) })
    }

    /// Part of what is in a buffer, or a copy of that if it is less than half: who keeps it keeps no more than twice as much.
    pub fn lend_part(self: &Arc<Self>, bytes: Vec<u8>, part: Range<usize>) -> Bytes {
        let is_less = part.len() < bytes.len() / 2;
        let lent = self.lend(bytes);
        if is_less { Bytes::copy_from_slice(&lent[part]) } else { lent.slice(part) }
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut kept = self.lock();
        kept.bytes += buffer.capacity();
        kept.buffers.push_back(buffer);
        let mut gone = Vec::new();
        while kept.bytes > KEPT_BYTES_MOST || kept.buffers.len() > KEPT_MOST {
            let Some(oldest) = kept.buffers.pop_front() else { break };
            kept.bytes -= oldest.capacity();
            gone.push(oldest);
        }
        // Freed after the lock.
        drop(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_is_used_again_for_what_is_about_as_long() {
        let buffers = Arc::new(Buffers::default());
        let mut first = buffers.take(111_000);
        first.resize(111_000, 7);
        let place = first.as_ptr();
        let lent = buffers.lend(first);
        let part = lent.slice(5..10);
        drop(lent);
        let another = buffers.take(111_000);
        assert_ne!(another.as_ptr(), place, "a part of it is in use");
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
        let kept = |buffers: &Buffers| {
            let kept = buffers.lock();
            (kept.bytes, kept.buffers.len())
        };
        assert_eq!(kept(&buffers), (KEPT_BYTES_MOST, 8));
        drop((0..100).map(|_| lend(LEN_LEAST)).collect::<Vec<_>>());
        assert_eq!(kept(&buffers), (KEPT_MOST * LEN_LEAST, KEPT_MOST), "the newest stay");
        drop(lend(LEN_LEAST - 1));
        assert_eq!(kept(&buffers).1, KEPT_MOST);
    }

    #[test]
    fn a_small_part_does_not_keep_the_whole() {
        let buffers = Arc::new(Buffers::default());
        let filled = buffers.take_filled(200_000);
        let (place, len) = (filled.as_ptr(), filled.len());
        let small = buffers.lend_part(filled, 100..1000);
        assert_eq!((buffers.lock().bytes, &small[..]), (len, &[0; 900][..]), "the rest is free again");
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
