use larder_dataset::Entry;

use super::*;
use crate::import::{ImportOptions, import};
use crate::memory::MemoryOrigin;
use crate::object_range::object_range;
use crate::pack::{PackOptions, pack};
use crate::progress::Silent;
use crate::publish::MANIFEST_KEY;

async fn plain(keys: &[(&str, usize)]) -> (Arc<MemoryOrigin>, Arc<Manifest<Vec<u8>>>) {
    let origin = Arc::new(MemoryOrigin::new("s3://bucket/data", 10));
    for (key, len) in keys {
        origin.set(key, vec![key.len() as u8; *len]);
    }
    let dir = tempfile::tempdir().unwrap();
    let options = ImportOptions::new("data", dir.path());
    let imported = import(Arc::clone(&origin) as Arc<dyn Origin>, options, &Silent).await.unwrap();
    (origin, Arc::new(Manifest::open(imported.manifest.read().unwrap()).unwrap()))
}

async fn packed(keys: &[(&str, usize)]) -> (Arc<MemoryOrigin>, Arc<Manifest<Vec<u8>>>) {
    let (src, manifest) = plain(keys).await;
    let dst = Arc::new(MemoryOrigin::new("s3://bucket/packed", 10));
    let dir = tempfile::tempdir().unwrap();
    let options = PackOptions { pack_bytes: 1000, ..PackOptions::new(dir.path()) };
    let packed = pack(manifest, src, Arc::clone(&dst) as Arc<dyn Origin>, options, &Silent).await.unwrap();
    (dst, Arc::new(Manifest::open(packed.built.to_bytes()).unwrap()))
}

async fn check(origin: &Arc<MemoryOrigin>, manifest: &Arc<Manifest<Vec<u8>>>, deep: bool) -> VerifyReport {
    let origin = Arc::clone(origin) as Arc<dyn Origin>;
    verify_origin(Arc::clone(manifest), origin, deep, 8, &Silent).await.unwrap()
}

fn names(problems: &Problems) -> Vec<&str> {
    assert_eq!(problems.count as usize, problems.first.len());
    let mut names: Vec<_> = problems.first.iter().map(|(path, _)| std::str::from_utf8(path).unwrap()).collect();
    names.sort_unstable();
    names
}

const KEYS: &[(&str, usize)] =
    &[("a/1", 10), ("a/2", 20), ("a/empty", 0), ("b/large", 17 << 20), ("c", 300), ("d", 400), ("e", 500)];

#[tokio::test(flavor = "multi_thread")]
async fn an_untouched_origin_is_clean() {
    for (origin, manifest) in [plain(KEYS).await, packed(KEYS).await] {
        for deep in [false, true] {
            let report = check(&origin, &manifest, deep).await;
            assert_eq!((report.files_ok, report.is_clean()), (7, true), "{report:?}");
            assert_eq!(report.bytes_read, if deep { manifest.totals().bytes } else { 0 });
            assert_eq!(report.without_checksum, 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_and_changed_objects_are_named() {
    let (origin, manifest) = plain(KEYS).await;
    origin.remove(b"a/2");
    origin.remove(b"a/empty");
    origin.set("c", vec![9; 300]);
    origin.set("d", vec![9; 401]);
    // An object with a similar key is not the file.
    origin.set("a//2", vec![3; 20]);
    for deep in [false, true] {
        let report = check(&origin, &manifest, deep).await;
        assert_eq!(names(&report.missing), ["a/2", "a/empty"]);
        assert_eq!(names(&report.changed), ["c", "d"]);
        assert_eq!((report.files_ok, report.corrupt.count, report.unreadable.count), (3, 0, 0));
        assert!(!report.is_clean());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rotten_bytes_of_plain_objects_are_found_by_their_md5() {
    let (origin, manifest) = plain(KEYS).await;
    let mut large = vec![7; 17 << 20];
    large[(16 << 20) + 5] ^= 1;
    origin.rot(b"b/large", large);
    origin.rot(b"a/1", vec![9; 10]);
    assert!(check(&origin, &manifest, false).await.is_clean(), "a listing cannot tell");
    let report = check(&origin, &manifest, true).await;
    assert_eq!(names(&report.corrupt), ["a/1", "b/large"]);
    assert_eq!(report.files_ok, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn rotten_and_missing_packs_give_the_files_in_them() {
    let (origin, manifest) = packed(KEYS).await;
    let Some(Entry::File(index)) = manifest.resolve(b"c").unwrap() else { panic!("c is missing") };
    let file = manifest.file(index).unwrap();
    let object = object_range(&manifest, &file, 0..file.size).unwrap();
    let size = origin.head(&object.key).await.unwrap().size;
    let mut bytes = origin.read(&object.key, 0..size, None).await.unwrap().to_vec();
    bytes[object.range.start as usize] ^= 1;
    origin.rot(&object.key, bytes);
    let report = check(&origin, &manifest, true).await;
    assert_eq!((names(&report.corrupt), report.files_ok), (vec!["c"], 6));
    assert!(check(&origin, &manifest, false).await.is_clean());

    origin.remove(&object.key);
    for deep in [false, true] {
        let report = check(&origin, &manifest, deep).await;
        assert!(names(&report.missing).contains(&"c"), "{report:?}");
        assert_eq!(report.files_ok + report.missing.count, 7);
    }
    assert!(origin.keys().contains(&MANIFEST_KEY.to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_counts_all_and_names_the_first_hundred() {
    let names: Vec<_> = (0..250).map(|n| format!("{n:03}")).collect();
    let keys: Vec<_> = names.iter().map(|name| (name.as_str(), 5)).collect();
    let (origin, manifest) = plain(&keys).await;
    for name in &names {
        origin.remove(name.as_bytes());
    }
    for deep in [false, true] {
        let report = check(&origin, &manifest, deep).await;
        assert_eq!((report.missing.count, report.missing.first.len()), (250, 100));
    }
}

#[tokio::test]
async fn many_small_files_of_a_pack_are_read_together() {
    let names: Vec<_> = (0..300).map(|n| format!("{n:03}")).collect();
    let keys: Vec<_> = names.iter().map(|name| (name.as_str(), 3)).collect();
    let (origin, manifest) = packed(&keys).await;
    assert!(check(&origin, &manifest, true).await.is_clean());
    assert_eq!(origin.reads.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_origin_that_cannot_be_listed_is_an_error_not_a_report() {
    let (origin, manifest) = plain(&[("a", 1)]).await;
    origin.lists_allowed.store(0, std::sync::atomic::Ordering::SeqCst);
    let origin = origin as Arc<dyn Origin>;
    let error = verify_origin(manifest, origin, false, 8, &Silent).await.unwrap_err();
    assert!(matches!(error, VerifyError::List(_)), "{error:?}");
}
