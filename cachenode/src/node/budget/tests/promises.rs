//! Room that is promised to datasets, open or not.

use larder_dataset::SnapshotId;
use larder_store::Promise;

use super::world::{FILE_BYTES, World, has, whole};
use super::{adopted, change};
use crate::node::CachedSnapshot;

/// A dataset of 40 files counts as 566,544 bytes.
const OF_40_FILES: u64 = 566_544;

fn promise(holder: &str, snapshot: SnapshotId, wanted_disk_bytes: u64) -> Promise {
    Promise {
        snapshot,
        owner: String::new(),
        holder: holder.into(),
        name: format!("team/{holder}"),
        wanted_disk_bytes,
        disk_bytes: 0,
    }
}

impl World {
    async fn snapshot(&self, name: &str, files: u64) -> SnapshotId {
        self.find(name, files, whole()).await.0.manifest.snapshot()
    }

    async fn cached_of(&self, snapshot: SnapshotId) -> Option<CachedSnapshot> {
        let report = self.node.cache_report().await.unwrap();
        report.snapshots.into_iter().find(|cached| cached.snapshot == snapshot)
    }

    /// Bytes on the disk of each promise, and those of all promises together.
    async fn kept(&self) -> (Vec<u64>, u64) {
        let report = self.node.cache_report().await.unwrap();
        (report.promises.iter().map(|promise| promise.disk_bytes).collect(), report.promised_bytes)
    }
}

// SEMANTICS: C17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_dataset_with_a_promise_loses_nothing_to_others_also_after_kills() {
    let mut world = World::new(Some(700_000));
    let snapshot = world.snapshot("pets", 40).await;
    world.node.promise(vec![promise("pets", snapshot, OF_40_FILES)]).await.unwrap();
    let pets = world.show("pets", 40, whole()).await;
    world.close(pets).await;
    for turn in 0..3 {
        // 133,456 bytes are left: nine files.
        let other = world.show(&format!("other{turn}"), 40, whole()).await;
        assert!((1..12).contains(&other.open.cache_usage().blocks_cached), "{:?}", other.open.cache_usage());
        let pets = world.cached_of(snapshot).await.unwrap();
        assert_eq!((pets.bytes, pets.reserved_disk_bytes, pets.mounts), (40 * FILE_BYTES, OF_40_FILES, 0));
        if turn == 1 {
            // Without anybody who makes the promise again.
            world.kill(vec![other], |_| ());
        } else {
            world.close(other).await;
        }
        assert_eq!(world.kept().await.0, [OF_40_FILES]);
        world.node.keep_only(&Default::default());
    }
    let pets = world.show("pets", 40, whole()).await;
    assert_eq!(pets.open.cache_usage().blocks_cached, 40);
    world.close(pets).await;
    // Without its promise it makes room as any other.
    world.node.promise(Vec::new()).await.unwrap();
    let other = world.show("another", 45, whole()).await;
    assert_eq!((other.open.cache_usage().blocks_cached, world.cached_of(snapshot).await), (45, None));
}

// SEMANTICS: C17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_promised_to_a_dataset_without_blocks_goes_to_no_other() {
    let mut world = World::new(Some(700_000));
    let snapshot = world.snapshot("pets", 40).await;
    world.node.promise(vec![promise("pets", snapshot, OF_40_FILES)]).await.unwrap();
    assert_eq!(world.kept().await, (vec![OF_40_FILES], OF_40_FILES));
    world.kill(Vec::new(), |_| ());
    let other = world.show("other", 40, whole()).await;
    assert!(other.open.cache_usage().blocks_cached < 12);
    let pets = world.show("pets", 40, whole()).await;
    assert_eq!(pets.open.cache_usage().blocks_cached, 40);
    // It is open as well as promised: the room counts once.
    assert_eq!(world.kept().await.0, [OF_40_FILES]);
    let others = other.open.cache_usage().capacity_bytes;
    assert!(world.kept().await.1 < OF_40_FILES + others * 2, "{:?}", world.kept().await);
}

// SEMANTICS: C17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promise_without_room_is_kept_once_there_is_some_and_takes_nothing_from_those_before_it() {
    let world = World::new(Some(1_000_000));
    let open = world.show("open", 40, whole()).await;
    let before = has(&open);
    let (first, second) = (SnapshotId([1; 32]), SnapshotId([2; 32]));
    let wanted = |bytes| vec![promise("first", first, 300_000), promise("second", second, bytes)];
    world.node.promise(wanted(300_000)).await.unwrap();
    let left = 1_000_000 - OF_40_FILES - 300_000;
    assert_eq!(world.kept().await, (vec![300_000, left], 1_000_000));
    // In another order, and with a third one in front: what stands, stands.
    let mut turned = wanted(300_000);
    turned.reverse();
    turned.insert(0, promise("third", SnapshotId([3; 32]), 1));
    world.node.promise(turned).await.unwrap();
    assert_eq!(world.kept().await.0, [0, left, 300_000]);
    assert_eq!(has(&open), before);
    world.close(open).await;
    world.node.promise(wanted(400_000)).await.unwrap();
    assert_eq!(world.kept().await.0, [300_000, 400_000]);
    assert_eq!(world.cached(), 1, "what is cached makes room when the promised bytes come, and not before");
    world.node.promise(wanted(100_000)).await.unwrap();
    assert_eq!(world.kept().await, (vec![300_000, 100_000], 400_000));
}

// SEMANTICS: C17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configured_size_promises_no_more_than_the_disk_can_hold() {
    let mut world = World::new(Some(700_000));
    let (kept, new) = (SnapshotId([1; 32]), SnapshotId([2; 32]));
    world.node.promise(vec![promise("kept", kept, 300_000)]).await.unwrap();
    // No disk is as empty as that.
    world.keep_free_percent = 100;
    world.kill(Vec::new(), |_| ());
    world.node.promise(vec![promise("kept", kept, 300_000), promise("new", new, 1)]).await.unwrap();
    let report = world.node.cache_report().await.unwrap();
    assert_eq!((report.capacity_bytes, world.kept().await), (0, (vec![300_000, 0], 300_000)), "what stands, stands");
    assert!(report.limit.contains("leaves 100 % of its disk free (--keep-free"), "{}", report.limit);
}

// SEMANTICS: C17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cached_dataset_has_the_room_of_its_promise_whatever_else_fills_the_disk() {
    let mut world = World::new(Some(700_000));
    let snapshot = world.snapshot("pets", 40).await;
    world.node.promise(vec![promise("pets", snapshot, OF_40_FILES)]).await.unwrap();
    let pets = world.show("pets", 40, whole()).await;
    world.close(pets).await;
    world.keep_free_percent = 100;
    world.kill(Vec::new(), |_| ());
    world.node.promise(vec![promise("pets", snapshot, OF_40_FILES)]).await.unwrap();
    let report = world.node.cache_report().await.unwrap();
    // On the disk its blocks take less than the promise, which assumes the largest overhead.
    assert_eq!((report.capacity_bytes, report.needed_bytes), (OF_40_FILES, OF_40_FILES));
    assert_eq!(world.kept().await, (vec![OF_40_FILES], OF_40_FILES));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_dataset_without_a_promise_is_in_no_promises_way() {
    let world = World::new(Some(700_000));
    let closed = world.show("closed", 40, whole()).await;
    world.close(closed).await;
    world.node.promise(vec![promise("new", SnapshotId([1; 32]), 600_000)]).await.unwrap();
    assert_eq!(world.cached(), 1, "it leaves when the promised bytes come");
    assert_eq!(world.node.cache_report().await.unwrap().needed_bytes, 600_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_snapshots_need_what_they_share_once() {
    let world = World::new(Some(1_000_000));
    let old = world.show("pets", 40, whole()).await;
    let before = old.open.manifest().snapshot();
    change(&world, "pets", 0..1);
    let new = world.show("pets", 40, whole()).await;
    adopted(&new).await;
    let both = [before, new.open.manifest().snapshot()];
    world.node.promise(both.map(|snapshot| promise("pets", snapshot, OF_40_FILES)).into()).await.unwrap();
    let report = world.node.cache_report().await.unwrap();
    assert!(report.needed_bytes < 2 * OF_40_FILES - 30 * 12_288, "{report:?}");
    assert_eq!(report.needed_bytes, report.promised_bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_datasets_of_one_snapshot_share_its_room() {
    let world = World::new(Some(1_000_000));
    let snapshot = SnapshotId([1; 32]);
    let two = vec![promise("a", snapshot, 300_000), promise("b", snapshot, 500_000)];
    world.node.promise(two).await.unwrap();
    assert_eq!(world.kept().await, (vec![300_000, 500_000], 500_000));
    world.node.promise(vec![promise("a", snapshot, 300_000)]).await.unwrap();
    assert_eq!(world.kept().await, (vec![300_000], 300_000));
}

// SEMANTICS: C17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_dataset_that_has_less_than_it_wants_grows_into_its_promise() {
    let world = World::new(Some(700_000));
    let first = world.show("first", 40, whole()).await;
    let second = world.show("second", 40, whole()).await;
    let snapshot = second.open.manifest().snapshot();
    assert!(second.open.cache_usage().blocks_cached < 12);
    let promised = || vec![promise("second", snapshot, OF_40_FILES)];
    world.node.promise(promised()).await.unwrap();
    assert!(world.kept().await.0[0] < OF_40_FILES, "{:?}", world.kept().await);
    world.close(first).await;
    world.node.promise(promised()).await.unwrap();
    assert_eq!(world.kept().await.0, [OF_40_FILES]);
    assert_eq!(second.open.cache_usage().capacity_bytes, 40 * FILE_BYTES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_snapshots_are_dropped_on_request_and_used_ones_stay() {
    let world = World::new(Some(2_000_000));
    let pets = world.show("pets", 5, whole()).await;
    let snapshot = pets.open.manifest().snapshot();
    world.node.promise(vec![promise("pets", snapshot, 100_000)]).await.unwrap();
    assert!(!world.node.drop_unused(snapshot, "", u64::MAX).await.unwrap(), "it is open");
    world.close(pets).await;
    let used = world.cached_of(snapshot).await.unwrap().last_use_unix_s.unwrap();
    assert!(!world.node.drop_unused(snapshot, "", used).await.unwrap(), "it was used then");
    assert!(world.node.drop_unused(snapshot, "", used + 1).await.unwrap());
    let left = world.cached_of(snapshot).await.unwrap();
    assert_eq!((left.bytes, left.reserved_disk_bytes), (0, 100_000), "the promise stands");
    assert!(!world.node.drop_unused(snapshot, "", u64::MAX).await.unwrap());
    assert!(!world.node.drop_unused(SnapshotId([7; 32]), "", u64::MAX).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_that_cannot_be_written_down_leave_those_before() {
    let world = World::new(Some(700_000));
    let one = vec![promise("one", SnapshotId([1; 32]), 1)];
    world.node.promise(one).await.unwrap();
    std::fs::create_dir(world.cache_dir().join("promises.new")).unwrap();
    world.node.promise(vec![promise("two", SnapshotId([2; 32]), 2)]).await.unwrap_err();
    assert_eq!(world.kept().await, (vec![1], 1));
}
