use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_dataset::{DirIndex, Entry, FileIndex, LinkIndex, Manifest, VersionTag};
use larder_origin::Page;
use proptest::prelude::*;

use super::*;
use crate::clock::nanoseconds_now;
use crate::disk::DiskRoom;
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
    // Little memory, so that the listing is sorted on the disk.
    let options = ImportOptions { sort_bytes: 4 << 10, ..ImportOptions::new("data", dir) };
    import(origin, options, &Silent).await
}

async fn run_whole(origin: &Arc<MemoryOrigin>) -> Imported {
    let dir = tempfile::tempdir().unwrap();
    run(origin, dir.path()).await.unwrap()
}

fn files_of(draft: &DraftManifest) -> BTreeMap<Vec<u8>, u64> {
    let manifest = Manifest::open(draft.read().unwrap()).unwrap();
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
    assert_eq!(files_of(&imported.manifest), truth(&keys));
    assert!((10..=40).contains(&imported.list_requests), "{}", imported.list_requests);
    assert_eq!(imported.skipped, []);
}

#[tokio::test]
async fn a_deep_tree_of_10_000_keys_is_listed_in_parallel_and_whole() {
    let keys: Vec<_> =
        (0..10_000).map(|n| format!("{}/{}/{}/{}/{n}.jpg", n % 3, n % 7, n % 11, "d/".repeat(n % 5))).collect();
    let keys: Vec<_> = keys.iter().map(|key| key.replace("//", "/")).collect();
    let source = origin(100, &keys);
    let imported = run_whole(&source).await;
    assert_eq!(files_of(&imported.manifest), truth(&keys));
    assert!(imported.list_requests < 500, "{} requests", imported.list_requests);
}

#[tokio::test]
async fn a_class_tree_costs_about_a_request_for_each_page_whatever_its_folders() {
    let keys: Vec<_> = (0..10_000).map(|n| format!("train/n{:03}/{n}.jpg", n % 100)).collect();
    let imported = run_whole(&origin(1000, &keys)).await;
    assert!((10..=40).contains(&imported.list_requests), "{}", imported.list_requests);
}

#[tokio::test]
async fn an_empty_dataset_makes_an_empty_manifest() {
    let imported = run_whole(&origin(10, [""; 0])).await;
    assert_eq!(files_of(&imported.manifest).len(), 0);
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
    assert_eq!(files_of(&imported.manifest), truth(&honest.map(str::to_owned)));
    let manifest = Manifest::open(imported.manifest.read().unwrap()).unwrap();
    assert!(matches!(manifest.resolve(b"hollow").unwrap(), Some(Entry::Dir(_))));
    let Some(Entry::File(index)) = manifest.resolve(b"b").unwrap() else { panic!("b is missing") };
    let version = manifest.version(&manifest.file(index).unwrap()).unwrap();
    assert_eq!(version, Some(VersionTag::ETag("\"9dd4e461268c8034f5c8564e155c67a6\"".into())), "MD5 of x");
}

/// A run that is killed after any number of answers and a second run that finishes its work list everything once in
/// total, except for the calls that were in flight.
// SEMANTICS: I1
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
        match run(&source, dir.path()).await {
            Err(error) => assert!(matches!(&error, ImportError::List(ListError::Origin { .. })), "{error:?}"),
            // Which range is split depends on which answer comes first.
            Ok(_) => assert!(allowed > total / 2, "whole after {allowed} of {total}"),
        }
        source.lists_allowed.store(u64::MAX, Ordering::SeqCst);
        let resumed = run(&source, dir.path()).await.unwrap();
        assert_eq!(resumed.manifest.snapshot(), whole.manifest.snapshot(), "killed after {allowed}");
        assert_eq!(resumed.skipped, whole.skipped);
        assert!(
            resumed.list_requests <= total - allowed / 2 + 16 || allowed > total / 2,
            "killed after {allowed} of {total}, listed {} again",
            resumed.list_requests
        );
    }
}

/// The journal of a run that was stopped before its last page, and the snapshot that the run would have produced.
async fn stopped(source: &Arc<MemoryOrigin>, dir: &Path) -> (PathBuf, larder_dataset::SnapshotId) {
    let whole = run_whole(source).await;
    source.lists.store(0, Ordering::SeqCst);
    source.lists_allowed.store(whole.list_requests - 1, Ordering::SeqCst);
    run(source, dir).await.unwrap_err();
    source.lists_allowed.store(u64::MAX, Ordering::SeqCst);
    let journal = std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    (journal, whole.manifest.snapshot())
}

#[tokio::test]
async fn a_journal_torn_at_any_frame_still_ends_in_the_same_snapshot() {
    let keys: Vec<_> = (0..60).map(|n| format!("{}/{n}", n % 5)).collect();
    let source = origin(7, &keys);
    let dir = tempfile::tempdir().unwrap();
    let (path, snapshot) = stopped(&source, dir.path()).await;
    let journal = std::fs::read(&path).unwrap();
    for len in (0..=journal.len()).step_by(13) {
        std::fs::write(&path, &journal[..len]).unwrap();
        let resumed = run(&source, dir.path()).await.unwrap();
        assert_eq!(resumed.manifest.snapshot(), snapshot, "cut at {len}");
        assert!(len < journal.len() - 13 || resumed.resumed_files > 30, "{}", resumed.resumed_files);
    }
}

#[derive(Default)]
struct Noted(Mutex<Vec<String>>);

impl Progress for Noted {
    fn noted(&self, what: &str) {
        self.0.lock().unwrap().push(what.to_owned());
    }
}

// SEMANTICS: I1
#[tokio::test]
async fn a_journal_of_another_version_cut_or_flipped_is_done_again_and_that_is_said() {
    let keys: Vec<_> = (0..60).map(|n| format!("{}/{n}", n % 5)).collect();
    let source = origin(7, &keys);
    let dir = tempfile::tempdir().unwrap();
    let (path, snapshot) = stopped(&source, dir.path()).await;
    let journal = std::fs::read(&path).unwrap();
    let flipped = |at: usize| {
        let mut bytes = journal.clone();
        bytes[at] ^= 1;
        bytes
    };
    let mut old = journal.clone();
    old[8] = 1;
    let crc = larder_dataset::crc32c(&old[..60]).to_le_bytes();
    old[60..64].copy_from_slice(&crc);
    for (bytes, says, resumes) in [
        (old, "another version of Larder wrote it: started over", false),
        (flipped(20), "it is damaged: started over", false),
        (journal[..30].to_vec(), "it is damaged: started over", false),
        (flipped(journal.len() - 5), "is cut off or damaged after", true),
        (journal[..journal.len() - 5].to_vec(), "is cut off or damaged after", true),
        (flipped(70), "is cut off or damaged after 64 bytes", false),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let noted = Noted::default();
        let source = Arc::clone(&source) as Arc<dyn Origin>;
        let again = import(source, ImportOptions::new("data", dir.path()), &noted).await.unwrap();
        assert_eq!(again.manifest.snapshot(), snapshot, "{says}");
        assert_eq!(again.resumed_files > 0, resumes, "{says}");
        let noted = noted.0.into_inner().unwrap();
        assert!(noted.len() == 1 && noted[0].contains(says), "{says}: {noted:?}");
    }
}

// SEMANTICS: I1
#[tokio::test]
async fn a_listing_has_the_time_at_which_it_began_and_is_continued_if_that_is_recent_enough() {
    const HOUR: Duration = Duration::from_secs(3600);
    let keys: Vec<_> = (0..60).map(|n| format!("{}/{n}", n % 5)).collect();
    let source = origin(7, &keys);
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = stopped(&source, dir.path()).await;
    let mut journal = std::fs::read(&path).unwrap();
    let begun_ns = nanoseconds_now() - 2 * 3600 * 1_000_000_000;
    journal[48..56].copy_from_slice(&begun_ns.to_le_bytes());
    let crc = larder_dataset::crc32c(&journal[..60]).to_le_bytes();
    journal[60..64].copy_from_slice(&crc);
    for (hours, continues) in [(3, true), (1, false)] {
        std::fs::write(&path, &journal).unwrap();
        let origin = Arc::clone(&source) as Arc<dyn Origin>;
        let options = ImportOptions { max_age_resume: HOUR * hours, ..ImportOptions::new("data", dir.path()) };
        let imported = import(origin, options, &Silent).await.unwrap();
        assert_eq!(imported.resumed_files > 0, continues, "{hours} h");
        let listed_ns = Manifest::open(imported.manifest.read().unwrap()).unwrap().created_ns();
        assert!(listed_ns >= begun_ns && (listed_ns == begun_ns) == continues, "{hours} h");
    }
}

// SEMANTICS: I1
#[tokio::test]
async fn a_listing_of_which_a_manifest_was_made_is_never_used_again() {
    let source = origin(10, ["a", "b/c"]);
    let dir = tempfile::tempdir().unwrap();
    {
        let imported = run(&source, dir.path()).await.unwrap();
        assert_eq!(imported.manifest.totals().files, 2);
        // Storing the manifest fails, and the object is replaced before the next attempt.
        imported.manifest.write(Path::new("/nonexistent/data.manifest")).unwrap_err();
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "neither journal nor draft is left");
    source.set("a", "another a");
    let again = run(&source, dir.path()).await.unwrap();
    assert_eq!(again.resumed_files, 0);
    assert_eq!(files_of(&again.manifest)[&b"a"[..]], 9);
}

// SEMANTICS: I1
#[tokio::test]
async fn an_import_that_cannot_be_sorted_or_written_is_listed_again_the_next_time() {
    let source = origin(10, ["a", "b/c"]);
    let dir = tempfile::tempdir().unwrap();
    // A folder blocks the path of the draft.
    let journal = dir.path().join("journals");
    let in_the_way = {
        let probe = run(&source, &journal).await.unwrap();
        probe.manifest.path().to_path_buf()
    };
    std::fs::create_dir(&in_the_way).unwrap();
    let error = run(&source, &journal).await.unwrap_err();
    assert!(matches!(error, ImportError::Disk { .. }), "{error:?}");
    std::fs::remove_dir(&in_the_way).unwrap();
    source.set("a", "another a");
    let again = run(&source, &journal).await.unwrap();
    assert_eq!((again.resumed_files, files_of(&again.manifest)[&b"a"[..]]), (0, 9));
}

/// A disk that notes the most that was ever taken, and fails from a total on.
#[derive(Debug)]
struct Room {
    taken: AtomicU64,
    most: u64,
}

impl DiskRoom for Room {
    fn take(&self, bytes: u64) -> io::Result<()> {
        let taken = self.taken.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if taken > self.most { Err(io::Error::new(io::ErrorKind::StorageFull, "no room")) } else { Ok(()) }
    }
}

fn many_keys() -> Vec<String> {
    (0..5_000).map(|n| format!("{:03}/{n:08}-{}", n % 100, "x".repeat(40))).collect()
}

/// Imports with a limit, in little memory.
async fn run_limited(origin: &Arc<MemoryOrigin>, dir: &Path, disk: DiskLimit) -> Result<Imported, ImportError> {
    let options = ImportOptions { sort_bytes: 64 << 10, disk, ..ImportOptions::new("data", dir) };
    import(Arc::clone(origin) as Arc<dyn Origin>, options, &Silent).await
}

// SEMANTICS: I10
#[tokio::test]
async fn a_listing_that_takes_more_disk_space_than_it_may_is_an_error_and_gives_all_of_it_back() {
    let source = origin(100, many_keys());
    let dir = tempfile::tempdir().unwrap();
    let limit = |bytes_most| DiskLimit { bytes_most, ..DiskLimit::default() };
    // The first limit is passed while pages are listed, the last one while the manifest is written.
    let mut lists = BTreeSet::new();
    let mut passed = 0;
    for bytes_most in (1..).map(|n| n * (64 << 10)) {
        source.lists.store(0, Ordering::SeqCst);
        match run_limited(&source, dir.path(), limit(bytes_most)).await {
            Ok(imported) => {
                assert_eq!(imported.resumed_files, 0, "a listing without room is never continued");
                assert_eq!(files_of(&imported.manifest), truth(&many_keys()));
                break;
            }
            Err(error) => {
                let ImportError::Disk { source, .. } = &error else { panic!("{error:?}") };
                assert!(source.to_string().contains("--listing-size"), "{source}");
                passed += 1;
            }
        }
        lists.insert(source.lists.load(Ordering::SeqCst));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{bytes_most}: journal, runs and draft are gone");
    }
    assert!(passed >= 3 && lists.len() >= 2, "{passed} refusals after {lists:?} calls");
}

// SEMANTICS: I10
#[tokio::test]
async fn a_listing_for_which_the_disk_has_no_room_is_an_error_at_any_byte_and_leaves_nothing() {
    let source = origin(100, many_keys());
    let dir = tempfile::tempdir().unwrap();
    let limit = |most| {
        let room = Arc::new(Room { taken: AtomicU64::new(0), most });
        (Arc::clone(&room), DiskLimit { room: Some(room), ..DiskLimit::default() })
    };
    let (room, all) = limit(u64::MAX);
    drop(run_limited(&source, dir.path(), all).await.unwrap());
    let needed = room.taken.load(Ordering::SeqCst);
    for share in 0..8 {
        let (_, some) = limit(needed * share / 8);
        let error = run_limited(&source, dir.path(), some).await.unwrap_err();
        let ImportError::Disk { source: cause, .. } = &error else { panic!("{error:?}") };
        assert_eq!(cause.kind(), io::ErrorKind::StorageFull);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{share}/8");
    }
}

// SEMANTICS: I10
#[tokio::test]
async fn a_journal_that_is_continued_counts_as_well() {
    let source = origin(100, many_keys());
    let dir = tempfile::tempdir().unwrap();
    source.lists_allowed.store(15, Ordering::SeqCst);
    run(&source, dir.path()).await.unwrap_err();
    let journal = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::metadata(&journal).unwrap().len();
    source.lists_allowed.store(u64::MAX, Ordering::SeqCst);
    let disk = DiskLimit { bytes_most: bytes / 2, ..DiskLimit::default() };
    let error = run_limited(&source, dir.path(), disk).await.unwrap_err();
    assert!(matches!(error, ImportError::Journal(JournalError::Io { .. })), "{error:?}");
    assert_eq!(std::fs::metadata(&journal).unwrap().len(), bytes, "a larger limit continues it");
    let imported = run_limited(&source, dir.path(), DiskLimit::default()).await.unwrap();
    assert!(imported.resumed_files > 0);
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
    source.lists_allowed.store(0, Ordering::SeqCst);
    let dir = tempfile::tempdir().unwrap();
    let error = run(&source, dir.path()).await.unwrap_err();
    assert_eq!(error.to_string(), "list the root of the dataset");
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
    let (files, bytes, done, known) = *heard.last().unwrap();
    assert_eq!((files, bytes, done), (100, 400, known));
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
        let files = files_of(&imported.manifest);
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
        let shadowed = shadowed.count() as u64;
        let counted = imported.skipped_counts.get(Rejection::ShadowedByFolder.as_str()).copied().unwrap_or_default();
        prop_assert_eq!(counted, shadowed);
        prop_assert_eq!(imported.reserved, reserved);
        let manifest = Manifest::open(imported.manifest.read().unwrap()).unwrap();
        prop_assert!(manifest.dir(DirIndex(0)).is_ok());
        prop_assert_eq!(manifest.name_and_origin().unwrap(), ("data", URL));
    }
}

// SEMANTICS: I8
#[tokio::test]
async fn a_draft_that_a_killed_import_left_goes_with_the_next_import_and_one_in_use_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["import-00.draft", "import-01.draft", "import-01.journal", "import-02.draft", "import-02.journal"] {
        std::fs::write(path(name), b"left").unwrap();
    }
    let held = std::fs::File::open(path("import-02.journal")).unwrap();
    held.try_lock().unwrap();
    let imported = run(&origin(10, ["a"]), dir.path()).await.unwrap();
    for (name, stays) in [("import-00.draft", false), ("import-01.draft", false), ("import-02.draft", true)] {
        assert_eq!(path(name).exists(), stays, "{name}");
    }
    assert!(path("import-01.journal").exists(), "it may be continued");
    assert!(imported.manifest.path().exists());
}

#[tokio::test]
async fn all_keys_count_whatever_became_of_them() {
    assert_eq!(run_whole(&origin(10, [""; 0])).await.keys, 0);
    let imported = run_whole(&origin(10, ["", "a", "a/b", "c//d", ".larder/manifest"])).await;
    assert_eq!((imported.keys, imported.reserved, imported.manifest.totals().files), (5, 1, 1));
}

/// The links of a manifest with their targets.
fn links_of(draft: &DraftManifest) -> BTreeMap<String, String> {
    let manifest = Manifest::open(draft.read().unwrap()).unwrap();
    manifest.verify().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let links = (0..manifest.totals().links).map(|index| {
        let link = manifest.link(LinkIndex(index)).unwrap();
        (text(manifest.link_path(&link).unwrap()), text(manifest.target_path(link.target).unwrap()))
    });
    links.collect()
}

// SEMANTICS: N4, N6
#[tokio::test]
async fn objects_that_rclone_made_of_links_are_links_on_request_and_hostile_ones_lead_nowhere() {
    let mut snapshots = BTreeSet::new();
    for page in [1, 2, 1000] {
        let origin = origin(page, ["blobs/a", "blobs/b", "x/plain", "l.rclonelink.txt"]);
        for (key, target) in [
            ("x/model.rclonelink", &b"../blobs/a"[..]),
            ("main.rclonelink", b"x"),
            ("deep/er/link.rclonelink", b"../../main/model"),
            ("out.rclonelink", b"../../etc/passwd"),
            ("absolute.rclonelink", b"/etc/passwd"),
            ("nul.rclonelink", b"blobs\0a"),
            ("empty.rclonelink", b""),
            ("blobs/b.rclonelink", b"a"),
            ("lost.rclonelink", b"blobs/none"),
            (".rclonelink", b"blobs/a"),
            (".larder/l.rclonelink", b"blobs/a"),
        ] {
            origin.set(key, target.to_vec());
        }
        origin.set("large.rclonelink", vec![b'x'; 5_000_000]);
        let dir = tempfile::tempdir().unwrap();
        let options = ImportOptions { link_objects: true, ..ImportOptions::new("data", dir.path()) };
        let shared = Arc::clone(&origin) as Arc<dyn Origin>;
        let imported = import(Arc::clone(&shared), options, &Silent).await.unwrap();
        let expected = [("deep/er/link", "blobs/a"), ("main", "x"), ("x/model", "blobs/a")];
        let expected = expected.map(|(path, target)| (path.to_owned(), target.to_owned()));
        assert_eq!(links_of(&imported.manifest), BTreeMap::from(expected));
        let files = ["blobs/a", "blobs/b", "x/plain", "l.rclonelink.txt"].map(String::from);
        assert_eq!(files_of(&imported.manifest), truth(&files));
        let left_out: Vec<_> = imported.skipped.iter().map(|skipped| skipped.key.escape_ascii().to_string()).collect();
        assert_eq!(
            left_out,
            [
                ".rclonelink",
                "absolute.rclonelink",
                "blobs/b.rclonelink",
                "empty.rclonelink",
                "large.rclonelink",
                "lost.rclonelink",
                "nul.rclonelink",
                "out.rclonelink",
            ]
        );
        assert_eq!(imported.reserved, 1);
        // Neither the empty nor the large one is read.
        assert!(page < 1000 || origin.reads.load(Ordering::SeqCst) == 10);
        snapshots.insert(imported.manifest.snapshot().to_string());

        let plain = import(shared, ImportOptions::new("data", dir.path()), &Silent).await.unwrap();
        assert_eq!((links_of(&plain.manifest).len(), plain.manifest.totals().files), (0, 4 + 11));
    }
    assert_eq!(snapshots.len(), 1, "the pages of a listing do not change the snapshot");
}
