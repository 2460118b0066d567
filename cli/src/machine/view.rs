//! A mount as it is shown.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use larder_cachenode::{CacheStats, Pass, Stats};
use serde::Serialize;

use crate::mount_stats;
use crate::why::{self, Verdict};

/// Where bytes come from, in the order in which it is shown.
pub(crate) const TIERS: [&str; 4] = ["store", "window", "peer", "origin"];

/// The passes that are shown.
const PASSES: usize = 12;

/// The counts of a mount so far, as far as rates follow from them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    /// By tier.
    bytes: [u64; TIERS.len()],
    reads: u64,
    waited_seconds: f64,
}

impl From<&Stats> for Counted {
    fn from(stats: &Stats) -> Self {
        let metric = |name: &str| stats.metrics.get(name).copied().unwrap_or(0);
        Self {
            bytes: TIERS.map(|tier| metric(&format!("fs_read_bytes_{tier}_total"))),
            reads: metric("fs_reads_total"),
            waited_seconds: stats.stalls.seconds,
        }
    }
}

/// A mount of this machine: its figures of the last seconds, its passes, and why its readers wait.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct MountView {
    pub(crate) dir: String,
    pub(crate) origin: String,
    /// Why there are no figures.
    pub(crate) error: Option<String>,
    pub(crate) sentence: String,
    pub(crate) verdict: Option<Verdict>,
    /// The share of the bytes of the last seconds that came from the cache; `None` if there were none.
    pub(crate) hit_ratio: Option<f64>,
    /// By tier.
    pub(crate) bytes_per_second: BTreeMap<&'static str, f64>,
    pub(crate) reads_per_second: f64,
    /// By tier, since the mount. `None` beyond what is measured.
    pub(crate) p99_seconds: BTreeMap<&'static str, Option<f64>>,
    /// The share of the last seconds in which readers waited.
    pub(crate) waited_ratio: f64,
    pub(crate) reads_waiting: u64,
    pub(crate) oldest_wait_seconds: f64,
    pub(crate) origin_retries: u64,
    /// The last passes.
    pub(crate) passes: Vec<Pass>,
    /// The pass that says most about the present, by its place among them.
    pub(crate) decisive: Option<usize>,
    pub(crate) dataset_bytes: u64,
    pub(crate) cache: Option<CacheStats>,
    /// The share of the blocks that a running warm-up has checked.
    pub(crate) warming: Option<f64>,
}

impl MountView {
    /// A mount that had counted `before`, and has `stats` so much later.
    pub(super) fn new(dir: &Path, stats: &Stats, before: Counted, passed: Duration) -> Self {
        let now = Counted::from(stats);
        let seconds = passed.as_secs_f64();
        let rate = |grown: f64| if seconds > 0.0 { grown / seconds } else { 0.0 };
        let read: [(&str, f64); TIERS.len()] =
            std::array::from_fn(|at| (TIERS[at], now.bytes[at].saturating_sub(before.bytes[at]) as f64));
        let all: f64 = read.iter().map(|(_, bytes)| bytes).sum();
        let verdict = why::judge(dir, stats);
        let times =
            |tier: &'static str| Some((tier, stats.reads.get(tier).filter(|times| times.count > 0)?.p99_seconds));
        let passes = &stats.passes[stats.passes.len().saturating_sub(PASSES)..];
        let warm = stats.warm.as_ref().filter(|warm| warm.running && warm.blocks_total > 0);
        Self {
            dir: dir.display().to_string(),
            origin: stats.dataset.origin.clone(),
            error: None,
            sentence: verdict.sentence(dir),
            verdict: Some(verdict),
            hit_ratio: (all > 0.0).then(|| read[0].1 / all),
            bytes_per_second: read.into_iter().map(|(tier, bytes)| (tier, rate(bytes))).collect(),
            reads_per_second: rate(now.reads.saturating_sub(before.reads) as f64),
            p99_seconds: TIERS.into_iter().filter_map(times).collect(),
            waited_ratio: rate(now.waited_seconds - before.waited_seconds).clamp(0.0, 1.0),
            reads_waiting: stats.stalls.reads_waiting,
            oldest_wait_seconds: stats.stalls.oldest_wait_seconds,
            origin_retries: stats.origin_retries.values().sum(),
            passes: passes.to_vec(),
            decisive: why::decisive(passes),
            dataset_bytes: stats.dataset.bytes,
            cache: Some(stats.cache.clone()),
            warming: warm.map(|warm| warm.blocks_done as f64 / warm.blocks_total as f64),
        }
    }

    /// A mount without stats.
    pub(super) fn dead(dir: &Path, why: String) -> Self {
        let sentence = mount_stats::without(dir, &why);
        Self { dir: dir.display().to_string(), error: Some(why), sentence, ..Self::default() }
    }

    /// Bytes of the last seconds from all tiers, per second.
    pub(crate) fn all_bytes_per_second(&self) -> f64 {
        self.bytes_per_second.values().sum()
    }

    /// The hit ratio of the pass that says most, and the promised one.
    pub(crate) fn pass_hits(&self) -> Option<(f64, f64)> {
        let pass = self.passes.get(self.decisive?)?;
        Some((pass.hit_ratio?, pass.promised_ratio))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// The stats of a mount after this many read bytes and seconds of waiting.
    pub(crate) fn stats(store: u64, origin: u64, waited: f64) -> Stats {
        serde_json::from_value(json!({
            "dataset": {
                "name": "imagenet", "origin": "s3://bucket/imagenet", "snapshot": "ab", "files": 10, "dirs": 1,
                "blocks": 10, "bytes": 1000, "packed": false, "manifest_bytes": 1,
            },
            "listing": {"unix_seconds": 1, "age_seconds": 60, "refresh_failed": null, "stale": null},
            "cache": {"policy": "nr", "capacity_bytes": 500, "used_bytes": 500, "blocks": 5, "degraded": null},
            "warm": {
                "running": true, "blocks_done": 1, "blocks_total": 4, "blocks_kept": 1, "blocks_failed": 0,
                "full": false,
            },
            "process": {"pid": 1, "version": "1", "uptime_seconds": 1, "rss_bytes": 1, "socket": null},
            "metrics": {
                "fs_read_bytes_store_total": store, "fs_read_bytes_origin_total": origin, "fs_reads_total": store / 100,
            },
            "stalls": {"seconds": waited, "by_cause": {}, "reads_waiting": 2, "oldest_wait_seconds": 1.5},
            "reads": {"origin": {"count": 5, "seconds": 2.0, "p50_seconds": 0.5, "p99_seconds": null}},
            "origin_retries": {"throttled": 2, "error": 1},
        }))
        .unwrap()
    }

    #[test]
    fn figures_are_those_of_the_time_between_two_samples() {
        let (before, after) = (stats(1_000, 0, 1.0), stats(4_000, 1_000, 2.0));
        let view = MountView::new(Path::new("/data"), &after, Counted::from(&before), Duration::from_secs(4));
        assert_eq!(view.hit_ratio, Some(0.75));
        assert_eq!((view.bytes_per_second["store"], view.bytes_per_second["origin"]), (750.0, 250.0));
        assert_eq!((view.reads_per_second, view.waited_ratio), (7.5, 0.25));
        assert_eq!((view.reads_waiting, view.origin_retries, view.warming), (2, 3, Some(0.25)));
        assert_eq!(view.p99_seconds, BTreeMap::from([("origin", None)]));
        // The first sample has nothing before it.
        let first = MountView::new(Path::new("/data"), &after, Counted::from(&after), Duration::ZERO);
        assert_eq!((first.hit_ratio, first.all_bytes_per_second(), first.waited_ratio), (None, 0.0, 0.0));
    }

    #[test]
    fn a_process_that_was_replaced_has_no_negative_rates() {
        let before = Counted::from(&stats(4_000, 1_000, 9.0));
        let view = MountView::new(Path::new("/data"), &stats(0, 0, 0.0), before, Duration::from_secs(1));
        assert_eq!((view.all_bytes_per_second(), view.waited_ratio), (0.0, 0.0));
    }
}
