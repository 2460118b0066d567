//! A node's report about its cache, for a controller of many nodes.

use larder_dataset::SnapshotId;
use larder_store::Promise;

/// The contents and the promises of a node's cache. Sizes of the whole cache and reservations are bytes on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheReport {
    /// Room for all datasets together.
    pub capacity_bytes: u64,
    /// The limit of that room, with its remedy.
    pub limit: String,
    /// Room that is promised: by promises, and to datasets that are open.
    pub promised_bytes: u64,
    /// Promised room, and what open datasets have filled beyond it.
    pub needed_bytes: u64,
    /// The cached snapshots, sorted.
    pub snapshots: Vec<CachedSnapshot>,
    /// The promises, and how far they are kept.
    pub promises: Vec<Promise>,
}

/// A snapshot in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedSnapshot {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The tenant that it is cached for; empty: the administrator's datasets.
    pub owner: String,
    /// Bytes of its blocks.
    pub bytes: u64,
    /// Bytes that it is to have here; 0 if that is not known.
    pub wanted_bytes: u64,
    /// The room on the disk that it has, promised or because it is open.
    pub reserved_disk_bytes: u64,
    /// Connections that show it.
    pub mounts: u32,
    /// When it was last opened or closed, seconds since 1970; `None` while it is open and if it never was.
    pub last_use_unix_s: Option<u64>,
}
