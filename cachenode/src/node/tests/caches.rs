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
async fn a_pin_outlives_what_a_controller_promises_and_drops_and_is_not_reported_to_it() {
    let world = World::new();
    let node = &world.node;
    let open = world.open("pets", Placement::Local, None).await;
    let id = open.cache_id();
    drop(open);
    let snapshot = closed(node).await.info.key.snapshot();
    node.pin_cache(id, true).await.unwrap();
    // As at each start of a larderd without a NodeCache, and whenever a NodeCache changes.
    node.promise(Vec::new()).await.unwrap();
    assert!(closed(node).await.is_pinned);
    assert_eq!(node.cache_report().await.unwrap().promises, []);
    assert!(!node.drop_unused(snapshot, "", u64::MAX).await.unwrap());
    assert!(closed(node).await.is_pinned);
    node.pin_cache(id, false).await.unwrap();
    assert!(node.drop_unused(snapshot, "", u64::MAX).await.unwrap());
    assert_eq!(cached(&node.store), []);
}
