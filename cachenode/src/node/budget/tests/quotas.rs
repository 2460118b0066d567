//! Room that quotas limit. A dataset of 10 files counts as 141,634 bytes.

use larder_dataset::{DatasetSpec, SnapshotId};
use larder_store::{Promise, Quota};

use super::world::{FILE_BYTES, Shown, World, all, has, sized, whole};
use crate::node::User;
use crate::request::DatasetRequest;

const OF_10_FILES: u64 = 141_634;

/// There is room for all datasets of a test.
const LARGE: Option<u64> = Some(100_000_000);

fn quota(name: &str, namespaces: &[&str], reserved_bytes: u64) -> Quota {
    Quota {
        name: name.into(),
        namespaces: namespaces.iter().map(|&it| it.into()).collect(),
        reserved_bytes: Some(reserved_bytes),
        ..Quota::default()
    }
}

/// Opens a dataset of 10 files that the namespace pays for.
async fn show_for(world: &World, payer: &str, name: &str, spec: DatasetSpec) -> Shown {
    let (found, request) = world.find(name, 10, spec).await;
    let request = DatasetRequest { payer: payer.into(), ..request };
    let open = world.node.open_dataset(found, &request, User::Connection).await.unwrap();
    Shown { open, request }
}

/// Another pod of the namespace has the dataset.
async fn join_for(world: &World, payer: &str, name: &str, spec: DatasetSpec) {
    let (found, request) = world.find(name, 10, spec).await;
    let request = DatasetRequest { payer: payer.into(), ..request };
    assert!(world.node.joins(&found, &request).await.unwrap());
}

fn capacity(shown: &Shown) -> u64 {
    has(shown).1
}

fn shortage(shown: &Shown) -> String {
    shown.open.stats().cache.shortage.unwrap_or_default()
}

// SEMANTICS: K22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_of_a_quota_reserve_no_more_than_it_allows_together_and_no_mount_is_refused() {
    let world = World::new(LARGE);
    world.node.set_quotas(vec![quota("research", &["team-a", "team-b"], 200_000)]).await.unwrap();
    let first = show_for(&world, "team-a", "first", whole()).await;
    assert_eq!((capacity(&first), &*shortage(&first)), (100_000, ""));
    let second = show_for(&world, "team-b", "second", whole()).await;
    // 58,366 bytes are left.
    assert!((40_000..42_000).contains(&capacity(&second)), "{}", capacity(&second));
    let why = shortage(&second);
    assert!(why.contains("CacheQuota") && why.contains("reservedBytesPerNode"), "{why}");
    assert!(!why.contains("team-") && !why.contains("research"), "readers of other namespaces see it: {why}");
    let third = show_for(&world, "team-a", "third", sized(50_000)).await;
    assert!(capacity(&third) < 1_000, "{}", capacity(&third));
    for file in 0..10 {
        assert_eq!(third.open.read_file(file, 0, FILE_BYTES as u32).await.unwrap().len() as u64, FILE_BYTES);
    }
    for payer in ["team-c", "larder-system", ""] {
        let other = show_for(&world, payer, &format!("of-{payer}"), whole()).await;
        assert_eq!(capacity(&other), 100_000, "no quota is for {payer:?}");
    }
    // A dataset that was closed counts no more.
    world.close(first).await;
    let next = show_for(&world, "team-a", "next", sized(50_000)).await;
    assert_eq!(capacity(&next), 50_000);
}

// SEMANTICS: K22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_is_in_force_after_a_kill_without_anybody_who_repeats_it() {
    let mut world = World::new(LARGE);
    world.node.set_quotas(vec![quota("research", &["team-a"], 200_000)]).await.unwrap();
    let shown =
        vec![show_for(&world, "team-a", "first", whole()).await, show_for(&world, "team-a", "second", whole()).await];
    let before = all(&shown);
    let mut kept = world.kill(shown, |_| ());
    // Those that the keeper has not offered yet count.
    let new = show_for(&world, "team-a", "new", whole()).await;
    assert!(capacity(&new) < 1_000, "{}", capacity(&new));
    kept.reverse();
    let mut shown = Vec::new();
    for connection in kept {
        shown.push(world.offer(connection).await);
    }
    assert_eq!(all(&shown), before);
    // A cache of a version without quotas.
    world.kill(Vec::new(), |cache| std::fs::remove_file(cache.join("quotas")).unwrap());
    let new = show_for(&world, "team-a", "newer", whole()).await;
    assert_eq!(capacity(&new), 100_000);
}

// SEMANTICS: K22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lowered_quota_takes_nothing_away_and_a_raised_one_counts_at_the_next_mount() {
    let mut world = World::new(LARGE);
    let limited = async |world: &World, bytes| {
        world.node.set_quotas(vec![quota("research", &["team-a"], bytes)]).await.unwrap();
    };
    limited(&world, 200_000).await;
    let shown =
        vec![show_for(&world, "team-a", "first", whole()).await, show_for(&world, "team-a", "second", whole()).await];
    let before = all(&shown);
    limited(&world, 1).await;
    join_for(&world, "team-a", "first", whole()).await;
    let new = show_for(&world, "team-a", "new", whole()).await;
    assert_eq!((capacity(&new), all(&shown)), (0, before.clone()));
    world.close(new).await;
    let mut offered = Vec::new();
    for connection in world.kill(shown, |_| ()) {
        offered.push(world.offer(connection).await);
    }
    assert_eq!(all(&offered), before);
    limited(&world, 1_000_000).await;
    assert_eq!(all(&offered), before, "nobody mounts");
    join_for(&world, "team-a", "second", whole()).await;
    let new = show_for(&world, "team-a", "new", whole()).await;
    assert_eq!((capacity(&offered[0]), capacity(&offered[1]), capacity(&new)), (100_000, 100_000, 100_000));
}

// SEMANTICS: K22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_count_their_own_namespaces_and_what_was_promised_to_a_dataset_stays_its() {
    let world = World::new(LARGE);
    let quotas = vec![quota("a", &["team-a"], OF_10_FILES), quota("b", &["team-b"], 0)];
    world.node.set_quotas(quotas).await.unwrap();
    let of_a = show_for(&world, "team-a", "of-a", whole()).await;
    let of_b = show_for(&world, "team-b", "of-b", whole()).await;
    assert_eq!((capacity(&of_a), capacity(&of_b)), (100_000, 0));
    let (found, _) = world.find("promised", 10, whole()).await;
    let promise = Promise {
        snapshot: found.manifest.snapshot(),
        owner: String::new(),
        holder: "uid".into(),
        name: "team-b/promised".into(),
        wanted_disk_bytes: OF_10_FILES,
        disk_bytes: 0,
    };
    world.node.promise(vec![promise]).await.unwrap();
    let promised = show_for(&world, "team-b", "promised", whole()).await;
    assert_eq!(capacity(&promised), 100_000);
    // Promised room counts for the namespace of the Dataset before any pod has it open.
    let promise = Promise {
        snapshot: SnapshotId([9; 32]),
        owner: "uid".into(),
        holder: "uid".into(),
        name: "team-c/later".into(),
        wanted_disk_bytes: OF_10_FILES,
        disk_bytes: 0,
    };
    world.node.promise(vec![promise]).await.unwrap();
    world.node.set_quotas(vec![quota("c", &["team-c"], OF_10_FILES + 100)]).await.unwrap();
    let of_c = show_for(&world, "team-c", "of-c", whole()).await;
    assert!(capacity(&of_c) < 100, "{}", capacity(&of_c));
}

/// A namespace with little room does not decide how much others have of a dataset that they share.
// SEMANTICS: K7, K22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_namespace_that_gets_a_dataset_more_room_pays_for_it_from_then_on() {
    let world = World::new(LARGE);
    world.node.set_quotas(vec![quota("a", &["team-a"], 100_000), quota("b", &["team-b"], 200_000)]).await.unwrap();
    let shared = show_for(&world, "team-a", "shared", whole()).await;
    assert!((70_000..71_000).contains(&capacity(&shared)), "{}", capacity(&shared));
    join_for(&world, "team-b", "shared", whole()).await;
    assert_eq!(capacity(&shared), 100_000);
    let of_a = show_for(&world, "team-a", "of-a", sized(70_000)).await;
    let of_b = show_for(&world, "team-b", "of-b", sized(70_000)).await;
    assert_eq!(capacity(&of_a), 70_000);
    assert!((40_000..42_000).contains(&capacity(&of_b)), "{}", capacity(&of_b));
    // A request that names no namespace gets nothing beyond a quota.
    join_for(&world, "", "of-b", whole()).await;
    assert!(capacity(&of_b) < 42_000, "{}", capacity(&of_b));
}

/// The one that pays has its quota for its own datasets.
// SEMANTICS: K22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_pays_for_nothing_that_another_wants() {
    let world = World::new(LARGE);
    world.node.set_quotas(vec![quota("a", &["team-a"], 200_000), quota("b", &["team-b"], 0)]).await.unwrap();
    let shared = show_for(&world, "team-a", "shared", sized(50_000)).await;
    join_for(&world, "team-b", "shared", whole()).await;
    world.node.grow().await;
    assert_eq!((capacity(&shared), has(&shared).2, &*shortage(&shared)), (50_000, 50_000, ""));
    let of_a = show_for(&world, "team-a", "of-a", sized(70_000)).await;
    assert_eq!(capacity(&of_a), 70_000);
    world.close(of_a).await;
    world.close(shared).await;
    // Nor does one that gets a dataset more room pay for what the other wanted of it.
    world.node.set_quotas(vec![quota("a", &["team-a"], 71_000), quota("b", &["team-b"], 200_000)]).await.unwrap();
    let shared = show_for(&world, "team-a", "other", whole()).await;
    assert!((50_000..51_000).contains(&capacity(&shared)), "{}", capacity(&shared));
    join_for(&world, "team-b", "other", sized(60_000)).await;
    world.node.grow().await;
    assert_eq!(capacity(&shared), 60_000);
    // What it wants itself it gets once its quota has room.
    world.node.set_quotas(vec![quota("b", &["team-b"], 100_000)]).await.unwrap();
    join_for(&world, "team-b", "other", whole()).await;
    assert!((70_000..71_000).contains(&capacity(&shared)), "{}", capacity(&shared));
    world.node.set_quotas(vec![quota("b", &["team-b"], 200_000)]).await.unwrap();
    world.node.grow().await;
    assert_eq!(capacity(&shared), 100_000);
}
