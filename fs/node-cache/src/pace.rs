//! Decides which changes are worth a write to the API server, and when.

use std::time::Duration;

use larder_api::{NodeCacheStatus, UnkeptPromise};

/// The shortest time between two writes.
pub const WRITE_EVERY: Duration = Duration::from_secs(10);

/// Changes below this fraction of the capacity are not written: a hundredth. A cache without a configured size follows
/// the free disk space, so its capacity changes with each file that any process writes to the disk.
pub const SMALL: u64 = 100;

/// True if the new status differs from the written one by more than such a small change.
pub fn is_news(written: Option<&NodeCacheStatus>, now: &NodeCacheStatus) -> bool {
    let Some(written) = written else { return true };
    let mut same = now.clone();
    if now.promised_bytes == written.promised_bytes
        && now.capacity_bytes.abs_diff(written.capacity_bytes) <= written.capacity_bytes / SMALL
    {
        (same.capacity_bytes, same.free_bytes) = (written.capacity_bytes, written.free_bytes);
    }
    let all = written.capacity_bytes.max(written.promised_bytes);
    let is_alike = |(now, written): (&UnkeptPromise, &UnkeptPromise)| {
        (&now.uid, &now.snapshot) == (&written.uid, &written.snapshot)
            && now.missing_bytes.abs_diff(written.missing_bytes) <= all / SMALL
    };
    if now.unkept.len() == written.unkept.len() && now.unkept.iter().zip(&written.unkept).all(is_alike) {
        same.unkept.clone_from(&written.unkept);
    }
    same != *written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_changes_of_a_shared_disk_are_not_reported() {
        let status = |capacity_bytes, promised_bytes| NodeCacheStatus {
            capacity_bytes,
            promised_bytes,
            free_bytes: capacity_bytes - promised_bytes,
            ..NodeCacheStatus::default()
        };
        let written = status(1000, 100);
        assert!(is_news(None, &written));
        for (now, news) in [(status(1000, 100), false), (status(990, 100), false), (status(989, 100), true)] {
            assert_eq!(is_news(Some(&written), &now), news, "{now:?}");
        }
        assert!(is_news(Some(&written), &status(1000, 101)));
        let short = |missing_bytes| {
            let unkept = vec![UnkeptPromise { uid: "a".into(), missing_bytes, ..UnkeptPromise::default() }];
            NodeCacheStatus { unkept, ..status(1000, 1000) }
        };
        for (now, news) in [(short(500), false), (short(510), false), (short(511), true), (status(1000, 1000), true)] {
            assert_eq!(is_news(Some(&short(500)), &now), news, "{now:?}");
        }
        let seen = NodeCacheStatus { observed_generation: Some(1), ..status(999, 100) };
        assert!(is_news(Some(&written), &seen));
    }
}
