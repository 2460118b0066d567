//! Effects of a change of the list of nodes on open datasets: on blocks, reservations and openings.

use std::collections::HashMap;
use std::sync::{Mutex, mpsc};

use larder_dataset::{BlockIndex, FileIndex, PolicyKind};
use larder_store::{CacheConfig, Reservation};

use super::*;
use crate::dataset::Dataset;
use crate::node::follow::count;

/// Files of each dataset, one block each.
const FILES: u32 = 40;
const FILE_BYTES: u64 = 10_000;
const ALL_BYTES: u64 = FILES as u64 * FILE_BYTES;

/// No wait is longer than this in a test that passes.
const PATIENCE: Duration = Duration::from_secs(60);

impl World {
    fn knowing(names: &[&str]) -> Self {
        Self::at(tempfile::tempdir().unwrap(), names, None)
    }

    /// Finds the dataset `data`. Two names for it are two servers that have the same snapshot.
    async fn find(&self, id: &str, placement: Placement, cache_bytes: Option<u64>) -> (Found, DatasetRequest) {
        let files: Vec<_> = (0..FILES).map(|n| (format!("{n:02}"), vec![n as u8; FILE_BYTES as usize])).collect();
        let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        let data = self.folder.path().join("data");
        let source = if data.exists() { format!("file://{}", data.display()) } else { self.make("data", &files) };
        let spec = DatasetSpec { placement: Some(placement), cache_bytes, ..DatasetSpec::new(source) };
        let request = DatasetRequest::from(spec);
        let found = self.node.find(&request).await.unwrap();
        (Found { id: id.to_owned(), ..found }, request)
    }

    async fn open_as(&self, id: &str, placement: Placement, cache_bytes: Option<u64>) -> OpenDataset {
        let (found, request) = self.find(id, placement, cache_bytes).await;
        self.node.open_dataset(found, &request, User::Connection).await.unwrap()
    }

    /// Stops the node and starts the next one, which knows these nodes.
    async fn restart(self, names: &[&str]) -> Self {
        self.node.close().await.unwrap();
        let Self { folder, node, .. } = self;
        drop(node);
        Self::at(folder, names, None)
    }

    /// Kills the node, which shows these, and starts the next one, which knows these nodes.
    async fn kill(self, shown: [OpenDataset; 2], names: &[&str]) -> Self {
        let [cache, left] = ["store", "left"].map(|name| self.folder.path().join(name));
        // A copy, as another process would find it. A file that is replaced just now may be missed: then another copy.
        let copy = || std::process::Command::new("cp").arg("-r").args([&cache, &left]).status().unwrap().success();
        let mut tries = 0..20;
        while !copy() {
            assert!(tries.next().is_some(), "the folder cannot be copied");
            std::fs::remove_dir_all(&left).unwrap();
        }
        drop(shown);
        self.node.drained().await;
        self.node.close().await.unwrap();
        let Self { folder, node, .. } = self;
        drop(node);
        std::fs::remove_dir_all(&cache).unwrap();
        std::fs::rename(left, cache).unwrap();
        Self::at(folder, names, None)
    }

    /// Opens the dataset, and waits until the blocks of an earlier run are counted.
    async fn open_again(&self, id: &str, placement: Placement, cache_bytes: Option<u64>) -> OpenDataset {
        let open = self.open_as(id, placement, cache_bytes).await;
        until(async || !open.cache_usage().rebuilding && !open.is_adopting()).await;
        open
    }

    fn disowned(&self) -> u64 {
        self.node.values()["store_disowned_total"]
    }

    /// Waits until a dataset that was dropped is closed and blocks that this node does not own leave for others.
    async fn until_disowned(&self, shared: &Dataset) {
        self.node.drained().await;
        until(async || {
            read(shared, 0..FILES).await;
            self.disowned() > 0
        })
        .await;
    }

    /// Shares the cache, which follows the list of nodes.
    fn share(&self) {
        let node = Arc::clone(&self.node);
        tokio::spawn(async move { node.run().await.unwrap() });
    }

    /// Makes all questions for the list of nodes wait until what is returned is dropped: what counts the blocks of this
    /// node is held.
    async fn hold_the_list(&self) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel();
        let (hold, is_held) = tokio::sync::oneshot::channel();
        let members = self.members.clone();
        std::thread::spawn(move || {
            members.send_modify(|_| {
                let _ = hold.send(());
                let _ = released.recv();
            });
        });
        is_held.await.unwrap();
        release
    }
}

async fn read(dataset: &Dataset, files: std::ops::Range<u32>) {
    for file in files {
        dataset.read_file(file, 0, FILE_BYTES as u32).await.unwrap();
    }
    dataset.settle().await;
}

fn is_kept(dataset: &Dataset, file: u32) -> bool {
    let row = dataset.manifest().file_blocks(FileIndex(file)).unwrap();
    let stored = || dataset.counters().read_bytes_store.load(std::sync::atomic::Ordering::Relaxed);
    let before = stored();
    dataset.read_now(row, 0, FILE_BYTES as u32, |_| ()) && stored() > before
}

/// Begins a call that does not end at once.
async fn start(call: &mut (impl Future + Unpin)) {
    tokio::select! {
        biased;
        _ = call => panic!("it waits"),
        () = std::future::ready(()) => {}
    }
}

async fn until(is_so: impl AsyncFn() -> bool) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it happens");
}

// SEMANTICS: S3
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_block_of_a_local_dataset_leaves_because_another_user_of_its_cache_shares_it() {
    for local_first in [false, true] {
        let world = World::knowing(&["n"]);
        let half = Some(ALL_BYTES / 2);
        let (local, shared);
        if local_first {
            local = world.open_as("local", Placement::Local, half).await;
            shared = world.open_as("shared", Placement::Partitioned, half).await;
        } else {
            shared = world.open_as("shared", Placement::Partitioned, half).await;
            local = world.open_as("local", Placement::Local, half).await;
        }
        read(&local, 0..FILES / 2).await;
        // Read ahead, these need not be the first ones.
        let kept: Vec<_> = (0..FILES).filter(|&file| is_kept(&local, file)).collect();
        assert_eq!(kept.len() as u32, FILES / 2);
        world.members.send_replace(list(&["n", "m"]));
        for _ in 0..3 {
            read(&shared, 0..FILES).await;
        }
        assert_eq!(world.disowned(), 0);
        assert!(kept.iter().all(|&file| is_kept(&local, file)));
        drop(local);
        world.until_disowned(&shared).await;
    }
}

// SEMANTICS: S2
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reservation_follows_the_list_of_nodes_only_while_all_users_of_the_cache_do() {
    // A user that does not share the dataset, and one that stated a size.
    for (placement, cache_bytes) in [(Placement::Local, None), (Placement::Partitioned, Some(ALL_BYTES))] {
        let world = World::knowing(&["n", "m"]);
        let other = world.open_as("other", placement, cache_bytes).await;
        let shared = world.open_as("shared", Placement::Partitioned, None).await;
        assert_eq!(shared.cache_usage().capacity_bytes, ALL_BYTES);
        world.node.follow_owned().await;
        assert_eq!(shared.cache_usage().capacity_bytes, ALL_BYTES);
        // The list does not change any more.
        world.share();
        drop(other);
        until(async || shared.cache_usage().capacity_bytes < ALL_BYTES).await;
        let owned = shared.followed().unwrap().bytes();
        assert_eq!(Some(shared.cache_usage().capacity_bytes), owned);
    }
}

// SEMANTICS: S2
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn while_a_caches_blocks_are_counted_reservations_do_not_follow_the_list_of_nodes() {
    let world = World::knowing(&["n"]);
    let shared = world.open_as("shared", Placement::Partitioned, None).await;
    read(&shared, 0..4).await;
    let blocks = shared.cache_usage().blocks_cached;
    drop(shared);
    world.node.drained().await;
    let world = world.restart(&["n"]).await;
    // Opened here first, it has lengths of blocks for which its rebuild has to wait.
    let (found, request) = world.find("shared", Placement::Partitioned, None).await;
    let (count, counted) = mpsc::channel::<()>();
    let counted = Mutex::new(counted);
    let held = world.node.store.dataset(CacheConfig {
        key: found.key.clone(),
        is_known_as_ours: false,
        name: "data".to_owned(),
        blocks: FILES,
        reservation_bytes: ALL_BYTES,
        promised: Reservation::exactly(ALL_BYTES),
        policy: PolicyKind::Nr,
        seed: 1,
        block_lens: Arc::new(move |_: BlockIndex| {
            let _ = counted.lock().unwrap().recv();
            FILE_BYTES as u32
        }),
    });
    let shared = world.node.open_dataset(found, &request, User::Connection).await.unwrap();
    drop(held);
    assert!(shared.cache_usage().rebuilding);
    world.share();
    world.members.send_replace(list(&["n", "m"]));
    // The change is waited for, and then settles.
    tokio::time::sleep(Duration::from_secs(3)).await;
    world.node.follow_owned().await;
    assert_eq!(shared.cache_usage().capacity_bytes, ALL_BYTES);
    drop(count);
    until(async || shared.cache_usage().capacity_bytes < ALL_BYTES).await;
    assert_eq!(shared.cache_usage().blocks_cached, blocks);
}

// SEMANTICS: C10
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dataset_is_opened_while_the_blocks_that_this_node_owns_of_another_are_counted() {
    let world = World::knowing(&["n", "m"]);
    let (found, request) = world.find("shared", Placement::Partitioned, None).await;
    let release = world.hold_the_list().await;
    let mut slow = Box::pin(world.node.open_dataset(found, &request, User::Connection));
    start(&mut slow).await;
    let other = tokio::time::timeout(PATIENCE, world.open("other", Placement::Local, None)).await;
    drop(release);
    other.expect("it does not wait for the other's count");
    let shared = slow.await.unwrap();
    assert_eq!(Some(shared.cache_usage().capacity_bytes), shared.followed().unwrap().bytes());
}

// SEMANTICS: S2
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_list_that_changes_during_the_count_is_counted_again() {
    let world = World::knowing(&["n"]);
    let (found, request) = world.find("shared", Placement::Partitioned, None).await;
    let release = world.hold_the_list().await;
    let mut slow = Box::pin(world.node.open_dataset(found, &request, User::Connection));
    start(&mut slow).await;
    // Counted for, it waits for another opening.
    let opening = world.node.opening.lock().await;
    drop(release);
    tokio::time::timeout(Duration::from_secs(1), &mut slow).await.unwrap_err();
    world.members.send_replace(list(&["n", "m"]));
    drop(opening);
    let shared = slow.await.unwrap();
    assert_eq!(Some(shared.cache_usage().capacity_bytes), shared.followed().unwrap().bytes());
    assert!(shared.cache_usage().capacity_bytes < ALL_BYTES);
}

// SEMANTICS: C10
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dataset_is_opened_while_reservations_follow_the_list_of_nodes() {
    let world = World::knowing(&["n", "m"]);
    // A dataset that is being rebuilt does not follow.
    let shared = world.open_again("shared", Placement::Partitioned, None).await;
    let release = world.hold_the_list().await;
    let node = Arc::clone(&world.node);
    let follow = tokio::spawn(async move { node.follow_owned().await });
    let other = tokio::time::timeout(PATIENCE, world.open("other", Placement::Local, None)).await;
    drop(release);
    other.expect("it does not wait for the count");
    follow.await.unwrap();
    assert_eq!(Some(shared.cache_usage().capacity_bytes), shared.followed().unwrap().bytes());
}

// SEMANTICS: S2
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_a_restart_no_block_leaves_before_all_that_show_the_dataset_are_back() {
    let half = Some(ALL_BYTES / 2);
    let world = World::knowing(&["n"]);
    let local = world.open_as("local", Placement::Local, half).await;
    let shared = world.open_as("shared", Placement::Partitioned, half).await;
    read(&local, 0..FILES / 2).await;
    let kept: Vec<_> = (0..FILES).filter(|&file| is_kept(&local, file)).collect();
    assert_eq!(kept.len() as u32, FILES / 2);
    let world = world.kill([local, shared], &["n"]).await;
    let shared = world.open_again("shared", Placement::Partitioned, half).await;
    world.members.send_replace(list(&["n", "m"]));
    let is_whole = async || {
        for _ in 0..3 {
            read(&shared, 0..FILES).await;
        }
        world.disowned() == 0 && kept.iter().all(|&file| is_kept(&shared, file))
    };
    assert!(is_whole().await, "the other owns all blocks");
    let local = world.open_again("local", Placement::Local, half).await;
    assert!(is_whole().await);
    drop(local);
    world.until_disowned(&shared).await;
}

// SEMANTICS: S2
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_a_restart_a_reservation_follows_once_all_that_showed_the_dataset_are_back_or_gone() {
    for is_back in [false, true] {
        let world = World::knowing(&["n"]);
        let one = world.open_as("one", Placement::Partitioned, None).await;
        let other = world.open_as("other", Placement::Partitioned, None).await;
        let world = world.kill([one, other], &["n"]).await;
        let one = world.open_again("one", Placement::Partitioned, None).await;
        world.share();
        world.members.send_replace(list(&["n", "m"]));
        // The change is waited for, and then settles.
        tokio::time::sleep(Duration::from_secs(3)).await;
        world.node.follow_owned().await;
        assert_eq!(one.cache_usage().capacity_bytes, ALL_BYTES, "the other may be a user of the whole");
        let other = if is_back {
            Some(world.open_as("other", Placement::Partitioned, None).await)
        } else {
            world.node.keep_only(&["one".to_owned()].into());
            None
        };
        until(async || one.cache_usage().capacity_bytes < ALL_BYTES).await;
        assert_eq!(Some(one.cache_usage().capacity_bytes), one.followed().unwrap().bytes());
        drop(other);
    }
}

// SEMANTICS: S2
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dataset_opened_during_a_count_is_counted() {
    let world = World::knowing(&["n", "m"]);
    let one = world.open_as("one", Placement::Partitioned, None).await;
    let other = world.open("other", Placement::Partitioned, None).await;
    let capacity = one.cache_usage().capacity_bytes;
    assert!(capacity < ALL_BYTES);
    let counted = count(world.node.uncounted(&HashMap::new()));
    assert_eq!((counted.len(), world.node.uncounted(&counted).len()), (2, 0));
    // On each node, this one owns all blocks.
    let two = world.open_as("two", "replicated:2".parse().unwrap(), None).await;
    assert_eq!(world.node.uncounted(&counted).into_keys().collect::<Vec<_>>(), [one.cache_id()]);
    world.node.follow_owned().await;
    assert_eq!(two.cache_usage().capacity_bytes, ALL_BYTES);
    assert_eq!(Some(other.cache_usage().capacity_bytes), other.followed().unwrap().bytes());
    // Nor does it wait for the list to change when it comes later.
    drop(two);
    world.node.drained().await;
    world.node.follow_owned().await;
    assert_eq!(one.cache_usage().capacity_bytes, capacity);
    world.share();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let two = world.open_as("two", "replicated:2".parse().unwrap(), None).await;
    until(async || two.cache_usage().capacity_bytes == ALL_BYTES).await;
}

// SEMANTICS: S2
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_list_that_never_stops_changing_keeps_no_dataset_from_being_opened() {
    let world = World::knowing(&["n", "m"]);
    world.share();
    let (found, request) = world.find("shared", Placement::Partitioned, None).await;
    let node = Arc::clone(&world.node);
    let mut slow = tokio::spawn(async move { node.open_dataset(found, &request, User::Connection).await });
    let open = async {
        let mut others = [&["n", "m", "o"][..], &["n", "m"][..]].into_iter().cycle();
        loop {
            // It has counted, or counts, and waits for this.
            let opening = world.node.opening.lock().await;
            if let Ok(opened) = tokio::time::timeout(Duration::from_millis(300), &mut slow).await {
                break opened.unwrap().unwrap();
            }
            world.members.send_replace(list(others.next().unwrap()));
            drop(opening);
        }
    };
    let shared = tokio::time::timeout(PATIENCE, open).await.expect("it is opened");
    until(async || Some(shared.cache_usage().capacity_bytes) == shared.followed().unwrap().bytes()).await;
}

// SEMANTICS: S2
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_wanted_size_stays_when_a_user_that_owns_less_is_offered_first() {
    let world = World::knowing(&["n", "m"]);
    // It leaves room for a few files of the other.
    let files: Vec<_> = (0..70).map(|n| (format!("{n:02}"), vec![100 + n as u8; FILE_BYTES as usize])).collect();
    let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let request = DatasetRequest::from(DatasetSpec::new(world.make("blocker", &files)));
    let found = world.node.find(&request).await.unwrap();
    let blocker = world.node.open_dataset(found, &request, User::Mount).await.unwrap();
    let local = world.open_as("local", Placement::Local, None).await;
    let shared = world.open_as("shared", Placement::Partitioned, None).await;
    let usage = shared.cache_usage();
    assert!(usage.capacity_bytes < ALL_BYTES / 4 && usage.wanted_bytes == ALL_BYTES, "{usage:?}");
    drop(blocker);
    let mut world = world.kill([local, shared], &["n", "m"]).await;
    let shared = world.open_again("shared", Placement::Partitioned, None).await;
    let (owned, usage) = (shared.followed().unwrap().bytes(), shared.cache_usage());
    assert_eq!((Some(usage.capacity_bytes), usage.wanted_bytes), (owned, ALL_BYTES), "the other wanted all");
    let local = world.open_again("local", Placement::Local, None).await;
    world = world.kill([local, shared], &["n", "m"]).await;
    // It gets all that it wanted, since there is room by now.
    let local = world.open_again("local", Placement::Local, None).await;
    assert_eq!((local.cache_usage().capacity_bytes, local.cache_usage().wanted_bytes), (ALL_BYTES, ALL_BYTES));
    let shared = world.open_again("shared", Placement::Partitioned, None).await;
    world.share();
    drop(local);
    until(async || Some(shared.cache_usage().wanted_bytes) == owned).await;
}

// SEMANTICS: C1, S2
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cache_of_the_smallest_files_keeps_larger_ones_once_other_nodes_own_some_of_the_small_ones() {
    const CACHE_BYTES: u64 = 20_000;
    let world = World::knowing(&["n"]);
    // The small files fill the cache of a node that owns all.
    let len = |file: u32| if file.is_multiple_of(2) { 3_000 } else { 1_000 };
    let files: Vec<_> = (0..FILES).map(|file| (format!("{file:02}"), vec![file as u8; len(file) as usize])).collect();
    let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let spec = DatasetSpec {
        placement: Some(Placement::Partitioned),
        cache_bytes: Some(CACHE_BYTES),
        policy: Some(PolicyKind::Smallest),
        ..DatasetSpec::new(world.make("data", &files))
    };
    let request = DatasetRequest::from(spec);
    let found = world.node.find(&request).await.unwrap();
    let shared = world.node.open_dataset(found, &request, User::Connection).await.unwrap();
    world.members.send_replace(list(&["n", "m"]));
    world.node.follow_sizes().await;
    for file in 0..FILES {
        shared.read_file(file, 0, len(file)).await.unwrap();
    }
    shared.settle().await;
    let used = shared.cache_usage().used_bytes;
    assert!((CACHE_BYTES - 2_999..=CACHE_BYTES).contains(&used), "{used}");
}
