//! The errors of the node service.

use std::io;

use crate::attributes::AttributeError;
use crate::daemon::DaemonError;
use crate::datasets::GrantError;
use crate::fdkeeper::KeeperError;
use crate::mounter::{BindError, MounterError};
use crate::target_path::TargetError;

/// Why a volume was not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The request is invalid.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// The target cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The pod may not use the dataset.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// Another call is working on the target.
    #[error("another call works on this target path")]
    Busy,
    /// Another volume, or the same volume with different settings, is published at the target.
    #[error("the target path already has volume {volume_id}, or this volume with different settings")]
    Taken {
        /// The volume at the target.
        volume_id: String,
    },
    /// It is not yet known which connections are alive.
    #[error("larderd has not connected to the node plugin yet")]
    NotReady,
    /// larderd did not prepare the dataset.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// larderd's own credentials cannot read a dataset that the pod's credentials can read.
    #[error(
        "the volume's Secret only checks that the pod may read the dataset; it is read with larderd's own credentials, \
         from the Secret larder-origin, and with these: {0}"
    )]
    OwnCredentials(#[source] DaemonError),
    /// larderd's own credentials lead to different data than the pod's credentials.
    #[error("the volume's Secret is for another account than larderd's own credentials, from the Secret larder-origin")]
    OtherAccount,
    /// The mount that the pod should join has ended.
    #[error(
        "the mount of the dataset ended while the volume's Secret was checked, and a new one needs another check; the \
         kubelet retries"
    )]
    Ended,
    /// The new Secret or token of a pod that runs cannot be used. Always temporary for the kubelet: after any other
    /// error it would remove the target of a pod that reads.
    #[error("the pod reads with its former credentials until they expire, because the new ones cannot be used: {0}")]
    Renewal(#[source] Box<PublishError>),
    /// There are no keys for the role of a pod that runs. Temporary for the same reason.
    #[error("the pod can read what is cached and nothing else, because there are no keys for its identity: {0}")]
    NoKeys(String),
    /// larderd did not accept the connection.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// A mount could not be created or ended.
    #[error(transparent)]
    Mount(#[from] MounterError),
    /// A record could not be written.
    #[error("write the record of the target: {0}")]
    Record(#[source] io::Error),
    /// A previous publication could not be removed.
    #[error("remove the previous publication: {0}")]
    Withdraw(#[from] UnpublishError),
}

impl From<BindError> for PublishError {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Target(error) => Self::Target(error),
            BindError::Mount(error) => Self::Mount(error),
        }
    }
}

/// Why a volume was not unpublished.
#[derive(Debug, thiserror::Error)]
pub enum UnpublishError {
    /// The request is invalid.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// The target cannot be cleaned.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Another call is working on the target.
    #[error("another call works on this target path")]
    Busy,
    /// The FUSE mount could not be ended.
    #[error(transparent)]
    Mount(#[from] MounterError),
}

/// Why statistics are unavailable.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// The request is invalid.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// The volume is not published at the path.
    #[error("volume {volume_id} is not published at that path")]
    Unknown { volume_id: String },
}
