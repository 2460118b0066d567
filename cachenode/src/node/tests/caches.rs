//! Dropping and pinning the datasets in the cache.

use super::*;
use crate::node::caches::{Cached, cached};
use crate::node::error::CacheRefused;

/// The one dataset in the cache, once nothing has it open.
async fn closed(node: &Arc<Node>) -> Cached {
    loop {
        let mut all = node.caches().await.unwrap();
        let one = all.pop().unwrap();
        assert_eq!(all, []);
        if one.info.open.is_none() {
            return one;
        }
        tokio::task::yield_now().await;
    }
}

// SEMANTICS: W4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dataset_in_the_cache_is_dropped_only_if_it_is_neither_used_nor_pinned() {
    let world = World::new();
    let node = &world.node;
    let open = world.open("pets", Placement::Local, None).await;
    let id = open.cache_id();
    let refused = node.drop_cache(id).await.unwrap_err();
    assert!(matches!(refused, NodeError::Cache(CacheRefused::Used { .. })), "{refused}");
    drop(open);
    let before = closed(node).await;
    assert!(!before.is_pinned && before.info.promised_disk_bytes == 0, "{before:?}");

    node.pin_cache(id, true).await.unwrap();
    node.pin_cache(id, true).await.unwrap();
    let pinned = closed(node).await;
    assert!(pinned.is_pinned && pinned.info.promised_disk_bytes > 0, "{pinned:?}");
    assert_eq!(node.store.promises().len(), 1, "a second pin replaces the first");
    let refused = node.drop_cache(id).await.unwrap_err();
    assert!(matches!(refused, NodeError::Cache(CacheRefused::Pinned { .. })), "{refused}");

    node.pin_cache(id, false).await.unwrap();
    node.drop_cache(id).await.unwrap();
    assert_eq!(cached(&node.store), []);
    let refused = node.drop_cache(id).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
}

// SEMANTICS: W4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_promised_to_a_dataset_object_is_neither_dropped_nor_unpinned() {
    let world = World::new();
    let node = &world.node;
    let open = world.open("pets", Placement::Local, None).await;
    let id = open.cache_id();
    drop(open);
    let snapshot = closed(node).await.info.key.snapshot();
    let (owner, holder, name) = (String::new(), "uid".to_owned(), "team-a/pets".to_owned());
    let promise = Promise { snapshot, owner, holder, name, wanted_disk_bytes: 9_000, disk_bytes: 0 };
    node.promise(vec![promise]).await.unwrap();
    for is_pinned in [true, false] {
        node.pin_cache(id, is_pinned).await.unwrap();
        assert_eq!(node.store.promises().len(), if is_pinned { 2 } else { 1 });
    }
    let refused = node.drop_cache(id).await.unwrap_err();
    assert!(matches!(refused, NodeError::Cache(CacheRefused::Promised { .. })), "{refused}");
}

// SEMANTICS: W4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pin_outlasts_the_promises_that_a_controller_makes_and_takes_back() {
    let world = World::new();
    let node = &world.node;
    let open = world.open("pets", Placement::Local, None).await;
    let id = open.cache_id();
    drop(open);
    let snapshot = closed(node).await.info.key.snapshot();
    node.pin_cache(id, true).await.unwrap();
    let (owner, holder, name) = (String::new(), "uid".to_owned(), "team-a/pets".to_owned());
    let promise = Promise { snapshot, owner, holder, name, wanted_disk_bytes: 9_000, disk_bytes: 0 };
    // The last is also what a larderd without a controller does as it starts.
    for (promises, all) in [(vec![promise], 2), (Vec::new(), 1)] {
        node.promise(promises).await.unwrap();
        assert_eq!(node.store.promises().len(), all);
        let report = node.cache_report().await.unwrap();
        assert_eq!(report.promises.len(), all - 1, "a controller gets the promises that it made");
        let pinned = closed(node).await;
        assert!(pinned.is_pinned && pinned.info.promised_disk_bytes > 0, "{pinned:?}");
    }
}

// SEMANTICS: W4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_changes_to_pins_at_once_none_is_lost() {
    let world = World::new();
    let node = &world.node;
    let names = ["pets", "cars", "coco", "laion"];
    let mut ids = Vec::new();
    for name in names {
        ids.push(world.open(name, Placement::Local, None).await.cache_id());
    }
    let pinning: Vec<_> = ids
        .iter()
        .map(|id| {
            let (node, id) = (Arc::clone(node), *id);
            tokio::spawn(async move { node.pin_cache(id, true).await })
        })
        .collect();
    for pin in pinning {
        pin.await.unwrap().unwrap();
    }
    assert_eq!(node.store.promises().len(), names.len());
}
