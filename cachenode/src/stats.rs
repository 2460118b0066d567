//! What the front counts, and the document in which a mount tells about itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::warm::WarmState;

/// Counters of one mount. Each is a field of `metrics` in [`Stats`] under its name in `telemetry`'s table.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "each is described in telemetry's table of metrics")]
pub struct StatsCounters {
    pub reads: AtomicU64,
    pub lookups: AtomicU64,
    pub errors: AtomicU64,
    pub stale: AtomicU64,
    pub panics: AtomicU64,
    pub read_bytes_store: AtomicU64,
    pub read_bytes_window: AtomicU64,
    pub read_bytes_origin: AtomicU64,
    pub read_bytes_peer: AtomicU64,
    pub peer_errors: AtomicU64,
    pub peer_served: AtomicU64,
    pub peer_served_bytes: AtomicU64,
    pub origin_gets: AtomicU64,
    pub origin_bytes: AtomicU64,
    pub origin_errors: AtomicU64,
    pub fetches_running: AtomicU64,
}

/// Adds `n`. Counters order nothing, so relaxed is enough.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl StatsCounters {
    /// Name and value of each counter: what only grows.
    pub(crate) fn totals(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.values().filter(|(name, _)| name.ends_with("_total"))
    }

    /// Name and value of each.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("fs_reads_total", &self.reads),
            ("fs_lookups_total", &self.lookups),
            ("fs_errors_total", &self.errors),
            ("fs_stale_total", &self.stale),
            ("fs_panics_total", &self.panics),
            ("fs_read_bytes_store_total", &self.read_bytes_store),
            ("fs_read_bytes_window_total", &self.read_bytes_window),
            ("fs_read_bytes_origin_total", &self.read_bytes_origin),
            ("fs_read_bytes_peer_total", &self.read_bytes_peer),
            ("fs_peer_errors_total", &self.peer_errors),
            ("fs_peer_served_total", &self.peer_served),
            ("fs_peer_served_bytes_total", &self.peer_served_bytes),
            ("fs_origin_gets_total", &self.origin_gets),
            ("fs_origin_bytes_total", &self.origin_bytes),
            ("fs_origin_errors_total", &self.origin_errors),
            ("fs_fetches_running", &self.fetches_running),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
        .into_iter()
    }
}

/// `.larder/stats.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// What is mounted.
    pub dataset: DatasetStats,
    /// The dataset's part of the store.
    pub cache: CacheStats,
    /// The last warming, if there was one.
    pub warm: Option<WarmState>,
    /// The process that serves the mount.
    pub process: ProcessStats,
    /// Every counter and gauge by its name in `docs/METRICS.md`.
    pub metrics: BTreeMap<String, u64>,
}

/// Which snapshot is mounted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatasetStats {
    /// The dataset's name.
    pub name: String,
    /// URL of the origin; never holds credentials.
    pub origin: String,
    /// Snapshot id, 64 hex digits.
    pub snapshot: String,
    /// Files.
    pub files: u32,
    /// Folders, the root included.
    pub dirs: u32,
    /// Blocks.
    pub blocks: u32,
    /// Sum of the files' sizes.
    pub bytes: u64,
    /// True if the files lie in packs.
    pub packed: bool,
    /// Bytes of the manifest.
    pub manifest_bytes: u64,
}

/// How the store stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheStats {
    /// The policy's name.
    pub policy: String,
    /// The dataset's reservation.
    pub capacity_bytes: u64,
    /// Bytes held.
    pub used_bytes: u64,
    /// Blocks held.
    pub blocks: u64,
    /// Why nothing is admitted for now, if so.
    pub degraded: Option<String>,
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
