use super::super::{ManifestBuilder, Mirrored, PackObject, PackedFile, PlainFile};
use super::*;
use crate::manifest::{Entry, Location};
use crate::name::NameRules;
use crate::snapshot::SnapshotId;

fn etag(text: &str) -> VersionTag<'static> {
    VersionTag::ETag(format!("\"{text}\"").into())
}

/// Files in several folders, an empty folder, an empty file and links.
fn plain() -> Manifest<Vec<u8>> {
    let mut builder = ManifestBuilder::new();
    for (path, size) in [(&b"a/1"[..], 9 << 20), (b"a/2", 0), (b"b", 5), (&[0xff, b'/', 0xfe], 7)] {
        let file = PlainFile { path, size, mtime_ns: 70, version: etag("0123456789abcdef0123456789abcdef") };
        builder.push(&file, NameRules::FOLDER).unwrap();
    }
    builder.push_folder(b"hollow/deep", NameRules::FOLDER).unwrap();
    builder.push_link(b"a/link", b"b", 8).unwrap();
    Manifest::open(builder.finish("set", "s3://bucket/set", 42).unwrap().to_bytes()).unwrap()
}

fn packed() -> Manifest<Vec<u8>> {
    let mut builder = ManifestBuilder::new();
    let mut add = |path: &[u8], size, pack, offset, block_crcs: &[u32]| {
        builder.push_packed(&PackedFile { path, size, mtime_ns: 7, pack, offset, block_crcs }).unwrap();
    };
    add(b"b/2", 5 << 20, 1, 0, &[3, 4]);
    add(b"a/1", 100, 0, 0, &[1]);
    builder.set_packs(vec![
        PackObject { key: b"packs/0.pack".to_vec(), size: 100, etag: "\"x\"".into() },
        PackObject { key: b"packs/1.pack".to_vec(), size: 5 << 20, etag: String::new() },
    ]);
    Manifest::open(builder.finish("set", "s3://bucket/packed", 0).unwrap().to_bytes()).unwrap()
}

fn mirror(of: &Manifest<Vec<u8>>, version: impl FnMut(u32) -> VersionTag<'static>) -> (Built, Manifest<Vec<u8>>) {
    let built = of.mirrored_at::<Box<dyn std::error::Error>>("gs://other/copy", version).unwrap();
    let mirror = Manifest::open(built.to_bytes()).unwrap();
    mirror.verify().unwrap();
    (built, mirror)
}

// SEMANTICS: M1
#[test]
fn a_mirror_has_the_same_rows_and_its_own_versions() {
    let source = plain();
    let (built, mirror) = mirror(&source, |row| if row == 2 { etag("odd one") } else { etag(&format!("{row}-odd")) });
    assert_eq!(mirror.mirrored().unwrap(), Some(Mirrored { snapshot: source.snapshot(), origin: "s3://bucket/set" }));
    assert_eq!(source.mirrored().unwrap(), None);
    assert_eq!(mirror.name_and_origin().unwrap(), ("set", "gs://other/copy"));
    assert_eq!((mirror.totals(), mirror.created_ns()), (source.totals(), source.created_ns()));
    assert_eq!(built.snapshot, mirror.snapshot());
    assert_ne!(mirror.snapshot(), source.snapshot(), "it is a snapshot of its own where it is read as one");
    for index in (0..source.totals().files).map(FileIndex) {
        let (ours, theirs) = (mirror.file(index).unwrap(), source.file(index).unwrap());
        assert_eq!(mirror.file_path(&ours).unwrap(), source.file_path(&theirs).unwrap());
        assert_eq!((ours.size, ours.mtime_ns, ours.first_block), (theirs.size, theirs.mtime_ns, theirs.first_block));
        let wanted = if index.0 == 2 { etag("odd one") } else { etag(&format!("{}-odd", index.0)) };
        assert_eq!(mirror.version(&ours).unwrap(), Some(wanted));
    }
    for path in [&b"hollow/deep"[..], b"a/link", b"a", b""] {
        assert_eq!(mirror.resolve(path).unwrap(), source.resolve(path).unwrap(), "{}", path.escape_ascii());
    }
    assert!(matches!(mirror.resolve(b"a/link").unwrap(), Some(Entry::Link(_))));
}

#[test]
fn a_mirror_in_a_folder_has_the_times_of_its_files_as_versions() {
    let (_, mirror) = mirror(&plain(), |row| VersionTag::MtimeSize { mtime_ns: i64::from(row) - 1, size: 0 });
    let file = mirror.file(FileIndex(0)).unwrap();
    assert_eq!(mirror.version(&file).unwrap(), Some(VersionTag::MtimeSize { mtime_ns: -1, size: file.size }));
}

#[test]
fn packs_are_mirrored_with_their_checksums_and_places() {
    let source = packed();
    let (_, mirror) = mirror(&source, |pack| etag(&format!("pack {pack}")));
    assert!(mirror.is_packed());
    for pack in 0..2 {
        let (ours, theirs) = (mirror.pack(pack).unwrap(), source.pack(pack).unwrap());
        assert_eq!((ours.key, ours.size), (theirs.key, theirs.size));
        assert_eq!(ours.etag, format!("\"pack {pack}\""));
    }
    for block in (0..source.totals().blocks).map(BlockIndex) {
        assert_eq!(mirror.block_crc(block).unwrap(), source.block_crc(block).unwrap());
    }
    let file = mirror.file(FileIndex(1)).unwrap();
    assert_eq!(file.location, Location::Pack { pack: 1, offset: 0 });
    let unversioned = self::mirror(&source, |_| VersionTag::MtimeSize { mtime_ns: 5, size: 5 }).1;
    assert_eq!(unversioned.pack(0).unwrap().etag, "");
}

#[test]
fn a_packed_mirror_of_a_plain_snapshot_names_it_too() {
    let mut builder = ManifestBuilder::new();
    builder
        .push_packed(&PackedFile { path: b"a", size: 1, mtime_ns: 0, pack: 0, offset: 0, block_crcs: &[9] })
        .unwrap();
    builder.set_packs(vec![PackObject { key: b"p".to_vec(), size: 1, etag: String::new() }]);
    builder.set_mirrored(SnapshotId([7; 32]), "s3://bucket/set");
    let manifest = Manifest::open(builder.finish("set", "s3://b/packs", 0).unwrap().to_bytes()).unwrap();
    manifest.verify().unwrap();
    let mirrored = Mirrored { snapshot: SnapshotId([7; 32]), origin: "s3://bucket/set" };
    assert_eq!(manifest.mirrored().unwrap(), Some(mirrored));
}

#[test]
fn metadata_that_is_cut_off_names_no_mirrored_snapshot() {
    let source = plain();
    let (built, _) = mirror(&source, |_| etag("x"));
    let whole = built.to_bytes();
    for len in 0..whole.len() {
        if let Ok(cut) = Manifest::open(whole[..len].to_vec()) {
            assert!(cut.mirrored().is_err(), "{len} of {} bytes", whole.len());
        }
    }
}
