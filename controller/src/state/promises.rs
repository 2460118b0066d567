//! Incrementally maintained totals, so that no decision has to count everything.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::iter::Peekable;

use larder_api::Reason;

use crate::objects::{CacheObject, DatasetObject};

/// Inserts a value into a set, or removes it.
pub(super) fn mark<T: Ord + Clone>(set: &mut BTreeSet<T>, what: &T, on: bool) {
    if !on {
        set.remove(what);
    } else if !set.contains(what) {
        set.insert(what.clone());
    }
}

pub(super) fn is_ready(object: &DatasetObject) -> bool {
    let conditions = object.dataset.status.as_ref().map(|status| &status.conditions);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.reason == Reason::Available.as_str() && condition.status == "True")
}

/// True if a dataset without room may have room now, or must report other numbers. Frequent reports about cached bytes
/// change neither.
pub(super) fn makes_room(before: Option<&CacheObject>, now: Option<&CacheObject>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => {
            before.spec != now.spec || before.status.is_none() != now.status.is_none() || room(before) < room(now)
        }
        _ => true,
    }
}

/// The room of a node that is promised neither in its spec nor in its status.
fn room(cache: &CacheObject) -> u64 {
    let Some(status) = &cache.status else { return 0 };
    status.capacity_bytes.saturating_sub(cache.spec.promised_bytes().max(status.promised_bytes))
}

/// Advances a sorted iterator to the item that compares equal, if it exists. Smaller items are skipped.
pub(super) fn beside<I: Iterator>(sorted: &mut Peekable<I>, order: impl Fn(&I::Item) -> Ordering) -> Option<I::Item> {
    while sorted.next_if(|there| order(there) == Ordering::Less).is_some() {}
    sorted.next_if(|there| order(there) == Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_api::{NodeCacheSpec, NodeCacheStatus, PromisedDataset};

    #[test]
    fn sorted_things_are_found_side_by_side() {
        let mut there = [1, 3, 4, 7].into_iter().peekable();
        let found: Vec<Option<i32>> =
            [0, 1, 2, 4, 6, 7, 8].map(|wanted| beside(&mut there, |it| it.cmp(&wanted))).into();
        assert_eq!(found, [None, Some(1), None, Some(4), None, Some(7), None]);
    }

    #[test]
    fn more_bytes_make_no_room_and_other_promises_may() {
        let cache = |promised: &[u64], free: u64| {
            let of =
                |bytes: &u64| PromisedDataset { bytes: *bytes, uid: bytes.to_string(), ..PromisedDataset::default() };
            let status = NodeCacheStatus {
                capacity_bytes: 100,
                promised_bytes: 100 - free,
                free_bytes: free,
                ..NodeCacheStatus::default()
            };
            CacheObject {
                meta: crate::objects::Meta::default(),
                generation: 1,
                spec: NodeCacheSpec { datasets: promised.iter().map(of).collect(), ..NodeCacheSpec::default() },
                status: Some(status),
            }
        };
        let before = cache(&[40], 60);
        let mut filled = before.clone();
        filled.status.as_mut().expect("a status").snapshots.push(larder_api::SnapshotCache::default());
        assert!(!makes_room(Some(&before), Some(&filled)));
        assert!(!makes_room(Some(&before), Some(&cache(&[40], 20))), "what pods have open takes room");
        assert!(makes_room(Some(&cache(&[40], 20)), Some(&before)));
        assert!(makes_room(Some(&before), Some(&cache(&[], 60))));
        let mut unknown = before.clone();
        unknown.status = None;
        assert!(makes_room(Some(&unknown), Some(&before)) && makes_room(None, Some(&before)));
    }
}
