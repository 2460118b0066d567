//! Room while a dataset adopts the blocks of another, and afterwards.

use std::sync::{Arc, Mutex, mpsc};

use larder_dataset::{BlockIndex, SnapshotId};
use larder_store::{CacheConfig, Earlier, Reservation, SameBlocks};
use tokio::sync::oneshot;

use super::*;

/// Another snapshot, whose blocks are being adopted until its gate is dropped.
#[derive(Debug)]
struct Held {
    snapshot: SnapshotId,
    blocks: u32,
    is_promised: bool,
    gate: Mutex<mpsc::Receiver<()>>,
}

impl Earlier for Held {
    fn snapshot(&self) -> SnapshotId {
        self.snapshot
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
    snapshot: SnapshotId,
    is_promised: bool,
) -> (mpsc::Sender<()>, oneshot::Receiver<bool>) {
    let config = CacheConfig {
        snapshot: shown.open.manifest().snapshot(),
        name: String::new(),
        blocks: shown.open.manifest().totals().blocks,
        reservation_bytes: 0,
        promised: Reservation::default(),
        policy: PolicyKind::Nr,
        seed: 1,
        block_lens: Arc::new(|_: BlockIndex| 0),
    };
    let ((open, gate), (sender, done)) = (mpsc::channel(), oneshot::channel());
    let held = Held { snapshot, blocks: 40, is_promised, gate: Mutex::new(gate) };
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
        let (gate, done) = take_over(&world, &small, snapshot, is_promised);
        world.close(old).await;
        // It needs the room of the old one.
        let other = world.show("other", 40, whole()).await;
        let blocks = other.open.cache_usage().blocks_cached;
        assert!(if is_promised { blocks < 16 } else { blocks == 40 }, "{blocks}");
        assert!(!world.node.drop_unused(snapshot, u64::MAX).await.unwrap());
        assert_eq!(world.cached(), 3);
        drop(gate);
        assert!(done.await.unwrap());
        assert!(world.node.drop_unused(snapshot, u64::MAX).await.unwrap());
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
