//! Why a store cannot be used. A failure of a single block is a miss or a `WriteError`, never one of these.

use std::io;
use std::path::PathBuf;

use larder_dataset::SnapshotId;

/// Why a store or one of its datasets cannot be opened or released.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process uses it.
    #[error(
        "cache folder {dir:?} is in use by {}: stop that process or choose another --cache-dir",
        .pid.map_or("another process".to_owned(), |pid| format!("process {pid}"))
    )]
    InUse {
        /// The cache folder.
        dir: PathBuf,
        /// The process id in that process's own pid namespace.
        pid: Option<u32>,
    },
    /// Not empty and not a store.
    #[error("cache folder {dir:?} is neither empty nor a Larder cache: choose another --cache-dir, or empty it")]
    NotAStore {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder cannot be used.
    #[error("{step} cache folder {dir:?}: {source}")]
    Folder {
        /// The cache folder.
        dir: PathBuf,
        /// The failed step, as a verb.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A dataset's part of the folder cannot be used.
    #[error("{step} of dataset {snapshot} in the cache: {source}")]
    Dataset {
        /// The snapshot.
        snapshot: SnapshotId,
        /// The failed step, as a verb.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Opened a second time with another policy.
    #[error("dataset {snapshot} is already open with another policy: unmount it first, or request the same one")]
    AlreadyOpen {
        /// The snapshot.
        snapshot: SnapshotId,
    },
    /// Released while open, or while another dataset adopts its blocks.
    #[error("dataset {snapshot} is in use: unmount it first")]
    DatasetInUse {
        /// The snapshot.
        snapshot: SnapshotId,
    },
    /// The store was closed.
    #[error("the cache is closed")]
    Closed,
}
