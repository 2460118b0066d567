//! The division of a snapshot's files into packs.
//!
//! Invariant: the plan depends on the source manifest and the pack size alone, so a later run makes the same one.

use std::ops::Range;

use larder_dataset::{FileIndex, Manifest, ManifestBytes, ManifestError};

/// A pack's record must fit a journal frame, however small its files are.
const FILES_PER_PACK_MAX: u32 = 1 << 20;

/// A pack to be made of adjacent files of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PackPlan {
    pub(super) number: u32,
    pub(super) files: Range<u32>,
    pub(super) bytes: u64,
    /// Too large for memory: written as it is read.
    pub(super) streamed: bool,
}

/// Divides the files into packs. Empty files stay in order, so even the pack of one large file may contain some.
pub(super) fn plan<B: ManifestBytes>(manifest: &Manifest<B>, pack_bytes: u64) -> Result<Vec<PackPlan>, ManifestError> {
    let mut packs = Vec::new();
    let mut open = 0..0_u32;
    let mut bytes = 0_u64;
    let mut close = |files: Range<u32>, bytes: u64| {
        // There are no more packs than files, whose numbers are u32.
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
