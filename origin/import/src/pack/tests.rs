use std::sync::atomic::Ordering;

use larder_dataset::{Entry, FileIndex, LinkTarget, VersionTag};
use proptest::prelude::*;

use super::*;
use crate::import::{ImportOptions, import};
use crate::memory::MemoryOrigin;
use crate::object_range::object_range;
use crate::progress::Silent;

const SRC: &str = "s3://bucket/plain";
const DST: &str = "s3://other/packed";

/// Contents that differ between files and between bytes.
fn contents(name: &str, len: usize) -> Vec<u8> {
    let seed = larder_dataset::crc32c(name.as_bytes());
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

fn source(files: &[(&str, usize)]) -> Arc<MemoryOrigin> {
    let origin = MemoryOrigin::new(SRC, 100);
    for (name, len) in files {
        origin.set(name, contents(name, *len));
    }
    Arc::new(origin)
}

async fn snapshot(origin: &Arc<MemoryOrigin>) -> Arc<Manifest<Vec<u8>>> {
    let dir = tempfile::tempdir().unwrap();
    let options = ImportOptions::new("data", dir.path());
    let imported = import(Arc::clone(origin) as Arc<dyn Origin>, options, &Silent).await.unwrap();
    Arc::new(Manifest::open(imported.manifest.read().unwrap()).unwrap())
}

fn options(dir: &tempfile::TempDir, pack_bytes: u64) -> PackOptions {
    PackOptions { pack_bytes, ..PackOptions::new(dir.path()) }
}

async fn pack_into(
    manifest: &Arc<Manifest<Vec<u8>>>,
    src: &Arc<MemoryOrigin>,
    dst: &Arc<MemoryOrigin>,
    options: PackOptions,
) -> Result<Packed, PackError> {
    let (src, dst) = (Arc::clone(src) as Arc<dyn Origin>, Arc::clone(dst) as Arc<dyn Origin>);
    pack(Arc::clone(manifest), src, dst, options, &Silent).await
}

/// Reads every file of a packed manifest back, block by block, and verifies the checksums.
async fn read_back(dst: &Arc<MemoryOrigin>) -> Vec<(String, Vec<u8>)> {
    let (bytes, _) = dst.read_all(MANIFEST_KEY, u64::MAX).await.unwrap();
    let manifest = Manifest::open(bytes.to_vec()).unwrap();
    manifest.verify().unwrap();
    let mut files = Vec::new();
    for index in 0..manifest.totals().files {
        let file = manifest.file(FileIndex(index)).unwrap();
        let mut contents = Vec::new();
        for part in file.parts(0, file.size) {
            let range = part.file_offset..part.file_offset + u64::from(part.block_len);
            let object = object_range(&manifest, &file, range).unwrap();
            let bytes = dst.read(&object.key, object.range, object.version.as_ref()).await.unwrap();
            assert_eq!(manifest.block_crc(part.block).unwrap(), Some(larder_dataset::crc32c(&bytes)));
            contents.extend_from_slice(&bytes);
        }
        files.push((String::from_utf8(manifest.file_path(&file).unwrap()).unwrap(), contents));
    }
    files.sort();
    files
}

fn expected(files: &[(&str, usize)]) -> Vec<(String, Vec<u8>)> {
    let mut expected: Vec<_> = files.iter().map(|(name, len)| ((*name).to_owned(), contents(name, *len))).collect();
    expected.sort();
    expected
}

const FILES: &[(&str, usize)] = &[
    ("a/1", 400),
    ("a/2", 0),
    ("a/3", 700),
    ("a/huge", 9 << 20),
    ("a/zero", 0),
    ("b/1", 1000),
    ("b/2", 1),
    ("c", 999),
    ("d", 0),
];

fn empty_destination() -> Arc<MemoryOrigin> {
    Arc::new(MemoryOrigin::new(DST, 100))
}

#[tokio::test(flavor = "multi_thread")]
async fn packed_files_read_back_as_they_were_and_the_manifest_is_written_last() {
    let src = source(FILES);
    src.set("hollow/", "");
    let manifest = snapshot(&src).await;
    let (dst, dir) = (empty_destination(), tempfile::tempdir().unwrap());
    let packed = pack_into(&manifest, &src, &dst, options(&dir, 1000)).await.unwrap();
    assert_eq!(read_back(&dst).await, expected(FILES));
    assert_eq!(dst.written.lock().unwrap().last().unwrap(), MANIFEST_KEY);
    assert_eq!(packed.packs_written, u64::from(packed.built.totals.packs));
    assert_eq!(dst.keys().len() as u64, packed.packs_written + 1);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the journal is gone");

    let packed = Manifest::open(packed.built.to_bytes()).unwrap();
    assert_eq!(packed.name_and_origin().unwrap(), ("data", DST));
    assert_eq!(packed.created_ns(), manifest.created_ns(), "it is as old as the listing of its files");
    assert!(matches!(packed.resolve(b"hollow").unwrap(), Some(Entry::Dir(_))));
    let Some(Entry::File(index)) = packed.resolve(b"a/1").unwrap() else { panic!("a/1 is missing") };
    assert_eq!(packed.file(index).unwrap().mtime_ns, 7, "the time of the source");
    for number in 0..packed.totals().packs {
        let pack = packed.pack(number).unwrap();
        assert!(pack.size <= 1000 || pack.size == 9 << 20, "{pack:?}");
    }
}

// SEMANTICS: N6
#[tokio::test(flavor = "multi_thread")]
async fn links_of_the_source_are_links_of_the_packs() {
    let src = source(FILES);
    src.set("snapshots/x/l.rclonelink", "../../a/1");
    src.set("main.rclonelink", "snapshots/x");
    let dir = tempfile::tempdir().unwrap();
    let listing = ImportOptions { link_objects: true, ..ImportOptions::new("data", dir.path()) };
    let imported = import(Arc::clone(&src) as Arc<dyn Origin>, listing, &Silent).await.unwrap();
    let manifest = Arc::new(Manifest::open(imported.manifest.read().unwrap()).unwrap());
    let (dst, packing) = (empty_destination(), tempfile::tempdir().unwrap());
    let packed = pack_into(&manifest, &src, &dst, options(&packing, 1000)).await.unwrap();
    let packed = Manifest::open(packed.built.to_bytes()).unwrap();
    packed.verify().unwrap();
    let Some(Entry::File(file)) = packed.resolve(b"a/1").unwrap() else { panic!("a/1 is missing") };
    let Some(Entry::Link(link)) = packed.resolve(b"snapshots/x/l").unwrap() else { panic!("the link is missing") };
    assert_eq!(packed.link(link).unwrap().target, LinkTarget::File(file));
    assert_eq!(packed.follow(b"main/l").unwrap(), Some(Entry::File(file)));
    assert_eq!(read_back(&dst).await, expected(FILES));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_larger_than_a_pack_has_one_of_its_own_and_is_never_held_whole() {
    let files = &[("a", 10), ("big", 21 << 20), ("z", 10)];
    let (src, dst, dir) = (source(files), empty_destination(), tempfile::tempdir().unwrap());
    let manifest = snapshot(&src).await;
    let plan = plan(&manifest, 4 << 20).unwrap();
    assert_eq!(plan.iter().map(|pack| pack.streamed).collect::<Vec<_>>(), [false, true, false]);
    let reads_before = src.reads.load(Ordering::SeqCst);
    pack_into(&manifest, &src, &dst, options(&dir, 4 << 20)).await.unwrap();
    assert_eq!(src.reads.load(Ordering::SeqCst) - reads_before, 2 + 3, "21 MiB in pieces of 8 MiB");
    assert_eq!(read_back(&dst).await, expected(files));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_without_bytes_can_be_packed() {
    for files in [&[][..], &[("only", 0), ("x/empty", 0)]] {
        let (src, dst, dir) = (source(files), empty_destination(), tempfile::tempdir().unwrap());
        let manifest = snapshot(&src).await;
        pack_into(&manifest, &src, &dst, options(&dir, 1000)).await.unwrap();
        assert_eq!(read_back(&dst).await, expected(files));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_packing_killed_after_any_pack_goes_on_without_reading_the_finished_ones_again() {
    let names: Vec<_> = (0..40).map(|n| format!("{n:02}")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), 500)).collect();
    let src = source(&files);
    let manifest = snapshot(&src).await;
    for allowed in 0..=20 {
        let (dst, dir) = (empty_destination(), tempfile::tempdir().unwrap());
        dst.puts_allowed.store(allowed, Ordering::SeqCst);
        let error = pack_into(&manifest, &src, &dst, options(&dir, 1000)).await.unwrap_err();
        assert!(matches!(error, PackError::Write { .. } | PackError::Publish(_)), "{error:?}");
        assert!(!dst.keys().contains(&MANIFEST_KEY.to_vec()));

        dst.puts_allowed.store(u64::MAX, Ordering::SeqCst);
        let reads_before = src.reads.load(Ordering::SeqCst);
        let packed = pack_into(&manifest, &src, &dst, options(&dir, 1000)).await.unwrap();
        assert_eq!(packed.packs_written + packed.packs_resumed, 20);
        // A pack may have been written but not recorded when another one failed.
        assert!(packed.packs_resumed + 3 >= allowed.min(20), "{allowed} allowed, {} resumed", packed.packs_resumed);
        assert_eq!(src.reads.load(Ordering::SeqCst) - reads_before, 2 * packed.packs_written);
        assert_eq!(read_back(&dst).await, expected(&files));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_pack_that_was_removed_or_replaced_is_written_again() {
    let files = &[("a", 900), ("b", 900), ("c", 900)];
    let src = source(files);
    let manifest = snapshot(&src).await;
    let (dst, dir) = (empty_destination(), tempfile::tempdir().unwrap());
    dst.puts_allowed.store(3, Ordering::SeqCst);
    pack_into(&manifest, &src, &dst, options(&dir, 1000)).await.unwrap_err();
    let keys = dst.keys();
    dst.remove(&keys[0]);
    dst.set(&keys[1], vec![1; 900]);
    dst.puts_allowed.store(u64::MAX, Ordering::SeqCst);
    let packed = pack_into(&manifest, &src, &dst, options(&dir, 1000)).await.unwrap();
    assert_eq!((packed.packs_written, packed.packs_resumed), (2, 1));
    assert_eq!(read_back(&dst).await, expected(files));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_changed_or_vanished_is_named_and_nothing_is_published() {
    for (vanish, large) in [(false, false), (true, false), (false, true)] {
        let files = &[("a/1", 900), ("a/2", if large { 9 << 20 } else { 900 }), ("a/3", 900)];
        let src = source(files);
        let manifest = snapshot(&src).await;
        if vanish {
            src.remove(b"a/2")
        } else {
            src.set("a/2", "other")
        }
        let (dst, dir) = (empty_destination(), tempfile::tempdir().unwrap());
        let error = pack_into(&manifest, &src, &dst, options(&dir, 1000)).await.unwrap_err();
        assert!(matches!(&error, PackError::SourceChanged { path, .. } if path == b"a/2"), "{error:?}");
        assert!(error.to_string().starts_with("a/2 changed or vanished"), "{error}");
        assert!(error.to_string().contains("import the dataset again"), "{error}");
        assert!(!dst.keys().contains(&MANIFEST_KEY.to_vec()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_packed_snapshot_can_be_packed_anew() {
    let (src, first, second) = (source(FILES), empty_destination(), empty_destination());
    let manifest = snapshot(&src).await;
    let dir = tempfile::tempdir().unwrap();
    let packed = pack_into(&manifest, &src, &first, options(&dir, 1000)).await.unwrap();
    let manifest = Arc::new(Manifest::open(packed.built.to_bytes()).unwrap());
    pack_into(&manifest, &first, &second, options(&dir, 5000)).await.unwrap();
    assert_eq!(read_back(&second).await, expected(FILES));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_ahead_smaller_than_the_files_in_flight_does_not_block() {
    let names: Vec<_> = (0..30).map(|n| format!("{n:02}")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), 3 << 20)).collect();
    let (src, dst, dir) = (source(&files), empty_destination(), tempfile::tempdir().unwrap());
    let manifest = snapshot(&src).await;
    let options = PackOptions { read_ahead_bytes: 1, ..options(&dir, 10 << 20) };
    pack_into(&manifest, &src, &dst, options).await.unwrap();
    assert_eq!(read_back(&dst).await, expected(&files));
}

#[tokio::test]
async fn packs_of_no_size_are_refused() {
    let (src, dst, dir) = (source(&[]), empty_destination(), tempfile::tempdir().unwrap());
    let manifest = snapshot(&src).await;
    for pack_bytes in [0, 2 << 30] {
        let error = pack_into(&manifest, &src, &dst, options(&dir, pack_bytes)).await.unwrap_err();
        assert!(matches!(error, PackError::PackSize { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_range_beyond_the_file_or_the_pack_is_refused() {
    let src = source(&[("a", 10)]);
    let manifest = snapshot(&src).await;
    let file = manifest.file(FileIndex(0)).unwrap();
    let object = object_range(&manifest, &file, 2..10).unwrap();
    assert_eq!((object.key.as_slice(), object.range), (&b"a"[..], 2..10));
    assert_eq!(object.version, manifest.version(&file).unwrap().map(crate::version::version_of));
    assert!(matches!(manifest.version(&file).unwrap(), Some(VersionTag::ETag(_))));
    assert!(object_range(&manifest, &file, 2..11).is_err());
    #[expect(clippy::reversed_empty_ranges, reason = "the test needs a reversed range")]
    let reversed = 3..2;
    assert!(object_range(&manifest, &file, reversed).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_sizes_and_any_pack_size_read_back(
        sizes in prop::collection::vec(prop_oneof![0..50_usize, 0..5000_usize], 0..40), pack_bytes in 1..3000_u64,
    ) {
        let names: Vec<_> = (0..sizes.len()).map(|n| format!("{}/{n}", n % 3)).collect();
        let files: Vec<_> = names.iter().map(String::as_str).zip(sizes).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (back, packs) = runtime.block_on(async {
            let (src, dst, dir) = (source(&files), empty_destination(), tempfile::tempdir().unwrap());
            let manifest = snapshot(&src).await;
            pack_into(&manifest, &src, &dst, options(&dir, pack_bytes)).await.unwrap();
            (read_back(&dst).await, plan(&manifest, pack_bytes).unwrap())
        });
        prop_assert_eq!(back, expected(&files));
        let mut next = 0;
        for pack in packs {
            prop_assert_eq!(pack.files.start, next);
            next = pack.files.end;
            prop_assert!(pack.bytes <= pack_bytes || pack.streamed);
        }
        prop_assert_eq!(next as usize, files.len());
    }
}
