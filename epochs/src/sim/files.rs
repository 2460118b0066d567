//! The simulated dataset: sizes of files and their blocks, in memory that does not grow with the number of files.

use anyhow::{Context, ensure};
use larder_dataset::{BLOCK_BYTES, BlockIndex};

use crate::tree;

/// The sizes repeat after this many files.
const PERIOD: u32 = 1_000_000;

/// The sizes of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Log-normal with this mean, as [`tree::sizes`] generates them. After a million files the sizes repeat.
    Mean(u64),
    /// All files have this many bytes.
    Equal(u64),
}

/// A dataset's files, numbered from 0, and blocks, numbered as in a manifest. Takes 12 bytes for each of the first
/// million files.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) count: u32,
    pub(super) blocks: u32,
    pub(super) bytes: u64,
    sizes: Vec<u64>,
    /// For each file of the period: the number of blocks before it.
    blocks_before: Vec<u32>,
    blocks_in_period: u32,
}

impl Files {
    /// Errors: more blocks than block numbers.
    pub(super) fn new(count: u32, sizes: Sizes, seed: u64) -> anyhow::Result<Self> {
        let sizes = match sizes {
            Sizes::Mean(mean) => tree::sizes(count.min(PERIOD), mean, seed),
            Sizes::Equal(bytes) => vec![bytes],
        };
        Self::of(count, sizes)
    }

    /// Files of exactly these sizes.
    #[cfg(test)]
    pub(super) fn of_sizes(sizes: Vec<u64>) -> Self {
        Self::of(sizes.len() as u32, sizes).expect("few files")
    }

    fn of(count: u32, sizes: Vec<u64>) -> anyhow::Result<Self> {
        ensure!(count > 0 && !sizes.is_empty(), "a dataset without files cannot be simulated");
        let mut blocks = 0_u64;
        let mut blocks_before = Vec::with_capacity(sizes.len());
        for size in &sizes {
            blocks_before.push(u32::try_from(blocks).context("number the blocks of the first files")?);
            blocks += size.div_ceil(BLOCK_BYTES);
        }
        let (periods, rest) = (u64::from(count) / sizes.len() as u64, count as usize % sizes.len());
        let rest_blocks = u64::from(blocks_before[rest]);
        let all_blocks = periods.saturating_mul(blocks).saturating_add(rest_blocks);
        let bytes = periods.saturating_mul(sizes.iter().sum()).saturating_add(sizes[..rest].iter().sum());
        Ok(Self {
            count,
            blocks: u32::try_from(all_blocks).with_context(|| {
                format!(
                    "a dataset has at most {} blocks; this one would have {all_blocks}: simulate fewer or smaller \
                     files",
                    u32::MAX
                )
            })?,
            bytes,
            blocks_in_period: u32::try_from(blocks).context("number the blocks of the first files")?,
            sizes,
            blocks_before,
        })
    }

    pub(super) fn size(&self, file: u32) -> u64 {
        self.sizes[file as usize % self.sizes.len()]
    }

    /// The file's blocks with their lengths.
    pub(super) fn blocks_of(&self, file: u32) -> impl Iterator<Item = (BlockIndex, u32)> + use<> {
        let (periods, at) = (file as usize / self.sizes.len(), file as usize % self.sizes.len());
        let first = periods as u32 * self.blocks_in_period + self.blocks_before[at];
        let size = self.sizes[at];
        (0..size.div_ceil(BLOCK_BYTES)).map(move |nth| {
            // Both conversions fit: the number of all blocks was checked, and a block is at most 4 MiB.
            (BlockIndex(first + nth as u32), (size - nth * BLOCK_BYTES).min(BLOCK_BYTES) as u32)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_numbered_one_after_the_other_and_hold_all_bytes() {
        let sizes = vec![1, BLOCK_BYTES, 0, 2 * BLOCK_BYTES + 7];
        let files = Files::of(11, sizes.clone()).unwrap();
        let (mut next, mut bytes) = (0, 0);
        for file in 0..11 {
            let mut size = 0;
            for (block, len) in files.blocks_of(file) {
                assert_eq!(block, BlockIndex(next));
                next += 1;
                size += u64::from(len);
            }
            assert_eq!((size, size), (files.size(file), sizes[file as usize % 4]));
            bytes += size;
        }
        assert_eq!((files.blocks, files.bytes), (next, bytes));
        Files::of(u32::MAX, vec![5 << 20]).unwrap_err();
    }

    #[test]
    fn simulated_file_sizes_match_generated_ones() {
        let files = Files::new(300, Sizes::Mean(40_000), 5).unwrap();
        let made = tree::sizes(300, 40_000, 5);
        assert!((0..300).all(|file| files.size(file) == made[file as usize]));
    }
}
