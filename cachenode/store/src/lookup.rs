//! The results of a read from the store.

use std::ops::Range;

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<R> {
    /// The block was cached; carries the result of the caller's function.
    Hit(R),
    /// The block is not cached or its record is not usable; the caller fetches it.
    Miss,
}

impl<R> Lookup<R> {
    /// Converts a hit to `Some` and a miss to `None`.
    pub fn hit(self) -> Option<R> {
        match self {
            Self::Hit(found) => Some(found),
            Self::Miss => None,
        }
    }
}

/// Bytes of a block in memory that the caller provided.
#[derive(Debug)]
pub struct PartBytes {
    /// The memory, with the requested bytes and the bytes around them on the disk.
    pub memory: Vec<u8>,
    /// The range of the requested bytes in `memory`.
    pub range: Range<usize>,
    /// The CRC32C of the requested bytes.
    pub crc: u32,
}

impl PartBytes {
    pub(crate) fn new(memory: Vec<u8>, range: Range<usize>) -> Self {
        let crc = larder_dataset::crc32c(&memory[range.clone()]);
        Self { memory, range, crc }
    }
}
