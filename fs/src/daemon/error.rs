//! Errors of the daemon's requests. The only place where an error becomes a gRPC code.

use std::io;

use larder_cachenode::node::{ErrorKind, NodeError};
use larder_daemon_api::convert::InvalidDataset;
use larder_dataset::Chain;
use tonic::{Code, Status};

use crate::mount::MountError;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// A field of the request is invalid.
    #[error("{field}: {what}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The mistake and the accepted values.
        what: String,
    },
    /// The node's cache returned an error.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The mount could not be made or ended.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// No mount of this daemon is at that folder.
    #[error("there is no mount at {dir}")]
    NoMount {
        /// The folder in the request.
        dir: String,
    },
    /// A handed-over connection cannot be served.
    #[error("serve the FUSE connection")]
    Connection {
        /// The failed system call's error.
        source: io::Error,
    },
    /// The descriptor store of the service cannot keep a mount.
    #[error("keep the mount over restarts of the service")]
    Keep {
        /// The reason.
        source: io::Error,
    },
    /// The daemon is shutting down.
    #[error("larderd is stopping")]
    Stopping,
    /// A task panicked.
    #[error("a task of larderd panicked; see its log")]
    Panic(#[from] tokio::task::JoinError),
}

impl From<InvalidDataset> for DaemonError {
    fn from(InvalidDataset { field, what }: InvalidDataset) -> Self {
        Self::Invalid { field, what }
    }
}

impl DaemonError {
    fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } => Code::InvalidArgument,
            Self::Node(error) => of_kind(error.kind()),
            Self::Mount(error) => match error {
                MountError::Mountpoint { .. } => Code::InvalidArgument,
                MountError::Refused { .. } | MountError::Unmount { .. } => Code::FailedPrecondition,
            },
            Self::NoMount { .. } => Code::NotFound,
            Self::Keep { .. } => Code::FailedPrecondition,
            Self::Stopping => Code::Unavailable,
            Self::Connection { .. } | Self::Panic(_) => Code::Internal,
        }
    }
}

fn of_kind(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Denied => Code::PermissionDenied,
        ErrorKind::Precondition => Code::FailedPrecondition,
        ErrorKind::NoRoom => Code::ResourceExhausted,
        ErrorKind::DataLoss => Code::DataLoss,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Internal => Code::Internal,
    }
}

impl From<DaemonError> for Status {
    fn from(error: DaemonError) -> Self {
        Self::new(error.code(), Chain(&error).to_string())
    }
}
