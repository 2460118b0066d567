use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use larder_dataset::DatasetSpec;
use larder_origin::OriginConfig;

use super::*;
use crate::importing::Importer;
use crate::node::{Found, Node, NodeConfig, OpenDataset, Prepared, User};
use crate::request::DatasetRequest;
use crate::source::open_source;

const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3600);

/// A home of one or more nodes.
struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn home(&self) -> Home {
        Home::new(self.0.path().join("home"))
    }

    fn cache_dir(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A node with this cache.
    fn node(&self, cache: &str) -> Arc<Node> {
        let config = NodeConfig {
            cache_dir: self.cache_dir(cache),
            more_cache_dirs: Vec::new(),
            cache_bytes: Some(1 << 20),
            keep_free_percent: 0,
            home: self.home(),
            origin: OriginConfig::default(),
            importer: Importer::Here,
            peers: None,
            memory: Arc::default(),
            socket: None,
        };
        Node::open(config).unwrap()
    }

    fn kept(&self) -> KeptManifests {
        KeptManifests::new(self.home(), vec![self.cache_dir("cache")])
    }

    /// The dataset in the folder `name`, which has one file.
    async fn find(&self, node: &Node, name: &str) -> (Found, DatasetRequest) {
        let data = self.0.path().join(name);
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join("file"), name).unwrap();
        let request: DatasetRequest = DatasetSpec::new(format!("file://{}", data.display())).into();
        match node.prepare(&request, HOUR).await.unwrap() {
            Prepared::Ready(found) => (found, request),
            importing => panic!("{importing:?}"),
        }
    }

    /// The same, mounted and read.
    async fn open(&self, node: &Arc<Node>, name: &str) -> OpenDataset {
        let (found, request) = self.find(node, name).await;
        let open = node.open_dataset(found, &request, User::Connection).await.unwrap();
        open.read_file(0, 0, 1).await.unwrap();
        open.settle().await;
        open
    }

    fn manifest(&self, id: &str) -> PathBuf {
        self.home().dir().join(MOUNTS).join(format!("{id}.manifest"))
    }

    /// All that is kept, without the lock.
    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.home().dir().join(MOUNTS)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut left: Vec<_> = names.filter(|name| name != ".lock").collect();
        left.sort();
        left
    }
}

// SEMANTICS: V6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_that_nothing_needs_is_removed_with_all_that_was_kept_of_it() {
    let world = World::new();
    let (found, _) = world.find(&world.node("cache"), "data").await;
    let manifest = world.manifest(&found.id);
    std::fs::write(order_of(&manifest), "file").unwrap();
    std::fs::write(manifest.with_extension("refresh-failed"), "denied").unwrap();
    std::fs::write(manifest.with_extension("new-0123456789abcdef"), "of a killed process").unwrap();
    let draft = manifest.with_file_name(".larder-manifest-x");
    std::fs::write(&draft, "still being written").unwrap();
    assert_eq!(world.kept().collect(NOW, |_| false).unwrap(), 1);
    assert_eq!(world.left(), [".larder-manifest-x"]);
    assert_eq!(world.kept().collect(NOW, |_| false).unwrap(), 0);
}

// SEMANTICS: I10
#[test]
fn an_unfinished_listing_that_nothing_continues_is_removed_after_a_day() {
    let world = World::new();
    let imports = world.home().sub_folder(IMPORTS).unwrap();
    let journals = ["import-0123.journal", "import-4567.journal"].map(|name| imports.join(name));
    for (journal, hours) in journals.iter().zip([25, 23]) {
        std::fs::write(journal, "of an import that nobody waited for").unwrap();
        let written = SystemTime::now() - hours * HOUR;
        File::options().write(true).open(journal).unwrap().set_modified(written).unwrap();
    }
    world.kept().collect(NOW, |_| false).unwrap();
    assert_eq!(journals.map(|journal| journal.exists()), [false, true]);
}

// SEMANTICS: V6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_that_was_just_found_stays_until_its_mount_can_be_there() {
    let world = World::new();
    let node = world.node("cache");
    let (found, request) = world.find(&node, "data").await;
    assert_eq!(world.kept().collect(HOUR, |_| false).unwrap(), 0);
    // The process is killed after the answer. The next one is offered the mount.
    drop(node);
    let next = world.node("next");
    assert_eq!(next.find_again(&found.id, &request).await.unwrap().id, found.id);
    let open = next.open_dataset(found, &request, User::Connection).await.unwrap();
    assert_eq!(world.kept().collect(NOW, |id| id == open.id()).unwrap(), 0);
}

// SEMANTICS: V6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_of_mounted_offered_or_open_datasets_stay_without_a_cache() {
    let world = World::new();
    let node = world.node("cache");
    let (offered, _) = world.find(&node, "offered").await;
    let open = world.open(&node, "open").await;
    let (other, _) = world.find(&node, "other").await;
    // Somebody deletes the cache.
    std::fs::remove_dir_all(world.cache_dir("cache/datasets")).unwrap();
    node.collect_manifests(NOW, |id| id == offered.id);
    assert!(world.manifest(&offered.id).exists() && world.manifest(open.id()).exists());
    assert!(!world.manifest(&other.id).exists());
    let id = open.id().to_owned();
    drop(open);
    node.drained().await;
    node.collect_manifests(NOW, |id| id == offered.id);
    assert!(!world.manifest(&id).exists());
}

// SEMANTICS: V6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_of_snapshots_in_any_cache_of_the_home_stay_until_release() {
    let world = World::new();
    let (node, other) = (world.node("cache"), world.node("other"));
    let mut ids = Vec::new();
    for (node, name) in [(&node, "ours"), (&other, "theirs")] {
        let open = world.open(node, name).await;
        ids.push(open.id().to_owned());
        drop(open);
        node.drained().await;
    }
    node.collect_manifests(NOW, |_| false);
    assert!(ids.iter().all(|id| world.manifest(id).exists()), "{:?}", world.left());
    // The other process ends, its cache stays, and its disk does not tell what it holds.
    drop(other);
    let datasets = world.cache_dir("other/datasets");
    let aside = datasets.with_extension("aside");
    std::fs::rename(&datasets, &aside).unwrap();
    std::fs::write(&datasets, "not a folder").unwrap();
    node.collect_manifests(NOW, |_| false);
    assert!(world.manifest(&ids[1]).exists());
    std::fs::remove_file(&datasets).unwrap();
    std::fs::rename(&aside, &datasets).unwrap();
    // Each is released by itself.
    for (cache, id, other) in [("other", &ids[1], &ids[0]), ("cache", &ids[0], &ids[1])] {
        std::fs::remove_dir_all(world.cache_dir(cache).join("datasets")).unwrap();
        let others_before = world.manifest(other).exists();
        node.collect_manifests(NOW, |_| false);
        assert!(!world.manifest(id).exists());
        assert_eq!(world.manifest(other).exists(), others_before);
    }
}

// SEMANTICS: V6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_manifest_is_removed_unless_it_is_mounted_and_one_that_cannot_be_read_stays() {
    let world = World::new();
    let node = world.node("cache");
    let (found, _) = world.find(&node, "data").await;
    drop(found.manifest);
    let manifest = world.manifest(&found.id);
    // Its first name is another link to the file.
    std::fs::remove_file(&manifest).unwrap();
    std::fs::create_dir(&manifest).unwrap();
    assert_eq!(world.kept().collect(NOW, |_| false).unwrap(), 0);
    assert!(manifest.exists());
    std::fs::remove_dir(&manifest).unwrap();
    std::fs::write(&manifest, "no manifest").unwrap();
    assert_eq!(world.kept().collect(NOW, |_| true).unwrap(), 0);
    assert_eq!(world.kept().collect(NOW, |_| false).unwrap(), 1);
}

// SEMANTICS: V6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_that_was_killed_anywhere_is_finished_by_the_next_and_takes_nothing_else() {
    for killed_after in 0..3 {
        let world = World::new();
        let node = world.node("cache");
        let needed = world.open(&node, "needed").await;
        let (found, _) = world.find(&node, "data").await;
        for id in [needed.id(), &found.id] {
            std::fs::write(order_of(&world.manifest(id)), "file").unwrap();
            std::fs::write(world.manifest(id).with_extension("refresh-failed"), "denied").unwrap();
        }
        let manifest = world.manifest(&found.id);
        let in_order = [manifest.clone(), order_of(&manifest), manifest.with_extension("refresh-failed")];
        in_order.iter().take(killed_after).for_each(|removed| std::fs::remove_file(removed).unwrap());
        node.collect_manifests(NOW, |_| false);
        let expected = ["manifest", "manifest.order", "refresh-failed"].map(|kind| format!("{}.{kind}", needed.id()));
        assert_eq!(world.left(), expected, "after {killed_after} files");
    }
}

/// A manifest is needed at the last moment: its mount is offered while the collection waits for the lock.
// SEMANTICS: V6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn needs_are_looked_at_under_the_lock() {
    let world = World::new();
    let (found, _) = world.find(&world.node("cache"), "data").await;
    let held = lock(&world.home()).unwrap();
    let offered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let kept = world.kept();
        let offered = &offered;
        let collecting = scope.spawn(move || kept.collect(NOW, |_| offered.load(Ordering::SeqCst)).unwrap());
        // It has the time to look too early.
        std::thread::sleep(Duration::from_millis(100));
        offered.store(true, Ordering::SeqCst);
        drop(held);
        assert_eq!(collecting.join().unwrap(), 0);
    });
    assert!(world.manifest(&found.id).exists());
}

/// Its disk is not mounted, or it is on another machine's folder that is away.
// SEMANTICS: V6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_stay_while_the_folder_of_a_cache_is_missing() {
    let world = World::new();
    let (found, _) = world.find(&world.node("other"), "data").await;
    std::fs::rename(world.cache_dir("other"), world.cache_dir("away")).unwrap();
    assert_eq!(world.kept().collect(NOW, |_| false).unwrap(), 0);
    std::fs::rename(world.cache_dir("away"), world.cache_dir("other")).unwrap();
    assert_eq!(world.kept().collect(NOW, |_| false).unwrap(), 1);
    assert!(!world.manifest(&found.id).exists());
}

// SEMANTICS: V6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_in_which_no_cache_can_be_noted_keeps_manifests_and_loses_none() {
    let world = World::new();
    let node = world.node("cache");
    std::fs::remove_dir_all(world.home().dir().join(CACHES)).ok();
    std::fs::create_dir_all(world.home().dir()).unwrap();
    std::fs::write(world.home().dir().join(CACHES), "in the way").unwrap();
    let (found, _) = world.find(&node, "data").await;
    assert!(world.manifest(&found.id).exists());
    assert_eq!(world.kept().collect(NOW, |_| false).unwrap(), 0);
    assert!(world.manifest(&found.id).exists());
}

/// The same snapshot is found again, by whichever process, after a collection has looked and before it removes.
// SEMANTICS: V6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_found_again_during_a_collection_stays() {
    let world = World::new();
    let (found, request) = world.find(&world.node("cache"), "data").await;
    let listed = crate::source::local_manifest(&request.spec.source, &OriginConfig::default(), &world.home()).unwrap();
    let source = open_source(listed, &OriginConfig::default()).unwrap();
    let (kept, other) = (world.kept(), world.kept());
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        let (id, source, other) = (&found.id, &source, &other);
        let start = std::sync::Mutex::new(Some(move || {
            other.keep(id, source).unwrap();
            let _ = done.send(());
        }));
        let look = |_: &str| {
            if let Some(keep) = start.lock().unwrap().take() {
                scope.spawn(keep);
                // Without the lock it would be done now, and be undone.
                let _ = is_done.recv_timeout(Duration::from_millis(300));
            }
            false
        };
        assert_eq!(kept.collect(NOW, look).unwrap(), 1);
    });
    assert!(world.manifest(&found.id).exists());
}

#[test]
fn drafts_of_killed_processes_are_removed_after_a_day() {
    let folder = tempfile::tempdir().unwrap();
    let (draft, other) = (folder.path().join(".larder-manifest-x"), folder.path().join("a.manifest"));
    for file in [&draft, &other] {
        std::fs::write(file, "").unwrap();
    }
    remove_drafts(folder.path(), DRAFT_MOST);
    assert!(draft.exists());
    remove_drafts(folder.path(), NOW);
    assert!(!draft.exists() && other.exists());
}
