//! Reasons why a store cannot be used. A failure of a single block is a miss or a `WriteError`, never a `StoreError`.

use std::io;
use std::path::PathBuf;

use larder_dataset::CacheId;

/// Why a store or one of its datasets cannot be opened or released.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the cache folder open.
    #[error(
        "cache folder {dir:?} is in use by {}: stop that process or choose another --cache-dir",
        .pid.map_or("another process".to_owned(), |pid| format!("process {pid}"))
    )]
    InUse {
        /// The cache folder.
        dir: PathBuf,
        /// The id of the process that has the folder open, in that process's own pid namespace. None if it cannot be
        /// read.
        pid: Option<u32>,
    },
    /// The folder is not empty and not a store.
    #[error("cache folder {dir:?} is neither empty nor a Larder cache: choose another --cache-dir, or empty it")]
    NotAStore {
        /// The configured cache folder.
        dir: PathBuf,
    },
    /// A later version of Larder wrote the cache. It was not changed.
    #[error(
        "cache folder {dir:?} is of a newer version of Larder (format {found}, and this version knows {known}): run that \
         version, choose another --cache-dir, or delete the folder to fetch its data again"
    )]
    Newer {
        /// The cache folder.
        dir: PathBuf,
        /// The cache's format.
        found: u8,
        /// The newest format that this version knows.
        known: u8,
    },
    /// An operation on the cache folder failed.
    #[error("{step} cache folder {dir:?}: {source}")]
    Folder {
        /// The cache folder.
        dir: PathBuf,
        /// The failed step, as a verb.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// An operation on a dataset's part of the folder failed.
    #[error("{step} of dataset {id} in the cache: {source}")]
    Dataset {
        /// The id of the dataset's cache.
        id: CacheId,
        /// The failed step, as a verb.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The dataset was opened a second time with another policy.
    #[error("dataset {id} is already open with another policy: unmount it first, or request the same one")]
    AlreadyOpen {
        /// The id of the dataset's cache.
        id: CacheId,
    },
    /// The dataset was released while it was open or while another dataset was adopting its blocks.
    #[error("dataset {id} is in use: unmount it first")]
    DatasetInUse {
        /// The id of the dataset's cache.
        id: CacheId,
    },
    /// A dataset was opened after the store was closed.
    #[error("the cache is closed")]
    Closed,
}
