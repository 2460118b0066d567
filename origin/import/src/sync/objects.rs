//! The objects of a snapshot by number: the files of a plain one, the packs of a packed one.
//!
//! Invariant: a number stands for the same object in the snapshot and in each of its mirrors, because their manifests
//! have the same rows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use larder_dataset::manifest::FileChange;
use larder_dataset::{Entry, FileIndex, Location, Manifest, ManifestBytes, ManifestError, VersionTag};
use larder_origin::Version;

use crate::object_range::object_range;
use crate::version::version_of;

/// An object as the snapshot describes it.
#[derive(Clone, Debug)]
pub(super) struct SourceObject {
    pub(super) key: Vec<u8>,
    pub(super) size: u64,
    /// `None` for a pack in a local folder.
    pub(super) version: Option<Version>,
}

/// A block in a pack, and its checksum.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackBlock {
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) crc: u32,
    pub(super) file: FileIndex,
}

/// The knowledge about an object in the mirror before the mirror is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing.
    Nothing,
    /// It is a copy if it has this version.
    Version(VersionTag<'static>),
    /// It is a copy if it is there: it is a pack in a folder, whose blocks have checksums instead of a version.
    Unversioned,
}

/// The objects of a snapshot.
#[derive(Debug)]
pub(super) struct Objects<B> {
    manifest: Arc<Manifest<B>>,
    /// For each pack, rows that include those of all its files.
    pack_files: Vec<Range<u32>>,
    /// The packs by key.
    packs: HashMap<Vec<u8>, u32>,
}

impl<B: ManifestBytes> Objects<B> {
    /// Reads all rows of a packed snapshot. Blocking.
    pub(super) fn new(manifest: Arc<Manifest<B>>) -> Result<Self, ManifestError> {
        let totals = manifest.totals();
        let mut pack_files = vec![0..0; totals.packs as usize];
        if manifest.is_packed() {
            for row in 0..totals.files {
                let Location::Pack { pack, .. } = manifest.file(FileIndex(row))?.location else { continue };
                if let Some(files) = pack_files.get_mut(pack as usize) {
                    *files = if files.end == 0 { row } else { files.start }..row + 1;
                }
            }
        }
        let packs = (0..totals.packs).map(|pack| Ok((manifest.pack(pack)?.key.to_vec(), pack)));
        let packs = packs.collect::<Result<_, ManifestError>>()?;
        Ok(Self { manifest, pack_files, packs })
    }

    pub(super) fn manifest(&self) -> &Manifest<B> {
        &self.manifest
    }

    pub(super) fn count(&self) -> u32 {
        let totals = self.manifest.totals();
        if self.manifest.is_packed() { totals.packs } else { totals.files }
    }

    pub(super) fn get(&self, number: u32) -> Result<SourceObject, ManifestError> {
        if self.manifest.is_packed() {
            let pack = self.manifest.pack(number)?;
            let version = pack.version().map(version_of);
            return Ok(SourceObject { key: pack.key.to_vec(), size: pack.size, version });
        }
        let file = self.manifest.file(FileIndex(number))?;
        let object = object_range(&self.manifest, &file, 0..file.size)?;
        Ok(SourceObject { key: object.key, size: file.size, version: object.version })
    }

    /// The number of the object with a key.
    pub(super) fn number_of(&self, key: &[u8]) -> Result<Option<u32>, ManifestError> {
        if self.manifest.is_packed() {
            return Ok(self.packs.get(key).copied());
        }
        // `resolve` accepts doubled slashes, but a key with them belongs to another object.
        let Some(Entry::File(index)) = self.manifest.resolve(key)? else { return Ok(None) };
        let path = self.manifest.file_path(&self.manifest.file(index)?)?;
        Ok((path == key).then_some(index.0))
    }

    /// The blocks of an object that have checksums, in the order of their bytes. Empty in a plain snapshot.
    pub(super) fn blocks(&self, number: u32) -> Result<Vec<PackBlock>, ManifestError> {
        let mut blocks = Vec::new();
        let files = self.pack_files.get(number as usize).cloned().unwrap_or(0..0);
        for index in files.map(FileIndex) {
            let file = self.manifest.file(index)?;
            let Location::Pack { pack, offset } = file.location else { continue };
            if pack != number {
                continue;
            }
            for part in file.parts(0, file.size) {
                if let Some(crc) = self.manifest.block_crc(part.block)? {
                    let offset = offset.saturating_add(part.file_offset);
                    blocks.push(PackBlock { offset, len: part.block_len, crc, file: index });
                }
            }
        }
        blocks.sort_unstable_by_key(|block| block.offset);
        Ok(blocks)
    }

    /// Reads from the manifest of the mirror which objects have a copy that is still current. `source` is the snapshot
    /// that the mirror was copied from; without it, only a mirror of this very snapshot says anything.
    pub(super) fn known(
        &self,
        mirror: &Manifest<B>,
        source: Option<&Manifest<B>>,
    ) -> Result<Vec<Known>, ManifestError> {
        let mut known = vec![Known::Nothing; self.count() as usize];
        let mirrored = mirror.mirrored()?.map(|mirrored| mirrored.snapshot);
        if mirror.is_packed() != self.manifest.is_packed() {
            return Ok(known);
        }
        if mirrored == Some(self.manifest.snapshot()) {
            for (number, known) in known.iter_mut().enumerate() {
                *known = known_in(mirror, number as u32)?;
            }
            return Ok(known);
        }
        let Some(source) = source.filter(|source| mirrored == Some(source.snapshot())) else { return Ok(known) };
        if self.manifest.is_packed() {
            for old in 0..source.totals().packs {
                let was = source.pack(old)?;
                let Some(&new) = self.packs.get(was.key) else { continue };
                let is_strong = !was.etag.is_empty() && !was.etag.starts_with("W/");
                if is_strong && self.manifest.pack(new)? == was {
                    known[new as usize] = known_in(mirror, old)?;
                }
            }
            return Ok(known);
        }
        for change in self.manifest.compare(source) {
            if let FileChange::Unchanged { old, new } = change? {
                known[new.0 as usize] = known_in(mirror, old.0)?;
            }
        }
        Ok(known)
    }
}

/// The entry of a mirror's manifest for the object of a number.
fn known_in<B: ManifestBytes>(mirror: &Manifest<B>, number: u32) -> Result<Known, ManifestError> {
    if mirror.is_packed() {
        let version = mirror.pack(number)?.version();
        return Ok(version.map_or(Known::Unversioned, |version| Known::Version(owned(version))));
    }
    let version = mirror.version(&mirror.file(FileIndex(number))?)?;
    Ok(version.map_or(Known::Nothing, |version| Known::Version(owned(version))))
}

/// The same version, borrowed from nothing.
fn owned(tag: VersionTag<'_>) -> VersionTag<'static> {
    match tag {
        VersionTag::ETag(etag) => VersionTag::ETag(etag.into_owned().into()),
        VersionTag::MtimeSize { mtime_ns, size } => VersionTag::MtimeSize { mtime_ns, size },
    }
}
