//! The document in which a mount describes itself: `.larder/stats.json`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `.larder/stats.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// The snapshot that is mounted.
    pub dataset: DatasetSummary,
    /// The dataset's part of the store.
    pub cache: CacheStats,
    /// The current or last warming, if there was one.
    pub warm: Option<WarmState>,
    /// The process that serves the mount.
    pub process: ProcessStats,
    /// Every counter and gauge, by its name in `docs/METRICS.md`.
    pub metrics: BTreeMap<String, u64>,
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

/// A dataset's part of the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheStats {
    /// The policy's name.
    pub policy: String,
    /// The dataset's reservation.
    pub capacity_bytes: u64,
    /// What the reservation would be if the cache had room: the requested size, or that of the dataset. Older processes do not
    /// tell it.
    #[serde(default)]
    pub wanted_bytes: u64,
    /// Bytes cached.
    pub used_bytes: u64,
    /// Blocks cached.
    pub blocks: u64,
    /// Why no block is admitted at present, if that is so.
    pub degraded: Option<String>,
}

/// How far warming is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmState {
    /// False once it has ended.
    pub running: bool,
    /// Blocks checked so far.
    pub blocks_done: u64,
    /// Blocks of the dataset.
    pub blocks_total: u64,
    /// Blocks in the store, of those checked.
    pub blocks_kept: u64,
    /// Blocks that could not be fetched.
    pub blocks_failed: u64,
    /// True if it ended early because the reservation is full.
    pub full: bool,
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
