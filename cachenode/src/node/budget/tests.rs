//! Whole nodes over a real store.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use larder_dataset::{DatasetSpec, Ownership, PolicyKind};
use larder_store::Usage;

use crate::node::{NodeError, User};
use world::{FILE_BYTES, Shown, World, all, crowded, has, ids, sized, whole};

mod adoption;
mod promises;
mod quotas;
mod world;

/// For [`crowded`]: a dataset of 40 files counts as 566,544 bytes.
const CROWDED: Option<u64> = Some(700_000);

// SEMANTICS: C10
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

// SEMANTICS: C10
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

// SEMANTICS: C10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datasets_that_the_keeper_reports_as_not_held_count_as_closed() {
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
        // The next process does not remember released blocks either.
        let mut kept = world.kill(vec![second], |_| ()).into_iter();
        let new = world.show("newer", 40, whole()).await;
        assert_eq!(new.open.cache_usage().blocks_cached, 40);
        assert_eq!(has(&world.offer(kept.next().unwrap()).await), before);
    }
}

// SEMANTICS: C5
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

// SEMANTICS: C11
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

/// The pods of a closed dataset often come back a moment later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_dataset_grows_by_room_that_no_closed_one_has() {
    let world = World::new(CROWDED);
    let mut shown = crowded(&world).await;
    let third = shown.pop().unwrap();
    let Usage { capacity_bytes, wanted_bytes, .. } = third.open.cache_usage();
    assert!(capacity_bytes < wanted_bytes);
    world.close(shown.remove(0)).await;
    world.node.grow().await;
    assert_eq!(world.cached(), 3);
    assert_eq!(third.open.cache_usage().capacity_bytes, capacity_bytes);
}

// SEMANTICS: C10
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

// SEMANTICS: C10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_dataset_without_records_counts_with_its_disk_usage() {
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

// SEMANTICS: C11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_enough_room_a_mount_is_refused_and_a_connection_gets_the_rest() {
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

// SEMANTICS: K7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dataset_has_the_largest_size_that_a_volume_wants_and_the_policy_of_its_first_opening() {
    let mut world = World::new(None);
    let shown = world.show("set", 10, sized(50_000)).await;
    let sizes = |shown: &Shown| (has(shown).1, has(shown).2);
    let other = DatasetSpec { policy: Some(PolicyKind::Lru), ..sized(80_000) };
    let (found, request) = world.find("set", 10, other.clone()).await;
    assert!(world.node.joins(&found, &request).await.unwrap(), "another pod is welcome");
    assert_eq!(sizes(&shown), (80_000, 80_000));
    let (found, smaller) = world.find("set", 10, sized(20_000)).await;
    assert!(world.node.joins(&found, &smaller).await.unwrap());
    let second = world.node.open_dataset(found.clone(), &smaller, User::Connection).await.unwrap();
    assert_eq!(sizes(&shown), (80_000, 80_000), "a smaller one takes nothing away");
    let refused = world.node.open_dataset(found, &request, User::Mount).await.unwrap_err();
    assert!(matches!(refused, NodeError::InUse { .. }), "{refused}");
    drop(second);
    // Another mount of its cache, which shows other owners of files.
    let ownership = Ownership { uid: Some(7), ..Ownership::default() };
    let apart = world.show("set", 10, DatasetSpec { ownership, ..whole() }).await;
    assert_ne!(apart.open.id(), shown.open.id());
    assert_eq!((sizes(&apart), sizes(&shown)), ((100_000, 100_000), (100_000, 100_000)));
    world.close(apart).await;
    let before = has(&shown);
    let mut kept = world.kill(vec![shown], |_| ());
    // Of two volumes with different sizes, the other one may be offered after a restart.
    kept[0].1.spec = DatasetSpec { source: kept[0].1.spec.source.clone(), ..other };
    let after = world.offer(kept.remove(0)).await;
    assert_eq!(has(&after), before);
    assert_eq!(after.open.cache_usage().policy, PolicyKind::Nr);
}

/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

async fn until(mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

// SEMANTICS: C10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_opens_kept_datasets_beside_one_whose_files_cannot_be_read_yet() {
    let mut world = World::new(Some(2_000_000));
    let mut shown = Vec::new();
    for name in ["first", "second"] {
        shown.push(world.show(name, 10, whole()).await);
    }
    let (before, cache) = (all(&shown), shown[0].open.cache_id());
    let mut kept = world.kill(shown, |_| ()).into_iter();
    let (first, second) = (kept.next().unwrap(), kept.next().unwrap());
    // Reading a pipe blocks until it is written to, like a disk that hangs.
    let key = world.cache_dir().join("datasets").join(cache.to_string()).join("key");
    let bytes = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &key, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let node = Arc::clone(&world.node);
    let opening = tokio::spawn(async move {
        let (id, request) = first;
        let found = node.find_again(&id, &request).await.unwrap();
        Shown { open: node.open_dataset(found, &request, User::Connection).await.unwrap(), request }
    });
    let mut pipe = None;
    until(|| {
        // Fails until the other end is open.
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
        pipe = rustix::fs::open(&key, flags, rustix::fs::Mode::empty()).ok();
        pipe.is_some()
    })
    .await;
    let offered = tokio::time::timeout(PATIENCE, world.offer(second)).await;
    let second = offered.expect("it does not wait for the other dataset");
    assert!(!opening.is_finished());
    let mut pipe = std::fs::File::from(pipe.unwrap());
    std::io::Write::write_all(&mut pipe, &bytes).unwrap();
    drop(pipe);
    let first = opening.await.unwrap();
    until(|| !first.open.cache_usage().rebuilding).await;
    assert_eq!(all(&[first, second]), before);
}

/// The disk may hold up what is being opened, and the kubelet repeats each publish.
// SEMANTICS: K8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_of_an_open_dataset_waits_for_no_other_opening() {
    let world = World::new(None);
    let shown = world.show("set", 10, sized(50_000)).await;
    let opening = world.node.opening.lock().await;
    for wanted in [50_000, 20_000, 80_000] {
        let (found, request) = world.find("set", 10, sized(wanted)).await;
        let joins = tokio::time::timeout(PATIENCE, world.node.joins(&found, &request)).await;
        assert!(joins.expect("it does not wait").unwrap(), "{wanted}");
    }
    assert_eq!(has(&shown).1, 50_000);
    drop(opening);
    until(|| has(&shown).1 == 80_000).await;
}

#[test]
fn a_caller_that_waits_no_more_lets_no_second_change_of_reservations_begin() {
    const THREADS: usize = 4;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).max_blocking_threads(THREADS).enable_all().build().unwrap();
    runtime.block_on(async {
        let world = World::new(None);
        let shown = world.show("set", 10, sized(50_000)).await;
        let (found, larger) = world.find("set", 10, sized(80_000)).await;
        // The disk hangs: all threads that may wait for it do.
        let (release, gates): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<()>()).unzip();
        let hang = |gate: mpsc::Receiver<()>| tokio::task::spawn_blocking(move || gate.recv().is_err());
        let disk: Vec<_> = gates.into_iter().map(hang).collect();
        let node = Arc::clone(&world.node);
        let joins = tokio::spawn(async move { node.joins(&found, &larger).await });
        until(|| world.node.opening.try_lock().is_err()).await;
        joins.abort();
        let _ = joins.await;
        assert!(world.node.opening.try_lock().is_err(), "its change is still to come");
        drop(release);
        for thread in disk {
            assert!(thread.await.unwrap());
        }
        until(|| has(&shown).1 == 80_000).await;
    });
}

// SEMANTICS: K7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_wants_more_gets_what_there_is_room_for_and_takes_nothing_from_open_datasets() {
    let world = World::new(Some(700_000));
    let other = world.show("other", 20, whole()).await;
    let before = has(&other);
    let shown = world.show("set", 40, sized(10_000)).await;
    let (found, request) = world.find("set", 40, whole()).await;
    assert!(world.node.joins(&found, &request).await.unwrap());
    // 20 files count as 283,272 bytes, and 416,728 are left: a little more than those of 29 files.
    let (capacity, wanted) = (has(&shown).1, has(&shown).2);
    assert!((290_000..300_000).contains(&capacity) && wanted == 400_000, "{capacity} of {wanted}");
    assert!(shown.open.stats().cache.shortage.unwrap().contains("--cache-size"));
    assert_eq!(has(&other), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_dataset_leaves_when_others_fill_the_disk() {
    // No disk is as empty as that.
    let mut world = World { keep_free_percent: 100, ..World::new(Some(1 << 30)) };
    world.kill(Vec::new(), |_| ());
    let closed = world.show("closed", 10, whole()).await;
    assert_eq!(closed.open.cache_usage().blocks_cached, 0, "nothing is admitted");
    assert_eq!(closed.open.cache_usage().degraded, Some("too little of the disk is free (--keep-free)"));
    world.close(closed).await;
    let open = world.show("open", 10, whole()).await;
    assert_eq!((world.cached(), open.open.cache_usage().capacity_bytes), (1, 100_000));
}

// SEMANTICS: C4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_folder_that_can_neither_be_listed_nor_measured_refuses_no_connection() {
    for budget in [None, Some(1 << 30)] {
        let mut world = World::new(budget);
        let shown = vec![world.show("mounted", 10, sized(50_000)).await];
        let before = all(&shown);
        let (closed, request) = world.find("closed", 10, whole()).await;
        drop(world.node.open_dataset(closed, &request, User::Connection).await.unwrap());
        world.node.drained().await;
        let mut kept = world.kill(shown, |_| ());
        // No list: what was there at the start counts.
        let datasets = world.cache_dir().join("datasets");
        let aside = datasets.with_extension("aside");
        std::fs::rename(&datasets, &aside).unwrap();
        std::fs::write(&datasets, b"not a folder").unwrap();
        let kept = world.offer(kept.remove(0)).await;
        assert!(kept.open.cache_usage().degraded.is_some(), "its part of the folder cannot be used");
        assert_eq!((has(&kept).1, has(&kept).2), (before[0].1, before[0].2), "its reservation is what it was");
        let unlisted = world.show("unlisted", 10, whole()).await;
        assert_eq!(unlisted.open.cache_usage().wanted_bytes, 100_000);
        // Nothing is left of the folder, not even its disk.
        std::fs::rename(world.cache_dir(), world.folder.path().join("gone")).unwrap();
        let unmeasured = world.show("unmeasured", 10, whole()).await;
        let room = if budget.is_some() { 100_000 } else { 0 };
        assert_eq!((has(&unmeasured).1, has(&unmeasured).2), (room, 100_000));
        assert_eq!((has(&kept).1, has(&kept).2), (before[0].1, before[0].2));
        // The closed dataset was not released.
        let gone = world.folder.path().join("gone/datasets.aside");
        assert_eq!(std::fs::read_dir(gone).unwrap().count(), 2);
    }
}

/// Writes all files anew from number `from` on, and forgets the listing: the next look-up finds a new snapshot.
fn change(world: &World, name: &str, files: std::ops::Range<u64>) {
    for file in files {
        let bytes = vec![255 - file as u8; FILE_BYTES as usize];
        std::fs::write(world.folder.path().join(name).join(format!("{name}-{file}")), bytes).unwrap();
    }
    std::fs::remove_dir_all(world.folder.path().join("home/manifests")).unwrap();
}

async fn adopted(shown: &Shown) {
    while shown.open.is_adopting() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A dataset of 40 files counts as 566,544 bytes; the cache holds 1.2 of them.
// SEMANTICS: C16
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_snapshot_gets_its_room_while_the_old_one_is_mounted_or_closed() {
    for close_first in [false, true] {
        let mut world = World::new(Some(680_000));
        let old = world.show("images", 40, whole()).await;
        assert_eq!(old.open.cache_usage().blocks_cached, 40);
        change(&world, "images", 0..4);
        let mut old = Some(old);
        if close_first {
            world.close(old.take().unwrap()).await;
        }
        let (found, request) = world.find("images", 40, whole()).await;
        let open = world.node.open_dataset(found, &request, User::Connection).await.unwrap();
        let new = Shown { open, request };
        adopted(&new).await;
        for _ in 0..2 {
            for file in 0..40 {
                let read = new.open.read_file(file, 0, FILE_BYTES as u32).await.unwrap();
                assert!(read.len() == FILE_BYTES as usize);
            }
            new.open.settle().await;
        }
        let fetched = new.open.values().find(|(name, _)| *name == "fs_origin_bytes_total").unwrap().1;
        assert_eq!(fetched, 4 * FILE_BYTES, "each of the changed files once");
        let usage = new.open.cache_usage();
        assert_eq!((usage.blocks_cached, usage.capacity_bytes), (40, 400_000));
        // A restart changes nothing, whichever of the two is offered first.
        let mut shown: Vec<Shown> = old.into_iter().chain([new]).collect();
        let before = all(&shown);
        for _ in 0..2 {
            let mut kept = world.kill(shown, |_| ());
            kept.reverse();
            shown = Vec::new();
            for connection in kept {
                shown.push(world.offer(connection).await);
            }
            assert_eq!(all(&shown), before);
        }
        // A third dataset takes the room of what is closed, and of nothing else.
        let other = world.show("other", 40, whole()).await;
        assert!(other.open.cache_usage().capacity_bytes < 400_000);
        assert_eq!(all(&shown), before);
    }
}
