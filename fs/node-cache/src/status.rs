//! The status of a NodeCache, from the node's report about its cache.

use std::cmp::Reverse;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use larder_api::{NodeCacheStatus, SnapshotCache, UnkeptPromise};
use larder_cachenode::node::{CacheReport, CachedSnapshot};

use crate::pace::SMALL;

/// The most snapshots that a status lists.
const SNAPSHOTS_MAX: usize = 1024;

/// The status of a node that keeps the promises of the spec of `generation`, if it has seen one.
pub fn of(report: &CacheReport, generation: Option<i64>) -> NodeCacheStatus {
    let is_something = |it: &&CachedSnapshot| it.bytes > 0 || it.mounts > 0 || it.reserved_disk_bytes > 0;
    let mut snapshots: Vec<&CachedSnapshot> = report.snapshots.iter().filter(is_something).collect();
    if snapshots.len() > SNAPSHOTS_MAX {
        snapshots.sort_by_key(|it| Reverse((it.mounts > 0, it.reserved_disk_bytes > 0, it.bytes)));
        snapshots.truncate(SNAPSHOTS_MAX);
        snapshots.sort_by_key(|it| it.snapshot.0);
    }
    NodeCacheStatus {
        observed_generation: generation,
        capacity_bytes: report.capacity_bytes,
        promised_bytes: report.promised_bytes,
        free_bytes: report.capacity_bytes.saturating_sub(report.promised_bytes),
        snapshots: snapshots.into_iter().map(cached).collect(),
        unkept: unkept(report),
    }
}

/// The promises that lack room. If the cache has become smaller than all promises, the last ones lack it.
fn unkept(report: &CacheReport) -> Vec<UnkeptPromise> {
    let over = report.promised_bytes.saturating_sub(report.capacity_bytes);
    // A capacity that follows the free disk is never exact.
    let mut over = if over > report.capacity_bytes / SMALL { over } else { 0 };
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
            holder: "uid".into(),
            name: "team-a/pets".into(),
            wanted_disk_bytes: 50,
            disk_bytes,
        };
        let report = CacheReport {
            capacity_bytes: 100,
            promised_bytes: 70,
            snapshots: vec![cached_snapshot(1, 40), cached_snapshot(2, 0)],
            promises: vec![promise(50), promise(20)],
        };
        let status = of(&report, Some(3));
        assert_eq!((status.observed_generation, status.capacity_bytes, status.free_bytes), (Some(3), 100, 30));
        let missing = |status: &NodeCacheStatus| status.unkept.iter().map(|it| it.missing_bytes).collect::<Vec<_>>();
        assert_eq!(missing(&status), [30]);
        let listed: Vec<_> = status.snapshots.iter().map(|it| (it.bytes, it.last_used.is_some())).collect();
        assert_eq!(listed, [(40, true)], "what it has nothing of is not listed");
        for (capacity_bytes, lack) in [(70, vec![30]), (40, vec![10, 50]), (0, vec![50, 50])] {
            let status = of(&CacheReport { capacity_bytes, ..report.clone() }, Some(3));
            assert_eq!((missing(&status), status.free_bytes), (lack, 0), "{capacity_bytes}");
        }
    }

    #[test]
    fn of_too_many_snapshots_those_in_use_and_the_fullest_are_listed() {
        let mut snapshots: Vec<_> = (0..2000).map(|number| cached_snapshot(number, u64::from(number) + 1)).collect();
        snapshots[0].mounts = 1;
        snapshots[1].reserved_disk_bytes = 1;
        let status = of(&CacheReport { snapshots, ..CacheReport::default() }, None);
        let bytes: Vec<u64> = status.snapshots.iter().map(|it| it.bytes).collect();
        assert_eq!((bytes.len(), &bytes[..3]), (1024, &[1, 2, 979][..]));
    }
}
