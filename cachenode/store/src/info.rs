//! A dataset as its store describes it.

use std::collections::BTreeSet;

use larder_dataset::{PolicyKind, SnapshotId};

use crate::folder::SharedFile;
use crate::reservations::Reservation;
use crate::usage::Usage;

/// A dataset in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetInfo {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// Its name when it was last opened; empty if that was lost.
    pub name: String,
    /// Its promise when it was last opened; `None` if that was lost.
    pub reservation: Option<Reservation>,
    /// Its policy when it was last opened.
    pub policy: PolicyKind,
    /// The connections that show it, or did when the process that served them ended; `None` if that was lost.
    pub connections: Option<BTreeSet<String>>,
    /// When it was last opened or closed, seconds since 1970; 0 if that was lost.
    pub last_use_unix_s: u64,
    /// Bytes on the disk that are promised to it, whether or not it is open; see [`Promise`](crate::Promise).
    pub promised_disk_bytes: u64,
    /// Bytes of its blocks.
    pub used_bytes: u64,
    /// Bytes that it takes on the disk now, with those that it shares with other datasets.
    pub disk_bytes: u64,
    /// The files that it shares with other datasets: one of them has adopted blocks of another.
    pub shared: Vec<SharedFile>,
    /// Bytes of its adopted blocks on the disk.
    pub adopted_disk_bytes: u64,
    /// Another dataset is adopting its blocks: it cannot be released.
    pub is_ancestor: bool,
    /// When that began it had a promise of its own, which stands until it ends.
    pub keeps_promise: bool,
    /// How full it is, while a [`DatasetCache`](crate::DatasetCache) of it exists.
    pub open: Option<Usage>,
}
