//! What the daemon says when it cannot do what it is asked: the only place where an error becomes a gRPC code.

use std::fmt;
use std::io;
use std::sync::Arc;

use larder_dataset::ManifestError;
use larder_import::{ImportError, ListError, PublishError};
use larder_origin::OriginError;
use larder_store::StoreError;
use tonic::{Code, Status};

use crate::chain::Chain;
use crate::dataset::OpenError;
use crate::mount::MountError;
use crate::source::SourceError;

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// A field of the request is wrong.
    #[error("{field}: {what}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong, and what is accepted.
        what: String,
    },
    /// The dataset cannot be had.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Another snapshot than the one asked for is there.
    #[error("snapshot: wanted {wanted}, but {found} is there")]
    Snapshot {
        /// The one asked for.
        wanted: String,
        /// The one found.
        found: String,
    },
    /// It is open already, otherwise than asked for.
    #[error("the dataset is in use on this node with another {what}, {has}: ask for the same, or for none")]
    Served {
        /// Which setting.
        what: &'static str,
        /// Its value.
        has: String,
    },
    /// There is nobody to ask about.
    #[error("this node shares its cache with nobody (larderd --peers)")]
    NoPeers,
    /// The cache is promised to others.
    #[error("the cache has no room for {wanted} bytes: {free} of {budget} are not promised to other datasets")]
    NoRoom {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that are left.
        free: u64,
        /// Bytes in all.
        budget: u64,
    },
    /// The manifest does not hold together.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The dataset cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The cache cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The mount cannot be made or ended.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// There is no such mount.
    #[error("there is no mount {what}")]
    NoMount {
        /// How it was named.
        what: String,
    },
    /// A connection that was handed over cannot be served.
    #[error("serve the FUSE connection")]
    Connection {
        /// Why.
        source: io::Error,
    },
    /// The daemon is on its way out.
    #[error("larderd is stopping")]
    Stopping,
    /// A folder cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A task panicked.
    #[error("a task of larderd panicked; see its log")]
    Panic(#[source] tokio::task::JoinError),
    /// What must not be.
    #[error("{what}")]
    Internal {
        /// What happened.
        what: &'static str,
    },
    /// The outcome of a job that several waited for.
    #[error(transparent)]
    Shared(Arc<DaemonError>),
}

impl DaemonError {
    pub(super) fn invalid(field: &'static str, what: impl fmt::Display) -> Self {
        Self::Invalid { field, what: what.to_string() }
    }

    fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } => Code::InvalidArgument,
            Self::Source(error) => of_source(error),
            Self::Snapshot { .. } | Self::Served { .. } | Self::NoPeers => Code::FailedPrecondition,
            Self::NoRoom { .. } => Code::ResourceExhausted,
            Self::Manifest(_) => Code::DataLoss,
            Self::Open(error) => match error {
                OpenError::Manifest(_) => Code::DataLoss,
                OpenError::Store(error) => of_store(error),
            },
            Self::Store(error) => of_store(error),
            Self::Mount(error) => match error {
                MountError::Mountpoint { .. } => Code::InvalidArgument,
                MountError::Refused { .. } | MountError::Unmount { .. } => Code::FailedPrecondition,
            },
            Self::NoMount { .. } => Code::NotFound,
            Self::Stopping => Code::Unavailable,
            Self::Connection { .. } | Self::Io(_) | Self::Panic(_) | Self::Internal { .. } => Code::Internal,
            Self::Shared(error) => error.code(),
        }
    }
}

fn of_source(error: &SourceError) -> Code {
    match error {
        SourceError::Invalid { .. } => Code::InvalidArgument,
        SourceError::Missing { .. } => Code::NotFound,
        SourceError::Origin(error) => of_origin(error),
        SourceError::Publish(error) => match error {
            PublishError::Origin { source, .. } => of_origin(source),
            PublishError::Manifest { .. } => Code::DataLoss,
            PublishError::File { .. } => Code::Internal,
        },
        SourceError::Import { source, .. } => match source {
            ImportError::List(ListError::Origin { source, .. }) => of_origin(source),
            ImportError::List(ListError::Odd { .. }) | ImportError::Build(_) => Code::FailedPrecondition,
            // Somebody else is listing it, or the disk is full.
            ImportError::Journal(_) => Code::Unavailable,
        },
        SourceError::ManifestFile(_) | SourceError::Manifest { .. } => Code::DataLoss,
        SourceError::Home(_) => Code::Internal,
    }
}

fn of_origin(error: &OriginError) -> Code {
    match error {
        OriginError::NotFound { .. } => Code::NotFound,
        OriginError::Denied { .. } => Code::PermissionDenied,
        OriginError::Invalid { .. } => Code::InvalidArgument,
        OriginError::TooLarge { .. } | OriginError::Stale { .. } => Code::FailedPrecondition,
        OriginError::Busy { .. }
        | OriginError::TimedOut { .. }
        | OriginError::Truncated { .. }
        | OriginError::Unavailable { .. } => Code::Unavailable,
    }
}

fn of_store(error: &StoreError) -> Code {
    match error {
        StoreError::InUse { .. } | StoreError::AlreadyOpen { .. } | StoreError::DatasetInUse { .. } => {
            Code::FailedPrecondition
        }
        StoreError::Closed => Code::Unavailable,
        StoreError::NotAStore { .. }
        | StoreError::Folder { .. }
        | StoreError::Dataset { .. }
        | StoreError::Version { .. } => Code::Internal,
    }
}

impl From<DaemonError> for Status {
    fn from(error: DaemonError) -> Self {
        Self::new(error.code(), Chain(&error).to_string())
    }
}
