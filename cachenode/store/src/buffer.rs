//! Aligned memory for reads and writes that bypass the page cache: one buffer for each thread, or part of the caller's.
//!
//! Invariant: the memory handed out starts at a multiple of 4 KiB. A thread's buffer grows to the largest size that the
//! thread has needed and keeps that size until [`release`], so a warm read allocates nothing.

use std::cell::Cell;
use std::ops::Range;

use crate::record::ALIGN_BYTES;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The largest buffer that a thread keeps while it is idle.
pub const KEPT_BYTES: usize = 256 << 10;

/// Frees this thread's buffer if it is larger than [`KEPT_BYTES`]. For threads that are idle, or seldom read so much.
pub fn release() {
    let memory = BUFFER.take();
    if memory.len() <= KEPT_BYTES {
        BUFFER.set(memory);
    }
}

/// The size of an allocation that is certain to contain `len` aligned bytes.
pub(crate) const fn bytes_for(len: usize) -> usize {
    len + ALIGN_BYTES
}

/// The range of `len` aligned bytes within memory of [`bytes_for`]`(len)` bytes.
pub(crate) fn aligned(memory: &[u8], len: usize) -> Range<usize> {
    let start = memory.as_ptr().align_offset(ALIGN_BYTES);
    start..start + len
}

/// Calls `f` with `len` bytes of this thread's buffer, whose content is arbitrary. A nested call within `f` gets a
/// separate buffer.
pub(crate) fn with<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut memory = BUFFER.take();
    if memory.len() < bytes_for(len) {
        // Dropped before the new allocation: growing in place would copy the arbitrary old bytes.
        drop(std::mem::take(&mut memory));
        memory = vec![0; bytes_for(len).next_multiple_of(16 * ALIGN_BYTES)];
    }
    let range = aligned(&memory, len);
    let result = f(&mut memory[range]);
    BUFFER.set(memory);
    result
}

/// The size of this thread's buffer.
#[cfg(test)]
pub(crate) fn kept() -> usize {
    let memory = BUFFER.take();
    let len = memory.len();
    BUFFER.set(memory);
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_is_aligned_whatever_was_asked_before() {
        for len in [1, 4096, 100, 5 << 20, 64] {
            with(len, |bytes| {
                assert_eq!((bytes.len(), bytes.as_ptr().addr() % ALIGN_BYTES), (len, 0));
            });
        }
    }

    #[test]
    fn an_idle_thread_gives_back_a_large_buffer_and_keeps_a_small_one() {
        with(1 << 20, |_| release());
        assert!(kept() > 1 << 20, "it was in use");
        release();
        assert_eq!(kept(), 0);
        with(4096, |_| {});
        let small = kept();
        release();
        assert!(small > 0 && kept() == small);
    }

    #[test]
    fn a_call_within_a_call_gets_another_buffer() {
        with(8, |outer| {
            outer.fill(1);
            with(8, |inner| inner.fill(2));
            assert_eq!(outer, [1; 8]);
        });
    }
}
