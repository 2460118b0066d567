//! A snapshot in a mirror: which object there has the bytes of an object of the snapshot.

use std::collections::HashMap;
use std::ops::Range;

use larder_dataset::{Entry, FileIndex, ManifestError};
use larder_import::{ObjectRange, object_range, version_of};
use larder_origin::{ObjectInfo, Version};

use crate::manifest_file::MappedManifest;

/// The copy of a snapshot.
#[derive(Debug)]
pub(super) struct Copied {
    mirror: MappedManifest,
    /// The packs by key, if the packs of the snapshot were copied.
    packs: Option<HashMap<Vec<u8>, u32>>,
}

impl Copied {
    /// Takes the manifest of a mirror of `snapshot`. Errors: it mirrors something else, in words.
    pub(super) fn of(snapshot: &MappedManifest, mirror: MappedManifest) -> Result<Self, String> {
        let broken = |error: ManifestError| format!("its manifest is damaged: {error}");
        let mirrored = mirror.mirrored().map_err(broken)?.map(|mirrored| mirrored.snapshot);
        match mirrored {
            None => return Err("its manifest is that of a dataset of its own, and of no mirror".to_owned()),
            Some(other) if other != snapshot.snapshot() => {
                return Err(format!("it mirrors the snapshot {other}, and {} is read", snapshot.snapshot()));
            }
            Some(_) => {}
        }
        let (ours, theirs) = (snapshot.totals(), mirror.totals());
        let is_same = (ours.files, ours.bytes, ours.blocks) == (theirs.files, theirs.bytes, theirs.blocks);
        if !is_same || snapshot.is_packed() && !mirror.is_packed() {
            return Err("its manifest has other files than the snapshot that it names".to_owned());
        }
        let packs = snapshot.is_packed().then(|| {
            let packs = (0..theirs.packs).map(|pack| Ok((mirror.pack(pack)?.key.to_vec(), pack)));
            packs.collect::<Result<HashMap<_, _>, ManifestError>>()
        });
        let packs = packs.transpose().map_err(broken)?;
        Ok(Self { mirror, packs })
    }

    /// Where a range of an object of the snapshot is in the mirror. `None` if it is not there.
    pub(super) fn object(&self, key: &[u8], range: Range<u64>) -> Option<ObjectRange> {
        if let Some(packs) = &self.packs {
            let pack = self.mirror.pack(*packs.get(key)?).ok()?;
            return Some(ObjectRange { key: key.to_vec(), range, version: pack.version().map(version_of) });
        }
        let file = self.mirror.file(file_of(&self.mirror, key)?).ok()?;
        object_range(&self.mirror, &file, range).ok()
    }
}

/// The file whose path is a key.
fn file_of(manifest: &MappedManifest, key: &[u8]) -> Option<FileIndex> {
    match manifest.resolve(key).ok()?? {
        Entry::File(index) => Some(index),
        Entry::Dir(_) | Entry::Link(_) => None,
    }
}

/// An object of a snapshot as its manifest describes it.
pub(super) fn described(snapshot: &MappedManifest, key: &[u8]) -> Option<ObjectInfo> {
    let (size, version) = if snapshot.is_packed() {
        let mut packs = (0..snapshot.totals().packs).map_while(|pack| snapshot.pack(pack).ok());
        let pack = packs.find(|pack| pack.key == key)?;
        (pack.size, Version::ETag(pack.etag.to_owned()))
    } else {
        let file = snapshot.file(file_of(snapshot, key)?).ok()?;
        (file.size, object_range(snapshot, &file, 0..0).ok()?.version?)
    };
    Some(ObjectInfo { key: key.to_vec(), size, mtime_ns: 0, version })
}
