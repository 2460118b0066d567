//! The division of a snapshot's files into packs.
//!
//! Invariant: the plan depends only on the source manifest and the pack size, so a later run computes the same plan.

use std::ops::Range;

use larder_dataset::{FileIndex, Manifest, ManifestBytes, ManifestError};

/// The most files in a pack. It keeps a pack's record within a journal frame, even if all files are small.
const FILES_PER_PACK_MAX: u32 = 1 << 20;

/// A pack that is to be built from adjacent files of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PackPlan {
    pub(super) number: u32,
    pub(super) files: Range<u32>,
    pub(super) bytes: u64,
    /// True if the pack is too large for memory and is written while it is read.
    pub(super) streamed: bool,
}

/// Divides the files into packs. Empty files stay in order, so even the pack of a single large file may contain some.
pub(super) fn plan<B: ManifestBytes>(manifest: &Manifest<B>, pack_bytes: u64) -> Result<Vec<PackPlan>, ManifestError> {
    let mut packs = Vec::new();
    let mut open = 0..0_u32;
    let mut bytes = 0_u64;
    let mut close = |files: Range<u32>, bytes: u64| {
        // The cast cannot truncate: there are at most as many packs as files, whose numbers are u32.
        packs.push(PackPlan { number: packs.len() as u32, files, bytes, streamed: bytes > pack_bytes });
    };
    for index in 0..manifest.totals().files {
        let size = manifest.file(FileIndex(index))?.size;
        let full = size > 0 && bytes > 0 && bytes.saturating_add(size) > pack_bytes;
        if full || open.len() >= FILES_PER_PACK_MAX as usize {
            close(open.clone(), bytes);
            (open, bytes) = (index..index, 0);
        }
        open.end = index + 1;
        bytes = bytes.saturating_add(size);
    }
    if !open.is_empty() {
        close(open, bytes);
    }
    Ok(packs)
}
