//! The errors of a node.

use std::fmt;
use std::io;
use std::sync::Arc;

use larder_dataset::size::{exact_bytes, show_bytes};
use larder_dataset::{CacheId, ManifestError};
use larder_import::{ImportError, JournalError, ListError, PublishError};
use larder_origin::OriginError;
use larder_store::StoreError;

use crate::dataset::OpenError;
pub use crate::error_kind::ErrorKind;
use crate::folder::{FolderRefused, is_unwritable};
use crate::source::SourceError;

/// The reason that a request failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A field of the request is wrong.
    #[error("{field}: {what}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Why it is invalid, and which values are accepted.
        what: String,
    },
    /// The dataset cannot be found or its origin cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The origin has another snapshot than the one requested.
    #[error("snapshot: wanted {wanted}, found {found}")]
    Snapshot {
        /// The one requested.
        wanted: String,
        /// The one found.
        found: String,
    },
    /// The dataset is open with other settings.
    #[error("the dataset is in use on this node with another {what}, {has}: request the same value or omit it")]
    InUse {
        /// Which setting.
        what: &'static str,
        /// Its value.
        has: String,
    },
    /// The node has no peers.
    #[error("this node does not share its cache (larderd --peers)")]
    NoPeers,
    /// The cache is promised to other datasets.
    #[error(
        "--cache-size: the dataset would take {} of disk space (up to 5 KiB a file more than its bytes), but only {} \
         of the {} of larderd's own --cache-size are not promised to other datasets: request less, or restart larderd \
         with a larger --cache-size",
        show_bytes(*.wanted), show_bytes(*.free), show_bytes(*.budget)
    )]
    NoRoom {
        /// Bytes requested.
        wanted: u64,
        /// Bytes that are not promised.
        free: u64,
        /// Bytes in all.
        budget: u64,
    },
    /// A quota has no more for the namespace of a pod.
    #[error("the namespace {namespace} (CacheQuota {quota}) {uses} on this node; {advice}")]
    Quota {
        /// The namespace.
        namespace: String,
        /// The name of the quota.
        quota: String,
        /// Its use and its limit.
        uses: String,
        /// The remedy.
        advice: &'static str,
    },
    /// The manifest is not consistent.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The dataset cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The cache cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A dataset of the cache is neither dropped nor pinned.
    #[error(transparent)]
    Cache(#[from] CacheRefused),
    /// The node is shutting down.
    #[error("the node is stopping")]
    Stopping,
    /// The manifest of a dataset that is new to this node cannot be kept.
    #[error("keep the manifest of a dataset that is new to this node")]
    Home(#[source] FolderRefused),
    /// A folder cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A task panicked.
    #[error("a task panicked; see the log")]
    Panic(#[from] tokio::task::JoinError),
    /// The look-up of the dataset panicked.
    #[error("the look-up of the dataset panicked; see the log")]
    LookUpPanicked,
    /// Nobody has waited for the look-up for minutes.
    #[error("nobody waited for the dataset any more, so its listing was stopped: the next attempt continues it")]
    Unwanted,
    /// The outcome of a look-up that several callers waited for.
    #[error(transparent)]
    Shared(Arc<NodeError>),
}

/// Why a dataset of the cache is neither dropped nor pinned.
#[derive(Debug, thiserror::Error)]
pub enum CacheRefused {
    /// The cache has no such dataset.
    #[error("the cache holds nothing of {id}")]
    Unknown {
        /// The id of its cache.
        id: CacheId,
    },
    /// The dataset is mounted, or a new snapshot takes over its blocks.
    #[error("{name} is in use: unmount it first, or wait until a new snapshot has taken over its blocks")]
    Used {
        /// The dataset's name.
        name: String,
    },
    /// The dataset is pinned.
    #[error("{name} is pinned: unpin it first")]
    Pinned {
        /// The dataset's name.
        name: String,
    },
    /// The cache promised its room to a Dataset.
    #[error("the room of {name} is promised to a Dataset: annotate that with larder.dev/clean, or delete it")]
    Promised {
        /// The dataset's name.
        name: String,
    },
    /// The cache cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl NodeError {
    /// A field that is wrong, and what is accepted.
    pub fn invalid(field: &'static str, what: impl fmt::Display) -> Self {
        Self::Invalid { field, what: what.to_string() }
    }

    /// The class of the error, by what a caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Source(error) => of_source(error),
            // An administrator must act, so the log must not treat it as a passing state.
            Self::Home(_) | Self::Snapshot { .. } | Self::InUse { .. } | Self::NoPeers => ErrorKind::Precondition,
            Self::NoRoom { .. } | Self::Quota { .. } => ErrorKind::NoRoom,
            Self::Manifest(_) | Self::Open(OpenError::Manifest(_)) => ErrorKind::DataLoss,
            Self::Open(OpenError::Store(error)) | Self::Store(error) | Self::Cache(CacheRefused::Store(error)) => {
                of_store(error)
            }
            Self::Cache(CacheRefused::Unknown { .. }) => ErrorKind::NotFound,
            Self::Cache(CacheRefused::Used { .. } | CacheRefused::Pinned { .. } | CacheRefused::Promised { .. }) => {
                ErrorKind::Precondition
            }
            Self::Stopping | Self::Unwanted => ErrorKind::Unavailable,
            Self::Io(error) => of_disk(error, ErrorKind::Internal),
            Self::Panic(_) | Self::LookUpPanicked => ErrorKind::Internal,
            Self::Shared(error) => error.kind(),
        }
    }
}

/// A size as a flag takes it, and as a person reads it.
pub(super) fn shown_size(bytes: u64) -> String {
    format!("{} ({})", exact_bytes(bytes), show_bytes(bytes))
}

fn of_source(error: &SourceError) -> ErrorKind {
    match error {
        SourceError::Invalid { .. } => ErrorKind::Invalid,
        SourceError::Missing { .. } => ErrorKind::NotFound,
        SourceError::Origin(error) => of_origin(error),
        SourceError::Publish(error) => match error {
            PublishError::Origin { source, .. } => of_origin(source),
            PublishError::Manifest { .. } => ErrorKind::DataLoss,
            PublishError::TooLarge { .. } => ErrorKind::Precondition,
            PublishError::File { source, .. } => of_disk(source, ErrorKind::Internal),
        },
        SourceError::Import { source, .. } => match source {
            ImportError::List(ListError::Origin { source, .. }) => of_origin(source),
            ImportError::List(ListError::Odd { .. } | ListError::Changed { .. }) | ImportError::Build(_) => {
                ErrorKind::Precondition
            }
            ImportError::Disk { source, .. } | ImportError::Journal(JournalError::Io { source, .. }) => {
                of_disk(source, ErrorKind::Unavailable)
            }
            // Another process is listing the origin.
            ImportError::Journal(JournalError::InUse { .. } | JournalError::FrameTooLarge { .. }) => {
                ErrorKind::Unavailable
            }
        },
        SourceError::Reported { kind, .. } => *kind,
        SourceError::ManifestFile(_) | SourceError::Manifest { .. } => ErrorKind::DataLoss,
        SourceError::Home(error) => of_disk(error, ErrorKind::Internal),
    }
}

/// An administrator must give a disk room, or a right to write to it; other failures have the class `otherwise`.
fn of_disk(error: &io::Error, otherwise: ErrorKind) -> ErrorKind {
    if is_unwritable(error) { ErrorKind::Precondition } else { otherwise }
}

fn of_origin(error: &OriginError) -> ErrorKind {
    match error {
        OriginError::NotFound { .. } => ErrorKind::NotFound,
        OriginError::Denied { .. } => ErrorKind::Denied,
        OriginError::Invalid { .. } => ErrorKind::Invalid,
        OriginError::TooLarge { .. } | OriginError::Stale { .. } => ErrorKind::Precondition,
        OriginError::Busy { .. }
        | OriginError::TimedOut { .. }
        | OriginError::Truncated { .. }
        | OriginError::Unavailable { .. } => ErrorKind::Unavailable,
    }
}

fn of_store(error: &StoreError) -> ErrorKind {
    match error {
        StoreError::InUse { .. }
        | StoreError::Newer { .. }
        | StoreError::AlreadyOpen { .. }
        | StoreError::DatasetInUse { .. } => ErrorKind::Precondition,
        StoreError::Closed => ErrorKind::Unavailable,
        StoreError::NotAStore { .. } | StoreError::Folder { .. } | StoreError::Dataset { .. } => ErrorKind::Internal,
    }
}
