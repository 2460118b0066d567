//! Blocks: the unit of caching. A file of up to 4 MiB is one block; a larger one is split every 4 MiB.
//!
//! Blocks are numbered through the whole snapshot in file order, so that a flat table indexed by [`BlockIndex`] can
//! store a value for each block. An empty file has no block.

/// The most bytes that a block has.
pub const BLOCK_BYTES: u64 = 4 << 20;

/// The number of a block within its snapshot, counted over all files in manifest order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIndex(pub u32);

impl std::fmt::Display for BlockIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of blocks of a file of `size` bytes.
pub const fn block_count(size: u64) -> u64 {
    size.div_ceil(BLOCK_BYTES)
}

/// A range of bytes of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The block's number within its snapshot.
    pub block: BlockIndex,
    /// The first byte of the range, counted from the start of the block.
    pub start: u32,
    /// Length in bytes, at least 1.
    pub len: u32,
}

impl BlockRange {
    /// True if the range is not empty and ends within a block of `block_len` bytes.
    pub const fn fits(&self, block_len: u32) -> bool {
        self.len > 0 && self.start as u64 + self.len as u64 <= block_len as u64
    }
}

/// The part of a read that lies in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPart {
    /// The block's number within its snapshot.
    pub block: BlockIndex,
    /// The offset of the block in its file, in bytes.
    pub file_offset: u64,
    /// Length of the whole block in bytes.
    pub block_len: u32,
    /// The first byte of the part, counted from the start of the block.
    pub start: u32,
    /// Length of the part in bytes.
    pub len: u32,
}

impl BlockPart {
    /// The part as a range of its block.
    pub const fn range(&self) -> BlockRange {
        BlockRange { block: self.block, start: self.start, len: self.len }
    }

    /// The range of the whole block.
    pub const fn whole_block(&self) -> BlockRange {
        BlockRange { block: self.block, start: 0, len: self.block_len }
    }

    /// True if the part includes the last byte of its block.
    pub const fn reaches_end(&self) -> bool {
        self.start + self.len == self.block_len
    }
}

/// Splits a read of `len` bytes at `offset` into its parts, for a file of `size` bytes whose first block is
/// `first_block`. Ignores bytes beyond the end of the file.
///
/// ```
/// use larder_dataset::block::{BLOCK_BYTES, BlockIndex, parts};
///
/// // A file of 5 MiB has the blocks 7 and 8; this read ends one byte into the second.
/// let parts: Vec<_> = parts(BlockIndex(7), 5 << 20, BLOCK_BYTES - 2, 3).collect();
/// assert_eq!((parts[0].block, parts[0].start, parts[0].len), (BlockIndex(7), 4_194_302, 2));
/// assert_eq!((parts[1].block, parts[1].start, parts[1].len), (BlockIndex(8), 0, 1));
/// assert_eq!(parts[1].block_len, 1 << 20);
/// ```
pub fn parts(first_block: BlockIndex, size: u64, offset: u64, len: u64) -> impl Iterator<Item = BlockPart> {
    let end = offset.saturating_add(len).min(size);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let nth = at / BLOCK_BYTES;
        let file_offset = nth * BLOCK_BYTES;
        let block_len = (size - file_offset).min(BLOCK_BYTES);
        let start = at - file_offset;
        let len = (end - at).min(block_len - start);
        at += len;
        Some(BlockPart {
            // The cast cannot truncate: builder and decoder of a manifest both check that it has at most u32::MAX
            // blocks.
            block: BlockIndex(first_block.0 + nth as u32),
            file_offset,
            block_len: block_len as u32,
            start: start as u32,
            len: len as u32,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_file_has_no_block() {
        assert_eq!(block_count(0), 0);
        assert_eq!(parts(BlockIndex(7), 0, 0, 100).count(), 0);
    }

    #[test]
    fn a_file_of_exactly_one_block_has_one() {
        assert_eq!(block_count(BLOCK_BYTES), 1);
        assert_eq!(block_count(BLOCK_BYTES + 1), 2);
    }

    #[test]
    fn a_range_fits_if_it_has_bytes_and_ends_within_the_block() {
        let fits = |start, len| BlockRange { block: BlockIndex(1), start, len }.fits(100);
        assert!(fits(0, 100) && fits(99, 1));
        assert!(!fits(0, 0) && !fits(1, 100) && !fits(100, 1) && !fits(u32::MAX, u32::MAX));
    }

    proptest! {
        #[test]
        fn parts_cover_the_read_exactly_and_in_order(
            size in 0..5 * BLOCK_BYTES, offset in 0..6 * BLOCK_BYTES, len in 0..3 * BLOCK_BYTES
        ) {
            let first = BlockIndex(3);
            let mut at = offset.min(size);
            for part in parts(first, size, offset, len) {
                prop_assert_eq!(part.file_offset + u64::from(part.start), at);
                prop_assert_eq!(u64::from(part.block.0 - 3) * BLOCK_BYTES, part.file_offset);
                prop_assert!(part.len > 0 && part.start + part.len <= part.block_len);
                at += u64::from(part.len);
            }
            prop_assert_eq!(at, if offset >= size { size } else { (offset + len).min(size) });
        }
    }
}
