use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::layout::{CHUNK_BYTES, HEADER_BYTES, Section, header, u64_at};
use super::*;
use crate::block::BlockIndex;
use crate::checksum::{crc32c, crc32c_combine};
use crate::name::{NameRules, Rejection};

const MD5: &str = "\"0123456789abcdef0123456789abcdef\"";

fn plain<'a>(path: &'a [u8], size: u64, etag: &'a str) -> PlainFile<'a> {
    PlainFile { path, size, mtime_ns: 1_700_000_000_000_000_000, version: VersionTag::ETag(Cow::Borrowed(etag)) }
}

fn build(files: &[(&[u8], u64, &str)]) -> Built {
    let mut builder = ManifestBuilder::new();
    for (path, size, etag) in files {
        builder.push(&plain(path, *size, etag), NameRules::FOLDER).unwrap();
    }
    builder.finish("small", "s3://bucket/small", 42).unwrap()
}

/// The snapshots whose bytes are checked in: one of each kind, together with every version tag.
fn golden() -> [(&'static str, &'static [u8], Vec<u8>); 3] {
    let mut builder = ManifestBuilder::new();
    let mut add = |path: &[u8], size, version| {
        builder.push(&PlainFile { path, size, mtime_ns: -1, version }, NameRules::FOLDER).unwrap();
    };
    add(b"train/n01440764/n01440764_10026.JPEG", 13_697, VersionTag::ETag(MD5.into()));
    add(
        b"train/n01440764/n01440764_10027.JPEG",
        9 << 20,
        VersionTag::ETag("\"0123456789abcdef0123456789abcdef-3\"".into()),
    );
    add(b"empty", 0, VersionTag::ETag("W/\"odd\"".into()));
    add(&[0xff, b'/', 0xfe], 1, VersionTag::MtimeSize { mtime_ns: -1, size: 1 });
    builder.push_folder(b"hollow", NameRules::FOLDER).unwrap();
    let plain = builder.finish("golden", "s3://bucket/golden", 1_700_000_000_000_000_000).unwrap().to_bytes();

    let mut builder = ManifestBuilder::new();
    let mut add = |path: &[u8], size, pack, offset, block_crcs: &[u32]| {
        builder.push_packed(&PackedFile { path, size, mtime_ns: 7, pack, offset, block_crcs }).unwrap();
    };
    add(b"b/2", 5 << 20, 1, 0, &[3, 4]);
    add(b"a/1", 100, 0, 0, &[1]);
    add(b"a/2", 0, 0, 100, &[]);
    builder.set_packs(vec![
        PackObject { key: b"packs/000000.pack".to_vec(), size: 100, etag: MD5.into() },
        PackObject { key: b"packs/000001.pack".to_vec(), size: 5 << 20, etag: String::new() },
    ]);
    let packed = builder.finish("golden", "s3://bucket/packed", 0).unwrap().to_bytes();
    [
        ("v1-plain.manifest", include_bytes!("../../golden/v1-plain.manifest"), plain),
        ("v1-packed.manifest", include_bytes!("../../golden/v1-packed.manifest"), packed),
        ("v2-links.manifest", include_bytes!("../../golden/v2-links.manifest"), linked().to_bytes()),
    ]
}

/// A snapshot with links to a file, to a folder and to the root, and two links that are left out.
fn linked() -> Built {
    let mut builder = ManifestBuilder::new();
    for (path, size) in [(&b"blobs/a1"[..], 5), (b"blobs/b2", 5 << 20)] {
        let version = VersionTag::ETag(MD5.into());
        builder.push(&PlainFile { path, size, mtime_ns: -1, version }, NameRules::FOLDER).unwrap();
    }
    for (path, target, mtime_ns) in [
        (&b"snapshots/x/model.bin"[..], &b"blobs/b2"[..], 7),
        (b"snapshots/main", b"snapshots/x", 8),
        (b"all", b"", 9),
        (b"lost", b"blobs/none", 10),
        (b"blobs/a1", b"blobs/b2", 11),
    ] {
        builder.push_link(path, target, mtime_ns).unwrap();
    }
    builder.finish("golden", "s3://bucket/links", 0).unwrap()
}

// SEMANTICS: N6
#[test]
fn links_lead_to_rows_and_their_texts_stay_in_the_tree() {
    let manifest = Manifest::open(&include_bytes!("../../golden/v2-links.manifest")[..]).unwrap();
    assert_eq!((manifest.totals().files, manifest.totals().links, manifest.totals().blocks), (2, 3, 3));
    let Some(Entry::File(model)) = manifest.resolve(b"blobs/b2").unwrap() else { panic!("blobs/b2 is missing") };
    let Some(Entry::Dir(snapshot)) = manifest.resolve(b"snapshots/x").unwrap() else { panic!("no snapshots/x") };
    for (path, target, text, mtime_ns) in [
        (&b"snapshots/x/model.bin"[..], LinkTarget::File(model), &b"../../blobs/b2"[..], 7),
        (b"snapshots/main", LinkTarget::Dir(snapshot), b"x", 8),
        (b"all", LinkTarget::Dir(DirIndex(0)), b".", 9),
    ] {
        let Some(Entry::Link(index)) = manifest.resolve(path).unwrap() else { panic!("{}", path.escape_ascii()) };
        let link = manifest.link(index).unwrap();
        assert_eq!((link.target, link.mtime_ns), (target, mtime_ns));
        assert_eq!(manifest.link_text(&link).unwrap(), text);
        assert_eq!(manifest.link_path(&link).unwrap(), path);
        assert_eq!(manifest.follow(path).unwrap(), Some(target.into()));
        assert!(manifest.links_of(link.dir).unwrap().contains(&index.0));
    }
    let through = b"all/snapshots/main/model.bin";
    assert_eq!(manifest.follow(through).unwrap(), Some(Entry::File(model)));
    assert_eq!(manifest.resolve(through).unwrap(), None, "a path through a link is followed only on request");
    assert_eq!(manifest.resolve(b"lost").unwrap(), None);
    assert!(matches!(manifest.resolve(b"blobs/a1").unwrap(), Some(Entry::File(_))));
    assert!(manifest.links_of(snapshot).unwrap().len() == 1 && manifest.link(LinkIndex(3)).is_err());
}

#[test]
fn a_snapshot_differs_by_its_links_and_one_without_links_has_the_first_version() {
    let files: &[(&[u8], u64, &str)] = &[(b"a", 1, MD5), (b"b", 1, MD5)];
    let with = |target: &[u8]| {
        let mut builder = ManifestBuilder::new();
        for (path, size, etag) in files {
            builder.push(&plain(path, *size, etag), NameRules::FOLDER).unwrap();
        }
        builder.push_link(b"c", target, 0).unwrap();
        builder.finish("small", "s3://bucket/small", 42).unwrap()
    };
    let (to_a, to_b, to_none) = (with(b"a"), with(b"b"), with(b"none"));
    assert_ne!(to_a.snapshot, to_b.snapshot);
    assert_eq!((to_a.to_bytes()[header::VERSION], to_none.to_bytes()[header::VERSION]), (2, 1));
    assert_eq!(to_none.to_bytes(), build(files).to_bytes());
}

#[test]
fn a_manifest_whose_links_are_not_as_they_must_be_does_not_verify() {
    let bytes = linked().to_bytes();
    // The links section: its place in the table follows the heap's.
    let rows = u64_at(&bytes, header::SECTIONS + 5 * 16) as usize;
    let set = |changes: &[(usize, u32)]| {
        let mut broken = bytes.clone();
        for (at, value) in changes {
            broken[rows + at..rows + at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let broken = reseal(broken);
        Manifest::open(broken).and_then(|manifest| manifest.verify()).unwrap_err().to_string()
    };
    for (what, changes) in [
        ("a folder that does not exist", &[(16, 99)][..]),
        ("a target that does not exist", &[(20, 99)]),
        ("an unknown kind of target", &[(24, 2)]),
        ("a folder after the next link's", &[(16, 3)]),
        ("an empty name", &[(0, 0), (4, 0)]),
    ] {
        let said = set(changes);
        assert!(said.contains("link row"), "{what}: {said}");
    }
}

proptest! {
    #[test]
    fn the_text_of_a_link_leads_from_its_folder_to_its_target(from in path(), to in path()) {
        for (from, to) in [(&from[..], &to[..]), (&from, b""), (b"", &to), (b"", b"")] {
            let text = read::relative(from, to);
            let mut at: Vec<&[u8]> = from.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
            for part in text.split(|byte| *byte == b'/') {
                match part {
                    b"." => {}
                    b".." => prop_assert!(at.pop().is_some(), "above the root"),
                    part => at.push(part),
                }
            }
            prop_assert_eq!(at.join(&b'/'), to);
        }
    }
}

#[test]
fn golden_files_are_still_written_and_read() {
    for (name, checked_in, made) in golden() {
        if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
            std::fs::write(format!("{}/golden/{name}", std::env::var("CARGO_MANIFEST_DIR").unwrap()), &made).unwrap();
        }
        assert_eq!(checked_in, made, "{name}: the format changed: raise the version and add a golden file beside it");
        Manifest::open(checked_in).unwrap().verify().unwrap();
    }
}

// SEMANTICS: I10
#[test]
fn a_header_shows_whether_a_manifest_of_this_length_can_be_opened() {
    for (name, bytes, _) in golden() {
        let header = &bytes[..256];
        let len = bytes.len() as u64;
        check_header(header, len).unwrap();
        for other in [0, 1, 255, 256, len - 1, len + 1, 2 * len, 5_000_000_000_000, u64::MAX] {
            let refused = check_header(header, other).unwrap_err();
            assert!(matches!(refused, ManifestError::Corrupt { .. }), "{name}: {other}: {refused}");
        }
        for at in 0..256 {
            let mut broken = bytes.to_vec();
            broken[at] ^= 1;
            assert!(check_header(&broken[..256], len).is_err(), "{name}: byte {at}");
            assert!(check_header(&bytes[..at], len).is_err(), "{name}: {at} bytes");
        }
    }
}

#[test]
fn every_row_of_the_plain_golden_file_reads_back() {
    let manifest = Manifest::open(&include_bytes!("../../golden/v1-plain.manifest")[..]).unwrap();
    assert_eq!(
        manifest.totals(),
        Totals { dirs: 5, files: 4, blocks: 5, packs: 0, links: 0, bytes: 13_697 + (9 << 20) + 1 }
    );
    assert_eq!(manifest.name_and_origin().unwrap(), ("golden", "s3://bucket/golden"));
    let file = |path: &[u8]| match manifest.resolve(path).unwrap() {
        Some(Entry::File(file)) => manifest.file(file).unwrap(),
        other => panic!("{}: {other:?}", path.escape_ascii()),
    };
    let image = file(b"train/n01440764/n01440764_10027.JPEG");
    assert_eq!((image.size, image.mtime_ns, image.location), (9 << 20, -1, Location::Object));
    assert_eq!(
        manifest.version(&image).unwrap(),
        Some(VersionTag::ETag("\"0123456789abcdef0123456789abcdef-3\"".into()))
    );
    assert_eq!(manifest.version(&file(b"empty")).unwrap(), Some(VersionTag::ETag("W/\"odd\"".into())));
    assert_eq!(
        manifest.version(&file(&[0xff, b'/', 0xfe])).unwrap(),
        Some(VersionTag::MtimeSize { mtime_ns: -1, size: 1 })
    );
    assert!(matches!(manifest.resolve(b"hollow").unwrap(), Some(Entry::Dir(_))));
    assert_eq!(manifest.resolve(b"train/none").unwrap(), None);
    assert_eq!(manifest.resolve(b"empty/below").unwrap(), None);
    assert_eq!(manifest.file_crc(&image).unwrap(), None);
}

#[test]
fn packed_files_know_their_pack_and_checksums() {
    let manifest = Manifest::open(&include_bytes!("../../golden/v1-packed.manifest")[..]).unwrap();
    let Some(Entry::File(index)) = manifest.resolve(b"b/2").unwrap() else { panic!("b/2 is missing") };
    let file = manifest.file(index).unwrap();
    assert_eq!(file.location, Location::Pack { pack: 1, offset: 0 });
    assert_eq!(manifest.block_crc(file.first_block).unwrap(), Some(3));
    assert_eq!(manifest.block_crc(BlockIndex(file.first_block.0 + 1)).unwrap(), Some(4));
    assert_eq!(manifest.file_crc(&file).unwrap(), Some(crc32c_combine(3, 4, 1 << 20)));
    assert_eq!(manifest.version(&file).unwrap(), None, "a pack in a folder has no ETag");
    assert_eq!(manifest.pack(0).unwrap().etag, MD5);
}

#[test]
fn a_file_beside_a_folder_of_the_same_name_is_shadowed_and_reported() {
    let built = build(&[(b"a", 1, MD5), (b"a/b", 2, MD5), (b"a/b/c", 3, MD5)]);
    let keys: Vec<_> = built.rejected.iter().map(|rejected| (rejected.key.as_slice(), rejected.reason)).collect();
    assert_eq!(keys, [(&b"a"[..], Rejection::ShadowedByFolder), (b"a/b", Rejection::ShadowedByFolder)]);
    let manifest = Manifest::open(built.to_bytes()).unwrap();
    manifest.verify().unwrap();
    assert_eq!(manifest.totals().files, 1);
    assert!(matches!(manifest.resolve(b"a/b").unwrap(), Some(Entry::Dir(_))));
}

#[test]
fn a_file_listed_twice_is_kept_once_unless_it_changed() {
    let built = build(&[(b"a", 1, MD5), (b"a", 1, MD5)]);
    assert_eq!(built.totals.files, 1);
    let mut builder = ManifestBuilder::new();
    builder.push(&plain(b"a", 1, MD5), NameRules::FOLDER).unwrap();
    builder.push(&plain(b"a", 2, MD5), NameRules::FOLDER).unwrap();
    assert_eq!(builder.finish("n", "s3://b", 0).unwrap_err(), BuildError::ChangedWhileListed { path: "a".into() });
}

#[test]
fn the_snapshot_id_depends_on_contents_and_origin_only() {
    let files: &[(&[u8], u64, &str)] = &[(b"x/1", 1, MD5), (b"y", 2, MD5), (b"x/0", 3, MD5)];
    let reversed: Vec<_> = files.iter().rev().copied().collect();
    let (one, two) = (build(files), build(&reversed));
    assert_eq!(one.to_bytes(), two.to_bytes());
    let mut changed = files.to_vec();
    changed[0].1 = 9;
    assert_ne!(build(&changed).snapshot, one.snapshot);
}

#[test]
fn a_million_imagenet_like_paths_cost_at_most_100_bytes_each() {
    let mut builder = ManifestBuilder::new();
    for class in 0..1000 {
        for image in 0..1000 {
            let path = format!("train/n{:08}/n{:08}_{image}.JPEG", 1_440_764 + class, 1_440_764 + class);
            builder.push(&plain(path.as_bytes(), 110_000, MD5), NameRules::OBJECT_STORE).unwrap();
        }
    }
    let built = builder.finish("imagenet", "s3://bucket/imagenet", 0).unwrap();
    let bytes_a_file = built.len_bytes() as f64 / 1e6;
    println!("{bytes_a_file} bytes per file");
    assert!(bytes_a_file <= 100.0, "{bytes_a_file}");
}

#[test]
fn other_files_and_other_versions_are_named_for_what_they_are() {
    assert_eq!(Manifest::open(&b"hello"[..]).unwrap_err(), ManifestError::NotAManifest);
    assert_eq!(Manifest::open(&[0; 4096][..]).unwrap_err(), ManifestError::NotAManifest);
    let mut bytes = build(&[(b"a", 1, MD5)]).to_bytes();
    bytes[8] = 9;
    assert_eq!(Manifest::open(bytes).unwrap_err(), ManifestError::Version { found: 9, supported: 2 });
}

// SEMANTICS: I3
#[test]
fn a_flipped_bit_anywhere_is_found() {
    let bytes = build(&[(b"a/b", 1, MD5), (b"c", 5 << 20, "odd")]).to_bytes();
    for at in 0..bytes.len() {
        let mut broken = bytes.clone();
        broken[at] ^= 1;
        let found = Manifest::open(broken).and_then(|manifest| manifest.verify());
        assert!(found.is_err(), "byte {at}");
    }
}

#[test]
fn a_manifest_cut_off_anywhere_is_found() {
    let bytes = build(&[(b"a/b", 1, MD5)]).to_bytes();
    for len in 0..bytes.len() {
        assert!(Manifest::open(&bytes[..len]).is_err(), "{len} bytes");
    }
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::collection::vec(prop::sample::select(&b"abc\xff"[..]), 1..3), 1..4)
        .prop_map(|parts| parts.join(&b'/'))
}

proptest! {
    #[test]
    fn a_manifest_is_the_map_it_was_made_from(
        files in prop::collection::btree_map(path(), 0..20_u64 << 20, 0..40),
        others in prop::collection::vec(path(), 0..10),
    ) {
        let mut builder = ManifestBuilder::new();
        for (path, size) in &files {
            builder.push(&plain(path, *size, MD5), NameRules::FOLDER).unwrap();
        }
        let built = builder.finish("n", "file:///n", 0).unwrap();
        let shadowed: Vec<_> = built.rejected.iter().map(|rejected| rejected.key.clone()).collect();
        let manifest = Manifest::open(built.to_bytes()).unwrap();
        manifest.verify().unwrap();

        let expected: BTreeMap<_, _> = files.iter().filter(|(path, _)| !shadowed.contains(path)).collect();
        let mut blocks = 0;
        for index in 0..manifest.totals().files {
            let file = manifest.file(FileIndex(index)).unwrap();
            let path = manifest.file_path(&file).unwrap();
            prop_assert_eq!(expected.get(&path).copied().copied(), Some(file.size));
            prop_assert_eq!(manifest.resolve(&path).unwrap(), Some(Entry::File(FileIndex(index))));
            for part in file.parts(0, file.size) {
                prop_assert_eq!(part.block.0, blocks);
                prop_assert_eq!(manifest.file_of_block(part.block).unwrap(), FileIndex(index));
                blocks += 1;
            }
        }
        prop_assert_eq!(manifest.totals().files as usize, expected.len());
        prop_assert!(manifest.file_of_block(BlockIndex(blocks)).is_err());
        for other in others {
            let is_file = matches!(manifest.resolve(&other).unwrap(), Some(Entry::File(_)));
            prop_assert_eq!(is_file, expected.contains_key(&other));
        }
    }

    #[test]
    fn broken_bytes_never_panic(changes in prop::collection::vec((0..2000_usize, any::<u8>()), 1..8)) {
        let mut bytes = build(&[(b"a/b", 1, MD5), (b"a/c", 9 << 20, "odd"), (b"d", 0, MD5)]).to_bytes();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        // Correct the checksums, so that the rows themselves are tested.
        walk(&reseal(bytes));
    }

    #[test]
    fn broken_links_never_panic(changes in prop::collection::vec((0..2000_usize, any::<u8>()), 1..8)) {
        let mut bytes = linked().to_bytes();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        walk(&reseal(bytes));
    }
}

/// Updates the CRCs to match the current bytes.
pub(super) fn reseal(mut bytes: Vec<u8>) -> Vec<u8> {
    let crcs = Section::of_version(bytes[header::VERSION]).count() - 1;
    let crcs_at = (u64_at(&bytes, header::SECTIONS + crcs * 16) as usize).min(bytes.len());
    let chunks = crcs_at.div_ceil(CHUNK_BYTES);
    for chunk in 0..chunks {
        let range = (chunk * CHUNK_BYTES).max(HEADER_BYTES)..((chunk + 1) * CHUNK_BYTES).min(crcs_at);
        let Some(body) = bytes.get(range) else { return bytes };
        let crc = crc32c(body).to_le_bytes();
        let Some(slot) = bytes.get_mut(crcs_at + chunk * 4..crcs_at + chunk * 4 + 4) else { return bytes };
        slot.copy_from_slice(&crc);
    }
    let crc = crc32c(&bytes[crcs_at..]).to_le_bytes();
    bytes[header::CHUNKS_CRC..header::CRC].copy_from_slice(&crc);
    let crc = crc32c(&bytes[..header::CRC]).to_le_bytes();
    bytes[header::CRC..HEADER_BYTES].copy_from_slice(&crc);
    bytes
}

/// Calls every method that a mount calls.
fn walk(bytes: &[u8]) {
    let Ok(manifest) = Manifest::open(bytes) else { return };
    let _ = manifest.verify();
    let _ = manifest.name_and_origin();
    for index in 0..manifest.totals().files.min(100) {
        if let Ok(file) = manifest.file(FileIndex(index)) {
            let _ = (manifest.file_path(&file), manifest.version(&file), manifest.file_crc(&file));
        }
    }
    for index in 0..manifest.totals().dirs.min(100) {
        if let Ok(dir) = manifest.dir(DirIndex(index)) {
            let _ = (manifest.lookup(&dir, b"a"), manifest.lookup(&dir, b"d"));
        }
    }
    for index in 0..manifest.totals().links.min(100) {
        if let Ok(link) = manifest.link(LinkIndex(index)) {
            let _ = (manifest.link_text(&link), manifest.link_path(&link), manifest.links_of(link.dir));
        }
    }
    let _ = (manifest.follow(b"all/snapshots/main/model.bin"), manifest.resolve(b"all"));
    for block in 0..10 {
        let _ = (manifest.file_of_block(BlockIndex(block)), manifest.block_crc(BlockIndex(block)));
    }
}

/// Bytes that a simulated disk can lose and recover.
struct Failing {
    sound: Vec<u8>,
    lost: Vec<u8>,
    is_lost: Cell<bool>,
    losses: Cell<u32>,
    can_be_read_again: Cell<bool>,
}

impl Failing {
    /// Creates bytes that read as zeros from `at` on once they are lost.
    fn new(sound: Vec<u8>, at: usize) -> Self {
        let mut lost = sound.clone();
        lost[at..].fill(0);
        Self { sound, lost, is_lost: Cell::default(), losses: Cell::default(), can_be_read_again: Cell::default() }
    }

    fn lose(&self) {
        self.losses.set(self.losses.get() + 1);
        self.is_lost.set(true);
    }
}

impl AsRef<[u8]> for Failing {
    fn as_ref(&self) -> &[u8] {
        if self.is_lost.get() { &self.lost } else { &self.sound }
    }
}

impl ManifestBytes for Failing {
    fn losses(&self) -> u32 {
        self.losses.get()
    }

    fn read_again(&self, _: &[std::ops::Range<usize>]) -> bool {
        if self.can_be_read_again.get() {
            self.is_lost.set(false);
        }
        self.can_be_read_again.get()
    }
}

// SEMANTICS: I3
#[test]
fn bytes_that_the_disk_loses_are_an_error_until_they_can_be_read_again_and_never_wrong() {
    let names: Vec<_> = (0..5000).map(|n| format!("f{n:04}").into_bytes()).collect();
    let files: Vec<_> = names.iter().map(|name| (&name[..], name.len() as u64 + 100, MD5)).collect();
    let bytes = build(&files).to_bytes();
    let failing = Failing::new(bytes, 2 * CHUNK_BYTES);
    let manifest = Manifest::open(&failing).unwrap();
    let root = manifest.dir(DirIndex(0)).unwrap();
    let read = |n: u32| manifest.file(FileIndex(n)).map(|file| (file.size, file.dir));
    for n in 0..5000 {
        read(n).unwrap();
    }
    failing.lose();
    let lost = |result: Result<(u64, DirIndex), ManifestError>| matches!(result, Err(ManifestError::Corrupt { .. }));
    // The lost part includes the name of every file and the checksums of the chunks.
    assert!((0..5000).all(|n| lost(read(n))));
    assert!(manifest.lookup(&root, b"f0001").is_err() && manifest.resolve(b"f4999").is_err());
    assert!(manifest.name_and_origin().is_err() && manifest.block_lens().len_of(BlockIndex(4000)).is_err());
    failing.can_be_read_again.set(true);
    // This reads the disk again. (These bytes move when it succeeds; the bytes of a mapped file do not.)
    let _ = read(0);
    for n in 0..5000 {
        assert_eq!(read(n), Ok((105, DirIndex(0))));
    }
    // Losing bytes while they are in use is an error too, even if they had been read before.
    let used = manifest.stable(|| {
        let name = manifest.file(FileIndex(7))?.name;
        failing.lose();
        Ok::<_, ManifestError>(name.len())
    });
    assert!(used.is_err());
    // After a later loss, bytes that were verified before are checked again.
    failing.can_be_read_again.set(false);
    assert!(lost(read(7)));
}

#[test]
fn lengths_in_order_are_those_of_the_files() {
    let sizes = [0, 1, (4 << 20) + 1, 0, 0, 12 << 20, 4 << 20, 7];
    let names: Vec<_> = (0..2000).map(|n| format!("{n:04}").into_bytes()).collect();
    let files: Vec<_> = names.iter().enumerate().map(|(n, name)| (&name[..], sizes[n % sizes.len()], MD5)).collect();
    let manifest = Manifest::open(build(&files).to_bytes()).unwrap();
    let mut expected = Vec::new();
    for index in (0..2000).map(FileIndex) {
        let file = manifest.file(index).unwrap();
        for part in file.parts(0, file.size) {
            assert_eq!((part.block.0 as usize, manifest.file_of_block(part.block)), (expected.len(), Ok(index)));
            expected.push(part.block_len);
        }
    }
    assert_eq!(expected.len() as u32, manifest.totals().blocks);
    for step in [1, 2, 3, 1000] {
        let mut lens = manifest.block_lens();
        for (block, &len) in expected.iter().enumerate().step_by(step) {
            assert_eq!(lens.len_of(BlockIndex(block as u32)), Ok(len), "every {step}");
        }
    }
    let mut lens = manifest.block_lens();
    for (block, &len) in expected.iter().enumerate().rev() {
        assert_eq!(lens.len_of(BlockIndex(block as u32)), Ok(len));
    }
    assert!(lens.len_of(BlockIndex(expected.len() as u32)).is_err());
}
