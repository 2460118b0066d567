//! Whole nodes over a real store. A kill is a copy of the cache folder: what another process would find.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use larder_dataset::{DatasetSpec, FileIndex, PolicyKind};
use larder_origin::OriginConfig;
use larder_store::Usage;
use tempfile::TempDir;

use crate::home::Home;
use crate::node::{Found, Node, NodeConfig, NodeError, OpenDataset, Prepared, User};
use crate::request::DatasetRequest;

/// Each file is one block; its record takes 12 KiB on the disk.
const FILE_BYTES: u64 = 10_000;

/// A cache folder that outlives its nodes.
struct World {
    folder: TempDir,
    kills: u32,
    node: Arc<Node>,
    /// The budget of the next node, and what it leaves free.
    budget: Option<u64>,
    keep_free_percent: u8,
}

/// A dataset as `User::Connection` has it.
struct Shown {
    open: OpenDataset,
    request: DatasetRequest,
}

impl World {
    fn new(budget: Option<u64>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = Self::start(folder.path(), 0, budget, 0);
        Self { folder, kills: 0, node, budget, keep_free_percent: 0 }
    }

    fn start(folder: &Path, kills: u32, budget: Option<u64>, keep_free_percent: u8) -> Arc<Node> {
        let config = NodeConfig {
            cache_dir: folder.join(format!("cache-{kills}")),
            cache_bytes: budget,
            keep_free_percent,
            home: Home::new(folder.join("home")),
            origin: OriginConfig::default(),
            peers: None,
            socket: None,
        };
        Node::open(config).unwrap()
    }

    fn cache_dir(&self) -> PathBuf {
        self.folder.path().join(format!("cache-{}", self.kills))
    }

    /// Kills the process and starts the next one, after `meanwhile` has changed its cache folder.
    fn kill(&mut self, shown: Vec<Shown>, meanwhile: impl FnOnce(&Path)) -> Vec<(String, DatasetRequest)> {
        let before = self.cache_dir();
        self.kills += 1;
        copy(&before, &self.cache_dir());
        meanwhile(&self.cache_dir());
        self.node = Self::start(self.folder.path(), self.kills, self.budget, self.keep_free_percent);
        shown.into_iter().map(|shown| (shown.open.id().to_owned(), shown.request)).collect()
    }

    /// Finds a dataset of this many files, which is made first.
    async fn find(&self, name: &str, files: u64, spec: DatasetSpec) -> (Found, DatasetRequest) {
        let data = self.folder.path().join(name);
        std::fs::create_dir_all(&data).unwrap();
        for file in 0..files {
            // No two datasets are one snapshot.
            let mut bytes = vec![file as u8; FILE_BYTES as usize];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            let path = data.join(format!("{name}-{file}"));
            if !path.exists() {
                std::fs::write(path, bytes).unwrap();
            }
        }
        let request: DatasetRequest = DatasetSpec { source: format!("file://{}", data.display()), ..spec }.into();
        match self.node.prepare(&request, Duration::from_secs(60)).await.unwrap() {
            Prepared::Ready(found) => (found, request),
            Prepared::Importing { .. } => panic!("it takes longer than a minute"),
        }
    }

    /// Opens it for a connection, and reads all of it.
    async fn show(&self, name: &str, files: u64, spec: DatasetSpec) -> Shown {
        let (found, request) = self.find(name, files, spec).await;
        let open = self.node.open_dataset(found, &request, User::Connection).await.unwrap();
        for file in 0..files {
            open.read_later(FileIndex(file as u32), 0, FILE_BYTES as u32).await.unwrap();
        }
        open.settle().await;
        Shown { open, request }
    }

    /// The keeper offers a connection again.
    async fn offer(&self, (id, request): (String, DatasetRequest)) -> Shown {
        let found = self.node.find_again(&id, &request).await.unwrap();
        let open = self.node.open_dataset(found, &request, User::Connection).await.unwrap();
        while open.cache_usage().rebuilding {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Shown { open, request }
    }

    /// The snapshots that have a folder in the cache.
    fn cached(&self) -> usize {
        std::fs::read_dir(self.cache_dir().join("datasets")).unwrap().count()
    }

    async fn close(&self, shown: Shown) {
        drop(shown);
        self.node.drained().await;
    }
}

/// Copies what a killed process leaves behind.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else if entry.file_name() != "LOCK" {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn whole() -> DatasetSpec {
    DatasetSpec::default()
}

fn sized(cache_bytes: u64) -> DatasetSpec {
    DatasetSpec { cache_bytes: Some(cache_bytes), ..DatasetSpec::default() }
}

/// What a restart must not change.
fn has(shown: &Shown) -> (String, u64, u64, u64) {
    let Usage { capacity_bytes, wanted_bytes, blocks_cached, .. } = shown.open.cache_usage();
    (shown.open.id().to_owned(), capacity_bytes, wanted_bytes, blocks_cached)
}

fn all(shown: &[Shown]) -> Vec<(String, u64, u64, u64)> {
    let mut all: Vec<_> = shown.iter().map(has).collect();
    all.sort();
    all
}

fn ids(shown: &[Shown]) -> HashSet<String> {
    shown.iter().map(|shown| shown.open.id().to_owned()).collect()
}

/// Three datasets, of which the first takes most of the cache, the second the rest, and the third gets nothing.
async fn crowded(world: &World) -> Vec<Shown> {
    let mut shown = Vec::new();
    for name in ["first", "second", "third"] {
        shown.push(world.show(name, 40, whole()).await);
    }
    let blocks: Vec<_> = shown.iter().map(|shown| shown.open.cache_usage().blocks_cached).collect();
    assert_eq!(blocks[0], 40);
    assert!(blocks[1] > 0 && blocks[1] < 40 && blocks[2] == 0, "{blocks:?}");
    shown
}

/// For [`crowded`]: a dataset of 40 files counts as 566,544 bytes.
const CROWDED: Option<u64> = Some(700_000);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datasets_that_do_not_all_fit_are_unchanged_by_kills_whatever_is_offered_first() {
    let mut world = World::new(CROWDED);
    let mut shown = crowded(&world).await;
    let before = all(&shown);
    for turn in 0..4 {
        let mut kept = world.kill(shown, |_| ());
        kept.rotate_left(turn);
        kept.reverse();
        shown = Vec::new();
        for connection in kept {
            shown.push(world.offer(connection).await);
        }
        assert_eq!(all(&shown), before, "after kill {turn}");
        world.node.keep_only(&ids(&shown));
        assert_eq!((all(&shown), world.cached()), (before.clone(), 3), "after kill {turn}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_dataset_takes_nothing_from_those_that_are_not_offered_yet() {
    let mut world = World::new(CROWDED);
    let shown = crowded(&world).await;
    let before = all(&shown);
    let mut kept = world.kill(shown, |_| ()).into_iter();
    let mut shown = vec![world.offer(kept.next().unwrap()).await];
    let new = world.show("new", 60, whole()).await;
    assert_eq!((new.open.cache_usage().capacity_bytes, new.open.cache_usage().wanted_bytes), (0, 600_000));
    assert_eq!(world.cached(), 4);
    for connection in kept {
        shown.push(world.offer(connection).await);
    }
    assert_eq!(all(&shown), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_keeper_does_not_hold_counts_as_closed_once_it_has_said_so() {
    for let_go_of_one in [false, true] {
        let mut world = World::new(CROWDED);
        let shown = crowded(&world).await;
        let before = has(&shown[1]);
        let mut kept = world.kill(shown, |_| ()).into_iter();
        let (first, second) = (kept.next().unwrap(), kept.next().unwrap());
        if let_go_of_one {
            world.node.let_go(&first.0);
        } else {
            world.node.keep_only(&[second.0.clone()].into());
        }
        assert_eq!(world.cached(), 3, "a closed dataset keeps its blocks until their room is needed");
        let new = world.show("new", 40, whole()).await;
        assert_eq!(new.open.cache_usage().blocks_cached, 40);
        let second = world.offer(second).await;
        assert_eq!(has(&second), before, "the keeper holds it");
        world.close(new).await;
        // What was let go is not remembered by the next process either.
        let mut kept = world.kill(vec![second], |_| ()).into_iter();
        let new = world.show("newer", 40, whole()).await;
        assert_eq!(new.open.cache_usage().blocks_cached, 40);
        assert_eq!(has(&world.offer(kept.next().unwrap()).await), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_smaller_cache_gives_every_dataset_the_same_part_of_its_own_and_a_larger_one_returns_it() {
    let mut world = World::new(Some(2_000_000));
    let mut shown = Vec::new();
    for (name, files, policy) in
        [("nr", 40, PolicyKind::Nr), ("lru", 20, PolicyKind::Lru), ("fifo", 60, PolicyKind::Fifo)]
    {
        shown.push(world.show(name, files, DatasetSpec { policy: Some(policy), ..whole() }).await);
    }
    let before = all(&shown);
    assert!(before.iter().all(|(_, capacity, wanted, blocks)| capacity == wanted && blocks * FILE_BYTES == *wanted));
    // 120 files count as 1,699,632 bytes.
    for order in 0..3 {
        world.budget = Some(849_816);
        let mut kept = world.kill(shown, |_| ());
        kept.rotate_left(order);
        shown = Vec::new();
        for connection in kept {
            shown.push(world.offer(connection).await);
        }
        for shown in &shown {
            let Usage { capacity_bytes, wanted_bytes, blocks_cached, policy, .. } = shown.open.cache_usage();
            assert!(capacity_bytes.abs_diff(wanted_bytes / 2) < 100, "{capacity_bytes} of {wanted_bytes}");
            let all = wanted_bytes / FILE_BYTES;
            assert_eq!(blocks_cached, if policy == PolicyKind::Nr { all } else { all / 2 }, "{policy}");
        }
        let new = world.show("new", 5, whole()).await;
        assert_eq!(new.open.cache_usage().capacity_bytes, 0, "all is promised");
        world.close(new).await;
    }
    world.budget = Some(2_000_000);
    for connection in world.kill(shown, |_| ()) {
        let Usage { capacity_bytes, wanted_bytes, .. } = world.offer(connection).await.open.cache_usage();
        assert_eq!(capacity_bytes, wanted_bytes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dataset_that_got_less_than_it_wanted_gets_the_rest_when_it_is_opened_and_there_is_room() {
    let mut world = World::new(CROWDED);
    let mut shown = crowded(&world).await;
    world.close(shown.remove(0)).await;
    let third = shown.pop().unwrap();
    let second = has(&shown[0]);
    let kept = world.kill(vec![third], |_| ());
    for connection in kept {
        let third = world.offer(connection).await;
        let Usage { capacity_bytes, wanted_bytes, .. } = third.open.cache_usage();
        assert_eq!((capacity_bytes, wanted_bytes), (400_000, 400_000));
        assert_eq!(world.cached(), 2, "the first was closed, and in its way");
    }
    assert!(second.3 > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_a_lost_index_nor_a_lost_file_loses_a_reservation() {
    type Loss = fn(&Path);
    let lose_files = |cache: &Path| {
        for dataset in std::fs::read_dir(cache.join("datasets")).unwrap().flatten() {
            std::fs::remove_file(dataset.path().join("reservation")).unwrap();
        }
    };
    let losses: [(&str, Loss); 2] =
        [("the index", |cache| std::fs::remove_dir_all(cache.join("index")).unwrap()), ("the files", lose_files)];
    for (lost, lose) in losses {
        let mut world = World::new(CROWDED);
        let shown = crowded(&world).await;
        let before: Vec<_> = all(&shown).into_iter().map(|(id, capacity, _, blocks)| (id, capacity, blocks)).collect();
        let mut kept = world.kill(shown, lose);
        kept.reverse();
        let mut shown = Vec::new();
        for connection in kept {
            shown.push(world.offer(connection).await);
        }
        let after: Vec<_> = all(&shown).into_iter().map(|(id, capacity, _, blocks)| (id, capacity, blocks)).collect();
        assert_eq!(after, before, "{lost}");
    }
    // With both, what the datasets have stays.
    let mut world = World::new(CROWDED);
    let shown = crowded(&world).await;
    let before: Vec<_> = all(&shown).into_iter().map(|(id, _, _, blocks)| (id, blocks)).collect();
    let mut kept = world.kill(shown, |cache| {
        lose_files(cache);
        std::fs::remove_dir_all(cache.join("index")).unwrap();
    });
    kept.reverse();
    let mut shown = Vec::new();
    for connection in kept {
        shown.push(world.offer(connection).await);
    }
    let after: Vec<_> = all(&shown).into_iter().map(|(id, _, _, blocks)| (id, blocks)).collect();
    assert_eq!(after, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_dataset_of_which_everything_was_lost_counts_as_what_it_takes_on_the_disk() {
    let mut world = World::new(Some(1_400_000));
    for name in ["a", "b"] {
        let shown = world.show(name, 40, whole()).await;
        world.close(shown).await;
    }
    assert_eq!(world.cached(), 2);
    world.kill(Vec::new(), |cache| {
        std::fs::remove_dir_all(cache.join("index")).unwrap();
        for dataset in std::fs::read_dir(cache.join("datasets")).unwrap().flatten() {
            std::fs::remove_file(dataset.path().join("reservation")).unwrap();
        }
    });
    world.node.keep_only(&HashSet::new());
    // 40 files take 491,520 bytes on the disk.
    let small = world.show("c", 10, whole()).await;
    assert_eq!((world.cached(), small.open.cache_usage().blocks_cached), (3, 10), "there is room");
    let large = world.show("d", 40, whole()).await;
    assert_eq!((world.cached(), large.open.cache_usage().blocks_cached), (3, 40), "one of the lost ones made room");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_that_asks_for_more_than_there_is_is_refused_and_a_connection_gets_what_there_is() {
    let world = World::new(CROWDED);
    let first = world.show("first", 30, sized(300_000)).await;
    assert_eq!(first.open.cache_usage().capacity_bytes, 300_000);
    let (found, request) = world.find("second", 30, sized(300_000)).await;
    let refused = world.node.open_dataset(found.clone(), &request, User::Mount).await.unwrap_err();
    assert!(matches!(refused, NodeError::NoRoom { .. }), "{refused}");
    let second = world.node.open_dataset(found, &request, User::Connection).await.unwrap();
    let usage = second.cache_usage();
    assert!(usage.capacity_bytes > 0 && usage.capacity_bytes < usage.wanted_bytes && usage.wanted_bytes == 300_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dataset_has_the_size_and_policy_of_its_first_opening_and_connections_that_want_others_are_served() {
    let mut world = World::new(None);
    let shown = world.show("set", 10, sized(50_000)).await;
    let before = has(&shown);
    let other = DatasetSpec { policy: Some(PolicyKind::Lru), ..sized(80_000) };
    let (found, request) = world.find("set", 10, other.clone()).await;
    assert!(world.node.joins(&found, &request).unwrap(), "another pod is welcome");
    let second = world.node.open_dataset(found.clone(), &request, User::Connection).await.unwrap();
    let refused = world.node.open_dataset(found, &request, User::Mount).await.unwrap_err();
    assert!(matches!(refused, NodeError::InUse { .. }), "{refused}");
    drop(second);
    let mut kept = world.kill(vec![shown], |_| ());
    // Of two volumes with different sizes, the other one may be offered after a restart.
    kept[0].1.spec = DatasetSpec { source: kept[0].1.spec.source.clone(), ..other };
    let after = world.offer(kept.remove(0)).await;
    assert_eq!(has(&after), before);
    assert_eq!(after.open.cache_usage().policy, PolicyKind::Nr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_dataset_leaves_when_others_fill_the_disk() {
    // No disk is as empty as that.
    let mut world = World { keep_free_percent: 100, ..World::new(Some(1 << 30)) };
    world.kill(Vec::new(), |_| ());
    let closed = world.show("closed", 10, whole()).await;
    assert_eq!(closed.open.cache_usage().blocks_cached, 0, "nothing is admitted");
    assert_eq!(closed.open.cache_usage().degraded, Some("too little of the disk is free"));
    world.close(closed).await;
    let open = world.show("open", 10, whole()).await;
    assert_eq!((world.cached(), open.open.cache_usage().capacity_bytes), (1, 100_000));
}
