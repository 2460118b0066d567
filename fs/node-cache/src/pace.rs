//! Which changes are worth a write to the API server, and when.

use std::time::Duration;

use larder_api::NodeCacheStatus;

/// The least time between two writes.
pub const WRITE_EVERY: Duration = Duration::from_secs(10);

/// A hundredth of the capacity: without a size of its own, the cache's capacity follows each file that anybody writes
/// to its disk.
pub const SMALL: u64 = 100;

/// True if a status says something that the written one does not.
pub fn is_news(written: Option<&NodeCacheStatus>, now: &NodeCacheStatus) -> bool {
    let Some(written) = written else { return true };
    let mut same = now.clone();
    if now.promised_bytes == written.promised_bytes
        && now.capacity_bytes.abs_diff(written.capacity_bytes) <= written.capacity_bytes / SMALL
    {
        (same.capacity_bytes, same.free_bytes) = (written.capacity_bytes, written.free_bytes);
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
        let seen = NodeCacheStatus { observed_generation: Some(1), ..status(999, 100) };
        assert!(is_news(Some(&written), &seen));
    }
}
