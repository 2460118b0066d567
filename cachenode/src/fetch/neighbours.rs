//! The neighbours of a block in its pack.

use larder_dataset::{BlockIndex, BlockPart, FileIndex};
use larder_store::DatasetCache;

use crate::extent::{EXTENT_BYTES, Extent};
use crate::manifest_file::MappedManifest;

/// The most files that are examined on either side of a packed one, and ahead of a reader: many are tiny or empty, and
/// other fetches wait for the table of blocks in flight meanwhile.
pub(super) const WALK_FILES: usize = 256;

/// The neighbours of a packed block that cost almost nothing to fetch with it: the files adjacent to it that begin in
/// the same extent of the pack, are neither in the store nor `in_flight`, and for which the store has room.
pub(super) fn neighbours(
    manifest: &MappedManifest,
    cache: &DatasetCache,
    in_flight: impl Fn(BlockIndex) -> bool,
    index: FileIndex,
    part: &BlockPart,
) -> Vec<(FileIndex, BlockPart)> {
    let usage = cache.usage();
    let mut room = usage.room_bytes.saturating_sub(u64::from(part.block_len));
    let mut found = Vec::new();
    // Blocks that are still being adopted from an earlier snapshot are not in the store yet, but need not be fetched.
    if !manifest.is_packed() || usage.rebuilding || cache.is_adopting() || room == 0 {
        return found;
    }
    let Some(own) = Extent::of(manifest, index) else { return found };
    let mut walk = |from: &mut dyn Iterator<Item = u32>, mut edge: u64, forward: bool| {
        for index in from.map(FileIndex).take(WALK_FILES) {
            let Ok(file) = manifest.file(index) else { return };
            let Some(whole) = file.parts(0, file.size).next() else { continue };
            let Some(its) = Extent::of(manifest, index) else { return };
            let is_adjacent = if forward { its.start == edge } else { its.end == edge };
            let wanted = its.pack == own.pack
                && is_adjacent
                && its.start / EXTENT_BYTES == own.start / EXTENT_BYTES
                && u64::from(whole.block_len) == file.size
                && file.size <= room
                && !in_flight(whole.block)
                && !cache.contains(whole.block);
            if !wanted {
                return;
            }
            edge = if forward { its.end } else { its.start };
            room -= file.size;
            found.push((index, whole));
        }
    };
    walk(&mut (index.0 + 1..manifest.totals().files), own.end, true);
    walk(&mut (0..index.0).rev(), own.start, false);
    found
}
