//! Extents of packs: the files that one GET fetches, and that one node owns.

use larder_dataset::{BLOCK_BYTES, BlockIndex, FileIndex, Location, ManifestError, PlaceKey};

use crate::manifest_file::MappedManifest;

/// The size of an extent. One GET fetches the files that begin in the same extent of a pack.
pub(crate) const EXTENT_BYTES: u64 = 3 << 20;

/// The key that decides which node owns a block: that of its file, and the number of the block in it. The files of an
/// extent share one: that of their pack, and the number of the extent in it. Neither depends on the snapshot, so a file
/// keeps its owner in the next one. Does not allocate.
pub(crate) fn place_key(manifest: &MappedManifest, index: FileIndex, block: BlockIndex) -> PlaceKey {
    // The block of a damaged row cannot be read, so its owner does not matter.
    file_key(manifest, index, block).unwrap_or(PlaceKey::of_origin("").number(block.0.into()))
}

fn file_key(manifest: &MappedManifest, index: FileIndex, block: BlockIndex) -> Result<PlaceKey, ManifestError> {
    manifest.stable(|| {
        let (_, url) = manifest.name_and_origin()?;
        let origin = PlaceKey::of_origin(url);
        if let Some(extent) = manifest.is_packed().then(|| Extent::of(manifest, index)).flatten() {
            return Ok(origin.name(manifest.pack(extent.pack)?.key).number(extent.start / EXTENT_BYTES));
        }
        let file = manifest.file(index)?;
        let (mut key, mut at) = (origin.name(file.name), file.dir);
        while at.0 != 0 {
            let dir = manifest.dir(at)?;
            (key, at) = (key.name(dir.name), dir.parent);
        }
        Ok(key.number(u64::from(block.0.saturating_sub(file.first_block.0))))
    })
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Instant;

    use larder_dataset::manifest::{PackObject, PackedFile, PlainFile};
    use larder_dataset::{Entry, ManifestBuilder, NameRules, VersionTag};

    use super::*;
    use crate::manifest_file::open_manifest;

    fn written(builder: ManifestBuilder) -> MappedManifest {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("manifest");
        std::fs::write(&path, builder.finish("pets", "s3://bucket/pets", 0).unwrap().to_bytes()).unwrap();
        open_manifest(&path).unwrap()
    }

    fn plain(files: impl Iterator<Item = (String, u64, u64)>) -> MappedManifest {
        let mut builder = ManifestBuilder::new();
        for (path, size, version) in files {
            let version = VersionTag::ETag(format!("\"{version:032x}\"").into());
            let file = PlainFile { path: path.as_bytes(), size, mtime_ns: 0, version };
            builder.push(&file, NameRules::OBJECT_STORE).unwrap();
        }
        written(builder)
    }

    /// The keys of the blocks of a file.
    fn keys(manifest: &MappedManifest, path: &str) -> Vec<PlaceKey> {
        let Some(Entry::File(index)) = manifest.resolve(path.as_bytes()).unwrap() else { panic!("{path} is a file") };
        let file = manifest.file(index).unwrap();
        file.parts(0, file.size).map(|part| place_key(manifest, index, part.block)).collect()
    }

    // SEMANTICS: C18
    #[test]
    fn files_keep_their_keys_in_the_next_snapshot_whatever_comes_and_goes_beside_them() {
        let path = |number: u64| format!("class-{}/image-{number}", number % 7);
        let before = plain((0..500).map(|number| (path(number), (number % 3) * BLOCK_BYTES + 1, 0)));
        // Some are replaced, some are gone, some are new.
        let kept = (0..500).filter(|number| number % 10 != 3);
        let next = kept.chain(1000..1100).map(|number| (path(number), (number % 3) * BLOCK_BYTES + 1, number % 5));
        let after = plain(next);
        assert_ne!(before.snapshot(), after.snapshot());
        let mut owners = HashMap::new();
        for number in (0..500).filter(|number| number % 10 != 3) {
            let keys = keys(&before, &path(number));
            assert_eq!(keys, self::keys(&after, &path(number)));
            assert_eq!(keys.len() as u64, number % 3 + 1);
            for key in keys {
                assert_eq!(owners.insert(key, number), None, "each block has a key of its own");
            }
        }
    }

    // SEMANTICS: C18
    #[test]
    fn packs_keep_their_keys_in_the_next_snapshot_and_the_files_of_an_extent_share_one() {
        let packed = |packs: &[&str]| {
            let mut builder = ManifestBuilder::new();
            for (pack, name) in (0..).zip(packs) {
                for file in 0..10_u64 {
                    let (path, size) = (format!("{name}/{file}"), 1 << 20);
                    let offset = file * size;
                    let file = PackedFile { path: path.as_bytes(), size, mtime_ns: 0, pack, offset, block_crcs: &[0] };
                    builder.push_packed(&file).unwrap();
                }
            }
            let object =
                |name: &&str| PackObject { key: name.as_bytes().to_vec(), size: 10 << 20, etag: "\"1\"".into() };
            builder.set_packs(packs.iter().map(object).collect());
            written(builder)
        };
        let (before, after) = (packed(&["a", "b", "c"]), packed(&["a", "c", "d"]));
        for file in (0..10).flat_map(|file| [format!("a/{file}"), format!("c/{file}")]) {
            assert_eq!(keys(&before, &file), keys(&after, &file), "{file}");
        }
        assert_eq!(keys(&before, "a/0"), keys(&before, "a/2"));
        assert_ne!(keys(&before, "a/2"), keys(&before, "a/3"));
        assert_ne!(keys(&before, "a/0"), keys(&before, "b/0"));
    }

    /// `cargo test --release -- --ignored what_a_key_takes --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn what_a_key_takes() {
        let files = 1_000_000;
        let manifest = plain((0..files).map(|n| (format!("train/n{:08}/n{n:08}_10026.JPEG", n / 1000), 111_000, 0)));
        for round in 0..2 {
            let started = Instant::now();
            for index in 0..files as u32 {
                std::hint::black_box(place_key(&manifest, FileIndex(index), BlockIndex(index)));
            }
            println!("round {round}: {:?} a key", started.elapsed() / files as u32);
        }
    }
}
