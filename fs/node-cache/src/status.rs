//! Builds the status of a NodeCache from the node's report about its cache.

use std::cmp::Reverse;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use larder_api::{CacheConditionKind, CacheReason, NodeCacheStatus, SnapshotCache, UnkeptPromise};
use larder_cachenode::node::{CacheReport, CachedSnapshot};
use larder_dataset::BLOCK_BYTES;

use crate::pace::SMALL;

/// The most snapshots that a status lists.
const SNAPSHOTS_MAX: usize = 1024;

/// The status at `now` of a node that has carried out the spec of `generation` (none if it has seen no spec), after
/// `before`.
pub fn of(
    report: &CacheReport,
    generation: Option<i64>,
    before: Option<&NodeCacheStatus>,
    now: Timestamp,
) -> NodeCacheStatus {
    let unkept = unkept(report, before.is_some_and(|before| !before.unkept.is_empty()));
    let is_something = |it: &&CachedSnapshot| it.bytes > 0 || it.mounts > 0 || it.reserved_disk_bytes > 0;
    let mut snapshots: Vec<&CachedSnapshot> = report.snapshots.iter().filter(is_something).collect();
    if snapshots.len() > SNAPSHOTS_MAX {
        snapshots.sort_by_key(|it| Reverse((it.mounts > 0, it.reserved_disk_bytes > 0, it.bytes)));
        snapshots.truncate(SNAPSHOTS_MAX);
        snapshots.sort_by(|a, b| (a.snapshot.0, &a.owner).cmp(&(b.snapshot.0, &b.owner)));
    }
    NodeCacheStatus {
        observed_generation: generation,
        capacity_bytes: report.capacity_bytes,
        promised_bytes: report.promised_bytes,
        free_bytes: report.capacity_bytes.saturating_sub(report.promised_bytes),
        snapshots: snapshots.into_iter().map(cached).collect(),
        conditions: vec![ready(report, &unkept, generation, before, now)],
        unkept,
    }
}

/// The condition `Ready`. Its message has no byte counts, which change with every write to a shared disk, and no names,
/// which are not for all who read it.
fn ready(
    report: &CacheReport,
    unkept: &[UnkeptPromise],
    generation: Option<i64>,
    before: Option<&NodeCacheStatus>,
    now: Timestamp,
) -> Condition {
    let limit = &report.limit;
    let (status, reason, message) = if report.capacity_bytes < BLOCK_BYTES {
        (false, CacheReason::NoRoom, format!("the cache has no room: {limit}"))
    } else if !unkept.is_empty() {
        (false, CacheReason::PromiseUnkept, format!("the cache has less room than it promised: {limit}"))
    } else {
        (true, CacheReason::PromisesKept, String::new())
    };
    let kind = CacheConditionKind::Ready;
    let before = before.and_then(|before| kind.find(&before.conditions));
    let since = before.filter(|before| (before.status == "True") == status);
    let since = since.map_or(Time(now), |before| before.last_transition_time.clone());
    kind.is(status, reason, message, generation.unwrap_or_default(), since)
}

/// The promises that lack space. If the cache has become smaller than what they need, the last ones lack it.
fn unkept(report: &CacheReport, was_short: bool) -> Vec<UnkeptPromise> {
    let over = report.needed_bytes.saturating_sub(report.capacity_bytes);
    // A capacity that follows the free disk fluctuates: a small excess is ignored, unless there was one before.
    let tolerated = if was_short { 0 } else { report.capacity_bytes / SMALL };
    let mut over = if over > tolerated { over } else { 0 };
    let mut unkept = Vec::new();
    for promise in report.promises.iter().rev() {
        let lost = over.min(promise.disk_bytes);
        over -= lost;
        let missing_bytes = promise.wanted_disk_bytes.saturating_sub(promise.disk_bytes) + lost;
        if missing_bytes > 0 {
            let (uid, snapshot) = (promise.holder.clone(), promise.snapshot.to_string());
            unkept.push(UnkeptPromise { uid, snapshot, missing_bytes });
        }
    }
    unkept.reverse();
    unkept
}

fn cached(it: &CachedSnapshot) -> SnapshotCache {
    let last_used = it.last_use_unix_s.and_then(|at| Timestamp::from_second(i64::try_from(at).ok()?).ok());
    SnapshotCache {
        snapshot: it.snapshot.to_string(),
        owner: it.owner.clone(),
        bytes: it.bytes,
        wanted_bytes: it.wanted_bytes,
        reserved_bytes: it.reserved_disk_bytes,
        mounts: it.mounts,
        last_used: last_used.map(Time),
    }
}

#[cfg(test)]
mod tests {
    use larder_cachenode::node::Promise;
    use larder_dataset::SnapshotId;

    use super::*;

    fn cached_snapshot(number: u16, bytes: u64) -> CachedSnapshot {
        let mut id = [0; 32];
        id[..2].copy_from_slice(&number.to_be_bytes());
        CachedSnapshot {
            snapshot: SnapshotId(id),
            owner: String::new(),
            bytes,
            wanted_bytes: 100,
            reserved_disk_bytes: 0,
            mounts: 0,
            last_use_unix_s: Some(7),
        }
    }

    #[test]
    fn a_promise_without_all_its_room_is_unkept_as_is_the_last_one_in_a_cache_that_became_smaller() {
        let promise = |disk_bytes| Promise {
            snapshot: SnapshotId([9; 32]),
            owner: String::new(),
            holder: "uid".into(),
            name: "team-a/pets".into(),
            wanted_disk_bytes: 50,
            disk_bytes,
        };
        let report = CacheReport {
            capacity_bytes: 100,
            promised_bytes: 70,
            needed_bytes: 70,
            snapshots: vec![cached_snapshot(1, 40), cached_snapshot(2, 0)],
            promises: vec![promise(50), promise(20)],
            ..CacheReport::default()
        };
        let of = |report: &CacheReport| of(report, Some(3), None, Timestamp::UNIX_EPOCH);
        let status = of(&report);
        assert_eq!((status.observed_generation, status.capacity_bytes, status.free_bytes), (Some(3), 100, 30));
        let missing = |status: &NodeCacheStatus| status.unkept.iter().map(|it| it.missing_bytes).collect::<Vec<_>>();
        assert_eq!(missing(&status), [30]);
        let listed: Vec<_> = status.snapshots.iter().map(|it| (it.bytes, it.last_used.is_some())).collect();
        assert_eq!(listed, [(40, true)], "what it has nothing of is not listed");
        for (capacity_bytes, lack) in [(70, vec![30]), (40, vec![10, 50]), (0, vec![50, 50])] {
            let status = of(&CacheReport { capacity_bytes, ..report.clone() });
            assert_eq!((missing(&status), status.free_bytes), (lack, 0), "{capacity_bytes}");
        }
    }

    #[test]
    fn a_cache_without_room_says_what_limits_it_and_since_when() {
        let promise = |name: &str| Promise {
            snapshot: SnapshotId([9; 32]),
            owner: String::new(),
            holder: name.into(),
            name: format!("team-a/{name}"),
            wanted_disk_bytes: 3 * BLOCK_BYTES,
            disk_bytes: 3 * BLOCK_BYTES,
        };
        let report = CacheReport {
            capacity_bytes: 12 * BLOCK_BYTES,
            needed_bytes: 12 * BLOCK_BYTES,
            promises: ["pets", "cars", "coco", "laion"].map(promise).into(),
            limit: "the disk is full".into(),
            ..CacheReport::default()
        };
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let mut before = None;
        for (now, capacity, status, reason, message, since) in [
            (1, 12, "True", "PromisesKept", "", 1),
            (2, 11, "False", "PromiseUnkept", "the cache has less room than it promised: the disk is full", 2),
            (3, 0, "False", "NoRoom", "the cache has no room: the disk is full", 2),
            (4, 12, "True", "PromisesKept", "", 4),
        ] {
            let report = CacheReport { capacity_bytes: capacity * BLOCK_BYTES, ..report.clone() };
            let there = of(&report, Some(7), before.as_ref(), at(now));
            let [ready] = &there.conditions[..] else { panic!("{there:?}") };
            assert_eq!((&*ready.status, &*ready.reason, &*ready.message), (status, reason, message));
            assert_eq!((ready.last_transition_time.0, ready.observed_generation), (at(since), Some(7)));
            before = Some(there);
        }
    }

    #[test]
    fn a_small_excess_counts_only_until_it_is_gone() {
        let promise = Promise {
            snapshot: SnapshotId([9; 32]),
            owner: String::new(),
            holder: "a".into(),
            name: "team-a/pets".into(),
            wanted_disk_bytes: 1000 * BLOCK_BYTES,
            disk_bytes: 1000 * BLOCK_BYTES,
        };
        let mut before = None;
        for (capacity, is_short) in [(995, false), (980, true), (995, true), (1000, false), (995, false)] {
            let report = CacheReport {
                capacity_bytes: capacity * BLOCK_BYTES,
                needed_bytes: 1000 * BLOCK_BYTES,
                promises: vec![promise.clone()],
                ..CacheReport::default()
            };
            let now = of(&report, Some(1), before.as_ref(), Timestamp::UNIX_EPOCH);
            assert_eq!(!now.unkept.is_empty(), is_short, "{capacity}");
            before = Some(now);
        }
    }

    #[test]
    fn of_too_many_snapshots_those_in_use_and_the_fullest_are_listed() {
        let mut snapshots: Vec<_> = (0..2000).map(|number| cached_snapshot(number, u64::from(number) + 1)).collect();
        snapshots[0].mounts = 1;
        snapshots[1].reserved_disk_bytes = 1;
        let status = of(&CacheReport { snapshots, ..CacheReport::default() }, None, None, Timestamp::UNIX_EPOCH);
        let bytes: Vec<u64> = status.snapshots.iter().map(|it| it.bytes).collect();
        assert_eq!((bytes.len(), &bytes[..3]), (1024, &[1, 2, 979][..]));
    }
}
