//! The document in which a mount describes itself: `.larder/stats.json`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use larder_origin::PlaceReport;
use larder_telemetry::Durations;
use serde::{Deserialize, Serialize};

use crate::passes::Pass;
use crate::stalls::{Cause, known_causes};

/// `.larder/stats.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// The snapshot that is mounted.
    pub dataset: DatasetSummary,
    /// The listing that the snapshot was made of. Older processes do not report it.
    #[serde(default)]
    pub listing: ListingStats,
    /// The dataset's part of the store.
    pub cache: CacheStats,
    /// The current or last warming, if there was one.
    pub warm: Option<WarmState>,
    /// The dataset's own origin and its mirrors, in the order in which they are read. Empty without mirrors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<OriginStats>,
    /// The process that serves the mount.
    pub process: ProcessStats,
    /// Every counter and gauge, by its name in `docs/METRICS.md`.
    pub metrics: BTreeMap<String, u64>,
    /// How long readers waited. Older processes do not report this and the following fields.
    #[serde(default)]
    pub stalls: StallStats,
    /// The times to answer reads, by the slowest place that a read needed.
    #[serde(default)]
    pub reads: BTreeMap<String, TimesStats>,
    /// The times of attempts at the origin, by their outcome.
    #[serde(default)]
    pub origin_answers: BTreeMap<String, TimesStats>,
    /// Attempts at the origin that were repeated, by the reason.
    #[serde(default)]
    pub origin_retries: BTreeMap<String, u64>,
    /// The last passes over the dataset, and the one that is running.
    #[serde(default)]
    pub passes: Vec<Pass>,
}

/// How long the readers of a mount waited.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StallStats {
    /// The time in which at least one read waited, since the dataset was opened.
    pub seconds: f64,
    /// The same by cause.
    #[serde(deserialize_with = "known_causes")]
    pub by_cause: BTreeMap<Cause, f64>,
    /// The reads that wait now.
    pub reads_waiting: u64,
    /// How long the first of them has waited; 0 if none waits.
    pub oldest_wait_seconds: f64,
    /// How long reads waited for planned blocks, summed over the reads.
    #[serde(default)]
    pub plan_seconds: f64,
}

/// Durations of one kind.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TimesStats {
    /// How many there were.
    pub count: u64,
    /// Their sum.
    pub seconds: f64,
    /// The end of the range of the histogram that has their median. None: there were none, or it has no end.
    pub p50_seconds: Option<f64>,
    /// The same of their 99th percentile.
    pub p99_seconds: Option<f64>,
}

impl From<Durations> for TimesStats {
    fn from(durations: Durations) -> Self {
        Self {
            count: durations.count(),
            seconds: durations.seconds(),
            p50_seconds: durations.quantile(0.5),
            p99_seconds: durations.quantile(0.99),
        }
    }
}

/// The snapshot that is mounted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatasetSummary {
    /// The dataset's name.
    pub name: String,
    /// URL of the origin; never holds credentials.
    pub origin: String,
    /// Snapshot id, 64 hex digits.
    pub snapshot: String,
    /// The id of its cache, the same on all nodes: that of the snapshot, unless it is read from a place of its own or
    /// with a tenant's credentials. Older processes do not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// Files.
    pub files: u32,
    /// Folders, the root included.
    pub dirs: u32,
    /// Blocks.
    pub blocks: u32,
    /// Sum of the file sizes.
    pub bytes: u64,
    /// True if the files lie in packs.
    pub packed: bool,
    /// Bytes of the manifest.
    pub manifest_bytes: u64,
}

impl DatasetSummary {
    /// The id of its cache.
    pub fn cache(&self) -> &str {
        self.cache.as_deref().unwrap_or(&self.snapshot)
    }
}

/// The listing that a snapshot was made of.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListingStats {
    /// When it was made, seconds since the epoch.
    pub unix_seconds: i64,
    /// How long ago that was.
    pub age_seconds: u64,
    /// Why it could not be renewed when that was last tried for a mount.
    pub refresh_failed: Option<String>,
    /// Advice, if objects were replaced since.
    pub stale: Option<String>,
    /// Which nodes share other snapshots of the origin, and what to do. Older processes do not report it.
    #[serde(default)]
    pub other_snapshots: Option<String>,
}

/// A dataset's part of the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheStats {
    /// The policy's name.
    pub policy: String,
    /// The dataset's reservation.
    pub capacity_bytes: u64,
    /// The reservation if the cache had room: the requested size, or that of the dataset. Older processes do not
    /// tell it.
    #[serde(default)]
    pub wanted_bytes: u64,
    /// Bytes cached.
    pub used_bytes: u64,
    /// Blocks cached.
    pub blocks: u64,
    /// Why no block is admitted at present, if that is so.
    pub degraded: Option<String>,
    /// Why the reservation is less than what is wanted, and what to do, if that is so.
    #[serde(default)]
    pub shortage: Option<String>,
}

/// How far warming is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmState {
    /// False once it has ended.
    pub running: bool,
    /// Blocks checked so far.
    pub blocks_done: u64,
    /// Blocks of the dataset, or of the files of a list that were found so far.
    pub blocks_total: u64,
    /// Blocks in the store, of those checked.
    pub blocks_kept: u64,
    /// Blocks that are not in the store because the reservation is full, or because of `unkept_because`.
    #[serde(default)]
    pub blocks_unkept: u64,
    /// Why the store could not keep blocks, if its disk failed or has no room. Warming ended early then.
    #[serde(default)]
    pub unkept_because: Option<String>,
    /// Blocks that other nodes keep.
    #[serde(default)]
    pub blocks_elsewhere: u64,
    /// Blocks that could not be fetched.
    pub blocks_failed: u64,
    /// True if it ended early because the reservation is full.
    pub full: bool,
    /// Files that the list has named so far, each as often as it was named.
    #[serde(default)]
    pub files_listed: u64,
    /// Lines of the list that name no file.
    #[serde(default)]
    pub lines_unknown: u64,
    /// The first of them.
    #[serde(default)]
    pub unknown: Vec<String>,
}

/// One of several origins of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginStats {
    /// The mirror's name; `None` for the dataset's own origin.
    pub mirror: Option<String>,
    /// The URL; never holds credentials.
    pub url: String,
    /// Why it is not read from at present, if it is not.
    pub unused: Option<String>,
    /// Requests since the dataset was opened.
    pub gets: u64,
    /// Bytes that came from it.
    pub bytes: u64,
    /// Objects that it lacked or had in another version.
    pub missing: u64,
    /// Requests that failed.
    pub failures: u64,
}

impl From<PlaceReport> for OriginStats {
    fn from(place: PlaceReport) -> Self {
        let PlaceReport { mirror, url, unused, gets, bytes, missing, failures } = place;
        Self { mirror, url, unused, gets, bytes, missing, failures }
    }
}

/// How many unknown lines are named.
const UNKNOWN_NAMED: usize = 5;

impl WarmState {
    /// Notes a line that names no file.
    pub(crate) fn note_unknown(&mut self, line: &[u8]) {
        self.lines_unknown += 1;
        if self.unknown.len() < UNKNOWN_NAMED {
            self.unknown.push(line.escape_ascii().to_string());
        }
    }
}

/// The process behind a mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessStats {
    /// Process id.
    pub pid: u32,
    /// Version of Larder.
    pub version: String,
    /// Seconds since the mount.
    pub uptime_seconds: u64,
    /// Resident memory, mapped files included.
    pub rss_bytes: u64,
    /// The daemon's gRPC socket.
    pub socket: Option<PathBuf>,
}

impl ProcessStats {
    pub(crate) fn now(uptime_seconds: u64, socket: Option<PathBuf>) -> Self {
        // The second field is the resident set, in pages.
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
        Self {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds,
            rss_bytes: pages * rustix::param::page_size() as u64,
            socket,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_of_later_versions_are_left_out() {
        let text =
            r#"{"seconds": 3, "by_cause": {"origin": 1, "moon": 2}, "reads_waiting": 0, "oldest_wait_seconds": 0}"#;
        let stalls: StallStats = serde_json::from_str(text).unwrap();
        assert_eq!((stalls.seconds, stalls.by_cause), (3.0, BTreeMap::from([(Cause::Origin, 1.0)])));

        let mut pass = serde_json::to_value(Pass::default()).unwrap();
        pass["stalls"] = serde_json::json!({"disk": 1.5, "moon": 2});
        let pass: Pass = serde_json::from_value(pass).unwrap();
        assert_eq!(pass.stalls, BTreeMap::from([(Cause::Disk, 1.5)]));
    }
}
