use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::layout::{DIR_BYTES, HEADER_BYTES};
use super::super::tests::reseal;
use super::*;
use crate::manifest::{ManifestBuilder, PackObject, PackedFile, PlainFile, VersionTag};
use crate::name::NameRules;

/// The size and version of each file, by its path.
type Listing = BTreeMap<&'static str, (u64, u8)>;

/// A version of one of the four kinds that a listing may have, derived from `version`.
fn version(kind: u8, version: u8, size: u64) -> VersionTag<'static> {
    let version = u32::from(version);
    match kind % 4 {
        0 => VersionTag::ETag(Cow::Owned(format!("\"{version:032x}\""))),
        1 => VersionTag::ETag(Cow::Owned(format!("\"{version:032x}-7\""))),
        2 => VersionTag::ETag(Cow::Owned(format!("\"odd-{version}\""))),
        _ => VersionTag::MtimeSize { mtime_ns: version.into(), size },
    }
}

fn manifest(files: &Listing, kind: u8) -> Manifest<Vec<u8>> {
    Manifest::open(bytes_of(files, kind)).unwrap()
}

fn bytes_of(files: &Listing, kind: u8) -> Vec<u8> {
    let mut builder = ManifestBuilder::new();
    for (path, &(size, of)) in files {
        let mtime_ns = if kind == 3 { of.into() } else { 0 };
        let file = PlainFile { path: path.as_bytes(), size, mtime_ns, version: version(kind, of, size) };
        builder.push(&file, NameRules::FOLDER).unwrap();
    }
    builder.finish("n", "s3://bucket/n", 0).unwrap().to_bytes()
}

fn path_of(manifest: &Manifest<Vec<u8>>, file: FileIndex) -> String {
    String::from_utf8(manifest.file_path(&manifest.file(file).unwrap()).unwrap()).unwrap()
}

/// Compares two snapshots. Checks that rows come in order and that `find_unchanged` agrees. Returns the paths of each
/// kind of change.
fn changes(old: &Manifest<Vec<u8>>, new: &Manifest<Vec<u8>>) -> [BTreeSet<String>; 4] {
    let mut found: [BTreeSet<String>; 4] = Default::default();
    let (mut olds, mut news) = (0, 0);
    for change in new.compare(old) {
        let (kind, in_old, in_new) = match change.unwrap() {
            FileChange::Unchanged { old, new } => (0, Some(old), Some(new)),
            FileChange::Changed { old, new } => (1, Some(old), Some(new)),
            FileChange::Added(new) => (2, None, Some(new)),
            FileChange::Removed(old) => (3, Some(old), None),
        };
        if let Some(row) = in_old {
            assert_eq!(row, FileIndex(olds));
            olds += 1;
        }
        if let Some(row) = in_new {
            assert_eq!(row, FileIndex(news));
            news += 1;
            assert_eq!(new.find_unchanged(old, row).unwrap(), in_old.filter(|_| kind == 0));
        }
        let path = in_new.map_or_else(|| path_of(old, in_old.unwrap()), |row| path_of(new, row));
        assert!(in_old.is_none_or(|row| path_of(old, row) == path), "{path}");
        assert!(found[kind].insert(path));
    }
    assert_eq!((olds, news), (old.totals().files, new.totals().files));
    found
}

/// Paths none of which is a folder of another.
const PATHS: [&str; 14] =
    ["a", "a0", "b/a", "b/b", "b/c/a", "b/d", "b0/a", "c/a/a/a", "c/a/b", "c/b/a", "d/a", "d/b", "e/é", "z"];

fn any_listing() -> impl Strategy<Value = Listing> {
    let file = prop_oneof![Just(None), (0..3_u64, 0..3_u8).prop_map(Some)];
    proptest::collection::vec(file, PATHS.len())
        .prop_map(|files| PATHS.into_iter().zip(files).filter_map(|(path, file)| Some((path, file?))).collect())
}

proptest! {
    // SEMANTICS: C16
    #[test]
    fn every_file_of_two_snapshots_is_told_once_with_what_became_of_it(
        before in any_listing(), after in any_listing(), kind in 0..4_u8,
    ) {
        let mut expected: [BTreeSet<String>; 4] = Default::default();
        for path in PATHS {
            let became = match (before.get(path), after.get(path)) {
                (None, None) => continue,
                (Some(old), Some(new)) => usize::from(old != new),
                (None, Some(_)) => 2,
                (Some(_), None) => 3,
            };
            expected[became].insert(path.to_owned());
        }
        prop_assert_eq!(changes(&manifest(&before, kind), &manifest(&after, kind)), expected);
    }
}

#[test]
fn versions_of_different_kinds_and_weak_ones_count_as_changed() {
    let files = Listing::from([("a", (1, 1))]);
    for (one, other) in (0..4).flat_map(|one| (0..4).map(move |other| (one, other))) {
        let [unchanged, changed, ..] = changes(&manifest(&files, one), &manifest(&files, other));
        assert_eq!((unchanged.len(), changed.len()), if one == other { (1, 0) } else { (0, 1) }, "{one} {other}");
    }
    let weak = || {
        let mut builder = ManifestBuilder::new();
        let version = VersionTag::ETag("W/\"1\"".into());
        builder.push(&PlainFile { path: b"a", size: 1, mtime_ns: 0, version }, NameRules::FOLDER).unwrap();
        Manifest::open(builder.finish("n", "s3://bucket/n", 0).unwrap().to_bytes()).unwrap()
    };
    assert_eq!(changes(&weak(), &weak())[1].len(), 1);
}

#[test]
fn a_packed_file_is_unchanged_if_it_is_the_same_range_of_the_same_version_of_a_pack() {
    let packed = |pack: u32, offset: u64, key: &[u8], etag: &str| {
        let mut builder = ManifestBuilder::new();
        let file = PackedFile { path: b"d/a", size: 10, mtime_ns: 0, pack, offset, block_crcs: &[7] };
        builder.push_packed(&file).unwrap();
        let other = PackObject { key: b"packs/other".to_vec(), size: 100, etag: "\"o\"".into() };
        let mut packs = vec![other; 2];
        packs[pack as usize] = PackObject { key: key.to_vec(), size: 100, etag: etag.to_owned() };
        builder.set_packs(packs);
        Manifest::open(builder.finish("n", "s3://bucket/n", 0).unwrap().to_bytes()).unwrap()
    };
    let one = packed(0, 20, b"packs/one", "\"1\"");
    for (other, unchanged) in [
        (packed(1, 20, b"packs/one", "\"1\""), 1),
        (packed(0, 21, b"packs/one", "\"1\""), 0),
        (packed(0, 20, b"packs/two", "\"1\""), 0),
        (packed(0, 20, b"packs/one", "\"2\""), 0),
    ] {
        let [same, changed, ..] = changes(&one, &other);
        assert_eq!((same.len(), changed.len()), (unchanged, 1 - unchanged));
    }
    let untagged = || packed(0, 20, b"packs/one", "");
    assert_eq!(changes(&untagged(), &untagged())[1].len(), 1, "nothing says that the pack is the same");
}

#[test]
fn folders_that_contain_each_other_end_the_walk_with_an_error() {
    let files = PATHS.into_iter().map(|path| (path, (1, 1))).collect();
    let bytes = bytes_of(&files, 0);
    let sound = Manifest::open(bytes.clone()).unwrap();
    let dirs = sound.totals().dirs;
    let mut refused = 0;
    for dir in 0..dirs as usize {
        for first in 0..dirs {
            let mut bytes = bytes.clone();
            // The first child folder, and the number of child folders.
            let row = HEADER_BYTES + dir * DIR_BYTES;
            bytes[row + 12..row + 16].copy_from_slice(&first.to_le_bytes());
            bytes[row + 16..row + 20].copy_from_slice(&(dirs - first).to_le_bytes());
            let odd = Manifest::open(reseal(bytes)).unwrap();
            for (old, new) in [(&odd, &sound), (&sound, &odd), (&odd, &odd)] {
                let steps: Vec<_> = new.compare(old).collect();
                assert!(steps.len() <= 2 * PATHS.len() + 1);
                refused += usize::from(steps.iter().any(Result::is_err));
            }
        }
    }
    assert!(refused > 3 * dirs as usize);
}

/// Measures comparing two snapshots of ten million files: `cargo test --release -- --ignored ten_million --nocapture`.
#[test]
#[ignore = "a measurement"]
fn ten_million_files_are_compared() {
    let make = |changed: u32| {
        let mut builder = ManifestBuilder::new();
        for file in 0..10_000_000_u32 {
            let path = format!("class-{:04}/image-{file:08}.jpg", file / 10_000);
            let of = u8::from(file % 100 < changed);
            let file =
                PlainFile { path: path.as_bytes(), size: 111_000, mtime_ns: 0, version: version(0, of, 111_000) };
            builder.push(&file, NameRules::OBJECT_STORE).unwrap();
        }
        Manifest::open(builder.finish("bench", "s3://bench/train", 0).unwrap().to_bytes()).unwrap()
    };
    let (old, new) = (make(0), make(1));
    let started = std::time::Instant::now();
    let changed = new.compare(&old).filter(|change| matches!(change, Ok(FileChange::Changed { .. }))).count();
    println!("{changed} changed, {:?}", started.elapsed());
    assert_eq!(changed, 100_000);
}
