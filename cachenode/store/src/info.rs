//! Information about a dataset that its store reports.

use std::collections::BTreeSet;

use larder_dataset::{CacheId, CacheKey, PolicyKind};

use crate::folder::SharedFile;
use crate::reservations::Reservation;
use crate::usage::Usage;

/// The state of one dataset in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetInfo {
    /// The snapshot that the dataset shows, and for whom.
    pub key: CacheKey,
    /// False if an earlier version, which stored no keys, made the cache. It is then unknown whose blocks it holds.
    pub is_keyed: bool,
    /// The dataset's name when it was last opened; empty if the name was lost.
    pub name: String,
    /// The namespace that pays for the dataset's room: that of its promise while no connection shows it, and otherwise
    /// the one that opened it. Empty if none is known.
    pub payer: String,
    /// The dataset's promise when it was last opened; `None` if it was lost.
    pub reservation: Option<Reservation>,
    /// The dataset's policy when it was last opened.
    pub policy: PolicyKind,
    /// The connections that show the dataset. After the process that served them ended, the connections that it served
    /// last. `None` if that information was lost.
    pub connections: Option<BTreeSet<String>>,
    /// When the dataset was last opened or closed, in seconds since 1970; 0 if that was lost.
    pub last_use_unix_s: u64,
    /// Disk bytes that are promised to the dataset, open or not; see [`Promise`](crate::Promise).
    pub promised_disk_bytes: u64,
    /// Bytes of the dataset's cached blocks.
    pub used_bytes: u64,
    /// Bytes that the dataset occupies on the disk now, including files shared with other datasets.
    pub disk_bytes: u64,
    /// The files that the dataset shares with other datasets, because one adopted blocks of the other.
    pub shared: Vec<SharedFile>,
    /// Bytes that the dataset's adopted blocks occupy on the disk.
    pub adopted_disk_bytes: u64,
    /// True while another dataset is adopting this dataset's blocks. It cannot be released during that time.
    pub is_ancestor: bool,
    /// True if the dataset had a promise of its own when that adoption began. The promise stays in force until the
    /// adoption ends.
    pub keeps_promise: bool,
    /// How full the cache is. `None` unless a [`DatasetCache`](crate::DatasetCache) of it exists.
    pub open: Option<Usage>,
}

impl DatasetInfo {
    /// The id of the dataset's cache.
    pub const fn cache(&self) -> CacheId {
        self.key.id()
    }
}
