//! Room while a dataset adopts the blocks of another, and afterwards.

use std::sync::{Arc, Mutex, mpsc};

use larder_dataset::{BlockIndex, CacheId};
use larder_store::{CacheConfig, Earlier, Reservation, SameBlocks};
use tokio::sync::oneshot;

use super::*;

/// Another snapshot, whose blocks are being adopted until its gate is dropped.
#[derive(Debug)]
struct Held {
    cache: CacheId,
    blocks: u32,
    is_promised: bool,
    gate: Mutex<mpsc::Receiver<()>>,
}

impl Earlier for Held {
    fn cache(&self) -> CacheId {
        self.cache
    }

    fn blocks(&self) -> u32 {
        self.blocks
    }

    fn is_promised(&self) -> bool {
        self.is_promised
    }

    fn find(&self, _: BlockIndex) -> Option<BlockIndex> {
        None
    }

    fn each_run(&self, is_stopped: &dyn Fn() -> bool, _: &mut dyn FnMut(SameBlocks) -> bool) {
        let gate = self.gate.lock().unwrap();
        while !is_stopped() && gate.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            std::thread::yield_now();
        }
    }
}

/// Makes a dataset adopt blocks of a snapshot of 40, until the first end is dropped. The second tells that it has
/// ended.
fn take_over(
    world: &World,
    shown: &Shown,
    cache: CacheId,
    is_promised: bool,
) -> (mpsc::Sender<()>, oneshot::Receiver<bool>) {
    let config = CacheConfig {
        key: shown.open.key().clone(),
        is_known_as_ours: false,
        name: String::new(),
        blocks: shown.open.manifest().totals().blocks,
        reservation_bytes: 0,
        promised: Reservation::default(),
        policy: PolicyKind::Nr,
        seed: 1,
        block_lens: Arc::new(|_: BlockIndex| 0),
    };
    let ((open, gate), (sender, done)) = (mpsc::channel(), oneshot::channel());
    let held = Held { cache, blocks: 40, is_promised, gate: Mutex::new(gate) };
    let cache = world.node.store.dataset(config).unwrap();
    cache.adopt(vec![Arc::new(held)], move |complete| sender.send(complete).unwrap());
    (open, done)
}

// SEMANTICS: C16
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dataset_whose_blocks_are_being_adopted_is_not_released_and_keeps_its_promise() {
    for is_promised in [false, true] {
        let world = World::new(CROWDED);
        // Not all of it is cached: blocks are left to adopt.
        let small = world.show("small", 2, sized(FILE_BYTES)).await;
        let old = world.show("old", 40, whole()).await;
        let snapshot = old.open.manifest().snapshot();
        let (gate, done) = take_over(&world, &small, snapshot.into(), is_promised);
        world.close(old).await;
        // It needs the room of the old one.
        let other = world.show("other", 40, whole()).await;
        let blocks = other.open.cache_usage().blocks_cached;
        assert!(if is_promised { blocks < 16 } else { blocks == 40 }, "{blocks}");
        assert!(!world.node.drop_unused(snapshot, "", u64::MAX).await.unwrap());
        assert_eq!(world.cached(), 3);
        drop(gate);
        assert!(done.await.unwrap());
        assert!(world.node.drop_unused(snapshot, "", u64::MAX).await.unwrap());
        assert_eq!(world.cached(), 2);
    }
}

/// A dataset of 40 files counts as 566,544 bytes.
// SEMANTICS: C16
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_snapshot_larger_than_the_cache_takes_over_the_room_of_the_closed_old_one_and_no_more() {
    let world = World::new(Some(300_000));
    let old = world.show("images", 40, whole()).await;
    let before = old.open.cache_usage();
    assert_eq!(before.blocks_cached, 21);
    world.close(old).await;
    change(&world, "images", 0..1);
    let (found, request) = world.find("images", 40, whole()).await;
    let open = world.node.open_dataset(found, &request, User::Connection).await.unwrap();
    let new = Shown { open, request };
    adopted(&new).await;
    for _ in 0..2 {
        for file in 0..40 {
            new.open.read_file(file, 0, FILE_BYTES as u32).await.unwrap();
        }
        new.open.settle().await;
    }
    let usage = new.open.cache_usage();
    assert_eq!((usage.capacity_bytes, usage.blocks_cached), (before.capacity_bytes, 21));
    let report = world.node.cache_report().await.unwrap();
    assert!(report.promised_bytes <= 300_000, "{report:?}");
    let fetched = new.open.values().find(|(name, _)| *name == "fs_origin_bytes_total").unwrap().1;
    assert!(fetched <= (1 + 2 * 19) * FILE_BYTES, "{fetched}: what was cached is not fetched");
}

/// Makes a cache one of a version that stored no keys.
fn forget_keys(cache: &Path) {
    for dataset in std::fs::read_dir(cache.join("datasets")).unwrap() {
        std::fs::remove_file(dataset.unwrap().path().join("key")).unwrap();
    }
}

/// The first to find the snapshot again is the only one that found it then, and says nothing about before.
// SEMANTICS: C16, C19
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_version_without_keys_cached_is_nobodys_once_the_home_is_lost() {
    let mut world = World::new(Some(1_000_000));
    let shown = world.show("images", 10, whole()).await;
    let mounts = world.folder.path().join("home/mounts");
    let lose_home = |cache: &Path| {
        forget_keys(cache);
        std::fs::remove_dir_all(mounts).unwrap();
    };
    let mount = world.kill(vec![shown], lose_home).pop().unwrap();
    // A pod asks for it, and the process ends before the dataset is open.
    drop(world.find("images", 10, whole()).await);
    world.kill(Vec::new(), |_| ());
    let shown = world.offer(mount).await;
    assert_eq!(shown.open.cache_usage().blocks_cached, 0);
    for file in 0..10 {
        shown.open.read_file(file, 0, FILE_BYTES as u32).await.unwrap();
    }
}

// SEMANTICS: C16
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_version_without_keys_cached_is_adopted_by_its_only_reader_and_dropped_if_others_found_it() {
    for others in [false, true] {
        let mut world = World::new(Some(1_000_000));
        let shown = world.show("images", 10, whole()).await;
        if others {
            let mounts = world.folder.path().join("home/mounts");
            let manifest = mounts.join(format!("{}.manifest", shown.open.id()));
            std::fs::copy(manifest, mounts.join(format!("{:032x}.manifest", 7))).unwrap();
        }
        let mount = world.kill(vec![shown], forget_keys).pop().unwrap();
        let shown = world.offer(mount).await;
        assert_eq!(shown.open.cache_usage().blocks_cached, if others { 0 } else { 10 }, "others: {others}");
        for file in 0..10 {
            shown.open.read_file(file, 0, FILE_BYTES as u32).await.unwrap();
        }
        shown.open.settle().await;
        // From now on its key is known, whoever finds the snapshot.
        let mount = world.kill(vec![shown], |_| ()).pop().unwrap();
        let shown = world.offer(mount).await;
        assert_eq!(shown.open.cache_usage().blocks_cached, 10, "others: {others}");
    }
}
