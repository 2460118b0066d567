use larder_dataset::manifest::PlainFile;
use larder_dataset::{ManifestBuilder, NameRules, VersionTag};
use proptest::prelude::*;

use super::*;
use crate::disk::DiskLimit;

const SHARE_BYTES: usize = 4 << 10;

fn version(odd: u8) -> VersionTag<'static> {
    match odd % 4 {
        0 => VersionTag::ETag("\"0123456789abcdef0123456789abcdef\"".into()),
        1 => VersionTag::ETag("\"0123456789abcdef0123456789abcdef-12\"".into()),
        2 => VersionTag::ETag(format!("W/\"odd {odd}\"").into()),
        _ => VersionTag::MtimeSize { mtime_ns: 9, size: u64::from(odd) },
    }
}

fn path_of_left_out(left_out: LeftOut) -> Vec<u8> {
    match left_out {
        LeftOut::File(path) => path,
        LeftOut::Link(path, reason) => panic!("{}: {reason}", path.escape_ascii()),
    }
}

/// Builds the manifest in both ways. Returns the bytes and the rejected keys of each.
fn both(files: &[(Vec<u8>, u8)], folders: &[Vec<u8>]) -> [(Vec<u8>, Vec<Vec<u8>>); 2] {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = ManifestBuilder::new();
    let mut sorter = RowSorter::new(dir.path(), DiskUse::new(DiskLimit::default()), SHARE_BYTES).unwrap();
    for (path, odd) in files {
        let version = version(*odd);
        let (size, mtime_ns) = (u64::from(*odd) << 19, i64::from(*odd));
        let file = PlainFile { path, size, mtime_ns, version: version.borrowed() };
        if builder.push(&file, NameRules::FOLDER).is_ok() {
            sorter.push(path, &FileRow::plain(size, mtime_ns, &version)).unwrap();
        }
    }
    for path in folders {
        if builder.push_folder(path, NameRules::FOLDER).is_ok() {
            sorter.push_folder(path).unwrap();
        }
    }
    let built = builder.finish("both", "s3://bucket/both", 3).unwrap();
    let to = tempfile::tempfile().unwrap();
    let mut shadowed = Vec::new();
    let sealed = sorter
        .assemble(&to, "both", "s3://bucket/both", 3, |left_out| shadowed.push(path_of_left_out(left_out)))
        .unwrap();
    assert_eq!((sealed.snapshot, sealed.totals), (built.snapshot, built.totals));
    let mut bytes = Vec::new();
    each_piece(&to, 0..to.metadata().unwrap().len(), |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })
    .unwrap();
    shadowed.sort();
    let mut rejected: Vec<_> = built.rejected.iter().map(|rejected| rejected.key.clone()).collect();
    rejected.sort();
    [(built.to_bytes(), rejected), (bytes, shadowed)]
}

// SEMANTICS: I5
#[test]
fn a_manifest_assembled_on_disk_is_the_one_made_in_memory() {
    let files: Vec<_> = (0..5_000_u32)
        .map(|n| {
            let n = n.wrapping_mul(2_654_435_761) % 5_000;
            (format!("{}/{}{:04}.jpg", n % 13, "deep/".repeat(n as usize % 4), n).into_bytes(), n as u8)
        })
        .collect();
    let [memory, disk] = both(&files, &[b"hollow/and/deep".to_vec(), b"3".to_vec()]);
    assert!(memory == disk);
}

#[test]
fn files_that_a_folder_shadows_are_left_out_and_empty_folders_are_kept() {
    let files = [&b"a"[..], b"a/b", b"a/b/c", b"a.b", b"a0", b"ab/c", b"z"].map(|path| (path.to_vec(), 1));
    let [memory, disk] = both(&files, &[b"z".to_vec(), b"empty".to_vec()]);
    assert_eq!(disk.1, [&b"a"[..], b"a/b", b"z"].map(<[u8]>::to_vec));
    assert!(memory == disk);
    let [memory, disk] = both(&[], &[]);
    assert!(memory == disk);
}

#[test]
fn a_file_that_was_listed_twice_is_there_once_and_two_different_ones_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let assemble = |odd: [u8; 2]| {
        let mut sorter = RowSorter::new(dir.path(), DiskUse::new(DiskLimit::default()), SHARE_BYTES).unwrap();
        for odd in odd {
            sorter.push(b"a/x", &FileRow::plain(5, 5, &version(odd))).unwrap();
        }
        sorter.assemble(&tempfile::tempfile().unwrap(), "n", "s3://b", 0, |_| {})
    };
    assert_eq!(assemble([1, 1]).unwrap().totals.files, 1);
    let error = assemble([1, 2]).unwrap_err();
    assert!(error.to_string().starts_with("a/x changed at the origin while it was being listed"), "{error}");
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    let parts = [&b"a"[..], b"b", b"a!", b"a.", b"\x01", b"\xff", b"a\xff", "é".as_bytes()];
    let part = prop::sample::select(parts.to_vec());
    prop::collection::vec(part, 1..6).prop_map(|parts| parts.join(&b'/'))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    // SEMANTICS: I5
    #[test]
    fn any_tree_is_assembled_as_it_is_built(
        files in prop::collection::btree_map(path(), any::<u8>(), 0..120),
        folders in prop::collection::vec(path(), 0..10),
    ) {
        let files: Vec<_> = files.into_iter().collect();
        let [memory, disk] = both(&files, &folders);
        prop_assert!(memory == disk);
    }
}
