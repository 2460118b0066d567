//! The results of a read of the store.

use std::ops::Range;

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<R> {
    /// The bytes were there; this is what the caller made of them.
    Hit(R),
    /// Not cached, or not usable: fetch it.
    Miss,
}

impl<R> Lookup<R> {
    /// The hit, if it is one.
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
    /// The memory, with the bytes and what surrounds them on the disk.
    pub memory: Vec<u8>,
    /// Where the bytes are in it.
    pub range: Range<usize>,
    /// Their CRC32C.
    pub crc: u32,
}

impl PartBytes {
    pub(crate) fn new(memory: Vec<u8>, range: Range<usize>) -> Self {
        let crc = larder_dataset::crc32c(&memory[range.clone()]);
        Self { memory, range, crc }
    }
}
