//! Why a store cannot be used. What goes wrong with single blocks is a miss or a `WriteError`, never one of these.

use std::io;
use std::path::PathBuf;

use larder_dataset::SnapshotId;

/// Why a store or one of its datasets cannot be opened or released.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it.
    #[error(
        "cache folder {dir:?} is in use by {}: stop that process or choose another --cache-dir",
        .pid.map_or("another process".to_owned(), |pid| format!("process {pid}"))
    )]
    InUse {
        /// The cache folder.
        dir: PathBuf,
        /// The process, as it called itself in its own pid namespace.
        pid: Option<u32>,
    },
    /// Not empty and not a store.
    #[error("{dir:?} is neither empty nor a Larder cache: choose another --cache-dir, or empty it")]
    NotAStore {
        /// The folder.
        dir: PathBuf,
    },
    /// Made by another version of Larder.
    #[error(
        "cache folder {dir:?} has format {found}, this program uses {supported}: empty it, it will be filled again"
    )]
    Version {
        /// The cache folder.
        dir: PathBuf,
        /// The version found.
        found: u8,
        /// The version this code uses.
        supported: u8,
    },
    /// The folder cannot be used.
    #[error("{step} cache folder {dir:?}: {source}")]
    Folder {
        /// The cache folder.
        dir: PathBuf,
        /// What was being done, as a verb.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A dataset's part of the folder cannot be used.
    #[error("{step} of dataset {snapshot} in the cache: {source}")]
    Dataset {
        /// The snapshot.
        snapshot: SnapshotId,
        /// What was being done, as a verb.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Opened twice with different settings.
    #[error("dataset {snapshot} is already open with another reservation or policy")]
    AlreadyOpen {
        /// The snapshot.
        snapshot: SnapshotId,
    },
    /// Released while open.
    #[error("dataset {snapshot} is in use: unmount it first")]
    DatasetInUse {
        /// The snapshot.
        snapshot: SnapshotId,
    },
    /// The store was closed.
    #[error("the cache is closed")]
    Closed,
}
