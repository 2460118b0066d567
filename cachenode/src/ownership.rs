//! Which of a dataset's blocks this node owns: what it has to keep, and how much room that takes.
//!
//! [`OwnedBlocks`] applies the [`Sharing`] of a dataset to the blocks of its manifest, for the store, which gives the
//! room of disowned blocks to owned ones and may keep the smallest of these, and for the budget, which reserves their
//! bytes.
//!
//! Invariant: the answers are a pure function of the manifest and the present list of nodes.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use larder_dataset::block::block_count;
use larder_dataset::{BlockIndex, FileIndex, PlaceKey};
use larder_store::{Ownership, Sizes};

use crate::extent::place_key;
use crate::manifest_file::MappedManifest;
use crate::sharing::{OwnedKeys, Sharing};

/// Files that are passed one by one to the next block. Beyond that, a binary search is quicker.
const STEPS_MOST: usize = 32;

/// Files that are counted: all of a dataset that has no more, else about this many, in runs.
const SAMPLED_FILES: u32 = 1 << 20;

/// Files in a run: neighbours in the manifest, so that a sample does not read all of its pages.
const RUN_FILES: u32 = 1 << 10;

/// The standard deviations by which an estimate is larger than the sample says.
const DEVIATIONS: f64 = 6.0;

/// The blocks of a dataset that this node owns.
#[derive(Debug)]
pub(crate) struct OwnedBlocks {
    manifest: Arc<MappedManifest>,
    sharing: Arc<Sharing>,
}

impl OwnedBlocks {
    pub(crate) fn new(manifest: Arc<MappedManifest>, sharing: Arc<Sharing>) -> Self {
        Self { manifest, sharing }
    }

    /// Bytes of the blocks that this node owns; a little more if the dataset is so large that they are estimated from a
    /// sample. Reads the manifest. None if this node is not on the list: it may be soon, and what it will own is not
    /// known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.estimate(SAMPLED_FILES)
    }

    fn estimate(&self, sampled_files: u32) -> Option<u64> {
        let owned = self.sharing.owned().filter(OwnedKeys::is_member)?;
        let files = self.manifest.totals().files;
        let (mut seen_bytes, mut owned_bytes, mut owned_keys) = (0_u64, 0_u64, 0_u64);
        let mut last: Option<(PlaceKey, bool)> = None;
        for index in sampled(files, sampled_files) {
            // The block of a damaged row cannot be read, so it needs no room.
            let Ok(file) = self.manifest.file(index) else { continue };
            for part in file.parts(0, file.size) {
                let key = place_key(&self.manifest, index, part.block);
                let is_owned = match last {
                    // The files of an extent lie side by side.
                    Some((known, is_owned)) if known == key => is_owned,
                    _ => {
                        let is_owned = owned.contains(key);
                        owned_keys += u64::from(is_owned);
                        is_owned
                    }
                };
                last = Some((key, is_owned));
                seen_bytes += u64::from(part.block_len);
                owned_bytes += if is_owned { u64::from(part.block_len) } else { 0 };
            }
        }
        let all = self.manifest.totals().bytes;
        if files <= sampled_files || seen_bytes == 0 {
            return Some(owned_bytes);
        }
        let share = owned_bytes as f64 / seen_bytes as f64;
        let margin = 1.0 + DEVIATIONS / (owned_keys.max(1) as f64).sqrt();
        Some(((all as f64 * share * margin) as u64).min(all))
    }

    /// The sizes of the blocks that this node owns; those of all blocks if it is not on the list. Estimated from a
    /// sample if the dataset is large. Reads the manifest.
    pub(crate) fn sizes(&self) -> Sizes {
        let owned = self.sharing.owned().filter(OwnedKeys::is_member);
        sizes_of(&self.manifest, SAMPLED_FILES, |index, block| {
            owned.as_ref().is_none_or(|owned| owned.contains(place_key(&self.manifest, index, block)))
        })
    }

    /// The file of a block that is not before the file `near`.
    fn file_of(&self, block: BlockIndex, near: FileIndex) -> Option<FileIndex> {
        for index in (near.0..).map(FileIndex).take(STEPS_MOST) {
            let file = self.manifest.file(index).ok()?;
            if u64::from(block.0) < u64::from(file.first_block.0) + block_count(file.size) {
                return (block >= file.first_block).then_some(index);
            }
        }
        self.manifest.file_of_block(block).ok()
    }
}

/// The sizes of all blocks of a dataset, estimated from a sample if it is large. Reads the manifest.
pub(crate) fn all_sizes(manifest: &MappedManifest) -> Sizes {
    sizes_of(manifest, SAMPLED_FILES, |_, _| true)
}

/// The sizes of the blocks for which `is_counted`.
fn sizes_of(
    manifest: &MappedManifest,
    sampled_files: u32,
    is_counted: impl Fn(FileIndex, BlockIndex) -> bool,
) -> Sizes {
    let totals = manifest.totals();
    let (mut sizes, mut seen_bytes) = (Sizes::default(), 0_u64);
    for index in sampled(totals.files, sampled_files) {
        // The block of a damaged row cannot be read.
        let Ok(file) = manifest.file(index) else { continue };
        for part in file.parts(0, file.size) {
            seen_bytes += u64::from(part.block_len);
            if is_counted(index, part.block) {
                sizes.add(part.block_len);
            }
        }
    }
    if totals.files <= sampled_files || seen_bytes == 0 {
        return sizes;
    }
    sizes.scaled(totals.bytes as f64 / seen_bytes as f64)
}

/// All files of a dataset that has no more than `sampled_files`, else about this many, in runs.
fn sampled(files: u32, sampled_files: u32) -> impl Iterator<Item = FileIndex> {
    let stride = files.div_ceil(sampled_files).max(1).saturating_mul(RUN_FILES);
    let run = move |first: u32| first..files.min(first.saturating_add(RUN_FILES));
    (0..files).step_by(stride as usize).flat_map(run).map(FileIndex)
}

impl Ownership for OwnedBlocks {
    fn version(&self) -> Option<u64> {
        self.sharing.owned().map(|owned| owned.version())
    }

    fn retain_disowned(&self, version: u64, blocks: &mut Vec<BlockIndex>) -> bool {
        let Some(owned) = self.sharing.owned().filter(|owned| owned.version() == version) else { return false };
        let mut near = blocks.first().and_then(|&first| self.manifest.file_of_block(first).ok());
        blocks.retain(|&block| {
            let Some(file) = near.and_then(|near| self.file_of(block, near)) else { return false };
            near = Some(file);
            !owned.contains(place_key(&self.manifest, file, block))
        });
        true
    }
}
