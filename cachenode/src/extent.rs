//! Extents of packs: the files that one GET fetches, and that one node owns.

use larder_dataset::{BLOCK_BYTES, BlockIndex, FileIndex, Location, PlaceKey};

use crate::manifest_file::MappedManifest;

/// The size of an extent. One GET fetches the files that begin in the same extent of a pack.
pub(crate) const EXTENT_BYTES: u64 = 3 << 20;

/// The key that decides which node owns a block. The files of an extent share one; any other block has its own.
pub(crate) fn place_key(manifest: &MappedManifest, index: FileIndex, block: BlockIndex) -> PlaceKey {
    let snapshot = manifest.snapshot();
    match manifest.is_packed().then(|| Extent::of(manifest, index)).flatten() {
        Some(extent) => PlaceKey::extent(&snapshot, extent.pack, extent.start / EXTENT_BYTES),
        None => PlaceKey::block(&snapshot, block),
    }
}

/// The bytes of a file in its pack.
pub(crate) struct Extent {
    pub(crate) pack: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Extent {
    /// None if the file is an object of its own or has several blocks.
    pub(crate) fn of(manifest: &MappedManifest, index: FileIndex) -> Option<Self> {
        let file = manifest.file(index).ok()?;
        match file.location {
            Location::Pack { pack, offset } if file.size <= BLOCK_BYTES => {
                Some(Self { pack, start: offset, end: offset + file.size })
            }
            Location::Pack { .. } | Location::Object => None,
        }
    }
}
