//! One aligned buffer a thread, for reads and writes that bypass the page cache.
//!
//! Invariant: what is handed out starts at a multiple of 4 KiB in memory. The buffer grows to the most its thread ever
//! needed and stays, so that a warm read allocates nothing.

use std::cell::Cell;

use crate::record::ALIGN_BYTES;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with `len` bytes of this thread's buffer, which hold anything. A call within `f` gets another buffer.
pub(crate) fn with<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut memory = BUFFER.take();
    if memory.len() < len + ALIGN_BYTES {
        // Dropped first, so that growing does not copy bytes that mean nothing.
        drop(std::mem::take(&mut memory));
        memory = vec![0; (len + ALIGN_BYTES).next_multiple_of(16 * ALIGN_BYTES)];
    }
    let start = memory.as_ptr().align_offset(ALIGN_BYTES);
    let result = f(&mut memory[start..start + len]);
    BUFFER.set(memory);
    result
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
    fn a_call_within_a_call_gets_another_buffer() {
        with(8, |outer| {
            outer.fill(1);
            with(8, |inner| inner.fill(2));
            assert_eq!(outer, [1; 8]);
        });
    }
}
