use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use larder_dataset::{DirIndex, Entry, FileIndex, Manifest, VersionTag};
use larder_origin::Page;
use proptest::prelude::*;

use super::*;
use crate::memory::MemoryOrigin;
use crate::progress::Silent;

const URL: &str = "s3://bucket/data";

fn origin(page: usize, keys: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Arc<MemoryOrigin> {
    let origin = MemoryOrigin::new(URL, page);
    for key in keys {
        // The size identifies the key.
        origin.set(key.as_ref(), vec![b'x'; key.as_ref().len()]);
    }
    Arc::new(origin)
}

async fn run(origin: &Arc<MemoryOrigin>, dir: &std::path::Path) -> Result<Imported, ImportError> {
    let origin = Arc::clone(origin) as Arc<dyn Origin>;
    import(origin, ImportOptions::new("data", dir), &Silent).await
}

async fn run_whole(origin: &Arc<MemoryOrigin>) -> Imported {
    let dir = tempfile::tempdir().unwrap();
    run(origin, dir.path()).await.unwrap()
}

fn files_of(built: &Built) -> BTreeMap<Vec<u8>, u64> {
    let manifest = Manifest::open(built.to_bytes()).unwrap();
    manifest.verify().unwrap();
    let files = (0..manifest.totals().files).map(|index| {
        let file = manifest.file(FileIndex(index)).unwrap();
        (manifest.file_path(&file).unwrap(), file.size)
    });
    files.collect()
}

fn truth(keys: &[String]) -> BTreeMap<Vec<u8>, u64> {
    keys.iter().map(|key| (key.as_bytes().to_vec(), key.len() as u64)).collect()
}

#[tokio::test]
async fn a_flat_bucket_of_10_000_keys_is_listed_page_by_page() {
    let keys: Vec<_> = (0..10_000).map(|n| format!("{n:06}.jpg")).collect();
    let imported = run_whole(&origin(1000, &keys)).await;
    assert_eq!(files_of(&imported.built), truth(&keys));
    assert_eq!(imported.list_requests, 10);
    assert_eq!(imported.skipped, []);
}

#[tokio::test]
async fn a_deep_tree_of_10_000_keys_is_listed_in_parallel_and_whole() {
    let keys: Vec<_> =
        (0..10_000).map(|n| format!("{}/{}/{}/{}/{n}.jpg", n % 3, n % 7, n % 11, "d/".repeat(n % 5))).collect();
    let keys: Vec<_> = keys.iter().map(|key| key.replace("//", "/")).collect();
    let source = origin(100, &keys);
    let imported = run_whole(&source).await;
    assert_eq!(files_of(&imported.built), truth(&keys));
    assert!(imported.list_requests < 500, "{} requests", imported.list_requests);
}

#[tokio::test]
async fn a_class_tree_costs_about_a_request_for_each_page_of_a_class() {
    let keys: Vec<_> = (0..10_000).map(|n| format!("train/n{:03}/{n}.jpg", n % 100)).collect();
    let imported = run_whole(&origin(1000, &keys)).await;
    assert_eq!(imported.list_requests, 102, "the root, train/ and each class");
}

#[tokio::test]
async fn an_empty_dataset_makes_an_empty_manifest() {
    let imported = run_whole(&origin(10, [""; 0])).await;
    assert_eq!(files_of(&imported.built).len(), 0);
    assert_eq!((imported.reserved, imported.list_requests), (0, 1));
}

#[tokio::test]
async fn hostile_keys_are_skipped_with_their_reasons_and_honest_neighbours_are_kept() {
    let long = "x".repeat(256);
    let hostile = [
        ("a//b", Rejection::EmptyPart),
        ("a//", Rejection::EmptyPart),
        ("/lead", Rejection::EmptyPart),
        ("/", Rejection::EmptyPart),
        ("..", Rejection::DotPart),
        ("../up", Rejection::DotPart),
        ("a/./b", Rejection::DotPart),
        ("a/b/../../c", Rejection::DotPart),
        (long.as_str(), Rejection::PartTooLong),
        ("nul\0", Rejection::Nul),
        ("line\nbreak", Rejection::ControlCharacter),
        ("marker/", Rejection::MarkerWithBytes),
        (".larder", Rejection::Reserved),
        ("shadow", Rejection::ShadowedByFolder),
        ("shadow/deep", Rejection::ShadowedByFolder),
    ];
    let honest = ["a/b/c", "a/x", "shadow/deep/file", "..a", "b", "b.c"];
    let own = [".larder/manifest", ".larder/x/y"];
    let source = origin(3, hostile.iter().map(|(key, _)| *key).chain(honest).chain(own));
    source.set("hollow/", "");
    source.set("a//empty/", "");
    source.set("a/", "");
    source.set("", "");
    let imported = run_whole(&source).await;

    let mut expected: Vec<_> =
        hostile.iter().map(|(key, reason)| (key.as_bytes().to_vec(), reason.as_str().to_owned())).collect();
    expected.push((b"a//empty/".to_vec(), Rejection::EmptyPart.as_str().into()));
    expected.sort();
    let skipped: Vec<_> = imported.skipped.iter().map(|key| (key.key.clone(), key.reason.to_string())).collect();
    assert_eq!(skipped, expected);
    assert_eq!(imported.reserved, 2);
    assert_eq!(files_of(&imported.built), truth(&honest.map(str::to_owned)));
    let manifest = Manifest::open(imported.built.to_bytes()).unwrap();
    assert!(matches!(manifest.resolve(b"hollow").unwrap(), Some(Entry::Dir(_))));
    let Some(Entry::File(index)) = manifest.resolve(b"b").unwrap() else { panic!("b is missing") };
    let version = manifest.version(&manifest.file(index).unwrap()).unwrap();
    assert_eq!(version, Some(VersionTag::ETag("\"9dd4e461268c8034f5c8564e155c67a6\"".into())), "MD5 of x");
}

/// A run that was killed after any number of answers and a second run that finishes it list everything once, except for
/// the calls that were in flight.
#[tokio::test]
async fn an_import_killed_at_any_page_goes_on_where_it_was() {
    let keys: Vec<_> = (0..300).map(|n| format!("{}/{}/{n}", n % 4, n % 9)).chain(["a//b".into()]).collect();
    let whole = run_whole(&origin(10, &keys)).await;
    let total = whole.list_requests;
    assert!(total > 40, "{total}");
    for allowed in 0..total {
        let dir = tempfile::tempdir().unwrap();
        let source = origin(10, &keys);
        source.lists_allowed.store(allowed, Ordering::SeqCst);
        let error = run(&source, dir.path()).await.unwrap_err();
        assert!(matches!(&error, ImportError::List(ListError::Origin { .. })), "{error:?}");
        source.lists_allowed.store(u64::MAX, Ordering::SeqCst);
        let resumed = run(&source, dir.path()).await.unwrap();
        assert_eq!(resumed.built.snapshot, whole.built.snapshot, "killed after {allowed}");
        assert_eq!(resumed.skipped, whole.skipped);
        assert!(
            resumed.list_requests <= total - allowed + 16,
            "killed after {allowed} of {total}, listed {} again",
            resumed.list_requests
        );
    }
}

#[tokio::test]
async fn a_journal_torn_at_any_frame_still_ends_in_the_same_snapshot() {
    let keys: Vec<_> = (0..60).map(|n| format!("{}/{n}", n % 5)).collect();
    let source = origin(7, &keys);
    let dir = tempfile::tempdir().unwrap();
    let whole = run(&source, dir.path()).await.unwrap();
    let path = whole.journal.path().to_path_buf();
    let journal = std::fs::read(&path).unwrap();
    let snapshot = whole.built.snapshot;
    drop(whole);
    for len in (0..=journal.len()).step_by(13) {
        std::fs::write(&path, &journal[..len]).unwrap();
        let resumed = run(&source, dir.path()).await.unwrap();
        assert_eq!(resumed.built.snapshot, snapshot, "cut at {len}");
        assert!(len < journal.len() - 13 || resumed.resumed_files > 50);
    }
}

#[tokio::test]
async fn a_finished_import_is_gone_on_with_until_its_journal_is_discarded() {
    let source = origin(10, ["a", "b/c"]);
    let dir = tempfile::tempdir().unwrap();
    drop(run(&source, dir.path()).await.unwrap());
    let again = run(&source, dir.path()).await.unwrap();
    assert_eq!((again.resumed_files, again.list_requests, again.built.totals.files), (2, 0, 2));
    again.journal.discard().unwrap();
    let anew = run(&source, dir.path()).await.unwrap();
    assert_eq!((anew.resumed_files, anew.list_requests), (0, 2));
}

#[tokio::test]
async fn a_second_import_of_the_same_origin_is_told_so() {
    let source = origin(10, ["a"]);
    let dir = tempfile::tempdir().unwrap();
    let first = run(&source, dir.path()).await.unwrap();
    let second = run(&source, dir.path()).await.unwrap_err();
    assert!(matches!(second, ImportError::Journal(JournalError::InUse { .. })), "{second:?}");
    drop(first);
    let mut elsewhere = ImportOptions::new("data", dir.path());
    elsewhere.place = "http://other:9000".into();
    let other = import(Arc::clone(&source) as Arc<dyn Origin>, elsewhere, &Silent).await.unwrap();
    assert_eq!(other.resumed_files, 0, "another server's bucket of the same name");
}

#[tokio::test]
async fn a_listing_that_fails_says_where() {
    let source = origin(10, ["a/b"]);
    source.lists_allowed.store(1, Ordering::SeqCst);
    let dir = tempfile::tempdir().unwrap();
    let error = run(&source, dir.path()).await.unwrap_err();
    assert_eq!(error.to_string(), "list a/");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("unavailable"), "{error:?}");
}

#[tokio::test]
async fn an_origin_that_answers_in_circles_is_an_error_not_a_loop() {
    let pages = [
        Page { next: Some(b"k".to_vec()), ..Default::default() },
        Page { prefixes: vec![b"a/".to_vec()], ..Default::default() },
        Page { prefixes: vec![Vec::new()], ..Default::default() },
    ];
    for page in pages {
        let dir = tempfile::tempdir().unwrap();
        let circling = origin(1, [""; 0]);
        *circling.answer.lock().unwrap() = Some(page);
        let error = run(&circling, dir.path()).await.unwrap_err();
        assert!(matches!(error, ImportError::List(ListError::Odd { .. })), "{error:?}");
    }
}

#[derive(Default)]
struct Heard(Mutex<Vec<(u64, u64, u64, u64)>>);

impl Progress for Heard {
    fn listed(&self, files: u64, bytes: u64, done: u64, known: u64) {
        self.0.lock().unwrap().push((files, bytes, done, known));
    }
}

#[tokio::test]
async fn progress_only_grows_and_ends_at_the_whole() {
    let keys: Vec<_> = (0..100).map(|n| format!("{}/{n:02}", n % 10)).collect();
    let source = origin(5, &keys);
    let (dir, heard) = (tempfile::tempdir().unwrap(), Heard::default());
    let _ = import(source as Arc<dyn Origin>, ImportOptions::new("data", dir.path()), &heard).await.unwrap();
    let heard = heard.0.into_inner().unwrap();
    assert!(heard.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].2 <= pair[1].2));
    assert_eq!(heard.last().unwrap(), &(100, 400, 11, 11));
}

fn key() -> impl Strategy<Value = String> {
    let part = prop::sample::select(&["a", "b", "c", "ab", "..", "", ".larder", "z"][..]);
    prop::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_key_is_a_file_a_folder_skipped_or_reserved(
        keys in prop::collection::btree_set(key(), 0..60), page in 1..9_usize, killed_after in 0..40_u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let source = origin(page, &keys);
        let imported = runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            source.lists_allowed.store(killed_after, Ordering::SeqCst);
            let _ = run(&source, dir.path()).await;
            source.lists_allowed.store(u64::MAX, Ordering::SeqCst);
            run(&source, dir.path()).await.unwrap()
        });
        let files = files_of(&imported.built);
        let skipped: BTreeSet<_> = imported.skipped.iter().map(|key| key.key.clone()).collect();
        let mut reserved = 0;
        for key in &keys {
            let bytes = key.as_bytes();
            let expected = match larder_dataset::name::check(bytes, NameRules::OBJECT_STORE) {
                _ if key.starts_with(".larder/") => {
                    reserved += 1;
                    false
                }
                Err(_) => {
                    prop_assert!(skipped.contains(bytes) || key.is_empty(), "{}", key);
                    false
                }
                Ok(()) => !skipped.contains(bytes),
            };
            prop_assert_eq!(files.contains_key(bytes), expected, "{}", key);
        }
        let shadowed = keys.iter().filter(|key| {
            larder_dataset::name::check(key.as_bytes(), NameRules::OBJECT_STORE).is_ok()
                && keys.iter().any(|other| {
                    other.starts_with(&format!("{key}/"))
                        && larder_dataset::name::check(other.as_bytes(), NameRules::OBJECT_STORE).is_ok()
                })
        });
        prop_assert_eq!(imported.built.rejected.len(), shadowed.count());
        prop_assert_eq!(imported.reserved, reserved);
        let manifest = Manifest::open(imported.built.to_bytes()).unwrap();
        prop_assert!(manifest.dir(DirIndex(0)).is_ok());
        prop_assert_eq!(manifest.name_and_origin().unwrap(), ("data", URL));
    }
}
