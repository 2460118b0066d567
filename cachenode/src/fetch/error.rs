//! The errors of a fetch.

use std::sync::Arc;
use std::time::Duration;

use larder_dataset::{BlockIndex, ManifestError};
use larder_origin::OriginError;
use larder_peers::ReadError;

/// How often a block is fetched before it fails because of its checksum.
pub(super) const CHECKSUM_ATTEMPTS: u32 = 3;

/// The reason that a block could not be fetched. All of its waiters get it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FetchError {
    /// The object no longer exists.
    #[error("block {block}: the object is gone from the origin")]
    Gone {
        /// The block.
        block: BlockIndex,
    },
    /// The object is not the version that was imported.
    #[error("block {block}: the object changed after import; import the dataset again")]
    Stale {
        /// The block.
        block: BlockIndex,
    },
    /// The origin denies access.
    #[error("block {block}: access denied by the origin")]
    Denied {
        /// The block.
        block: BlockIndex,
        /// The origin's answer.
        source: Arc<OriginError>,
    },
    /// No answer within the read deadline.
    #[error("block {block}: no answer from the origin within {deadline:?}")]
    TimedOut {
        /// The block.
        block: BlockIndex,
        /// The read deadline.
        deadline: Duration,
    },
    /// The origin kept failing.
    #[error("block {block}: origin unavailable")]
    Unavailable {
        /// The block.
        block: BlockIndex,
        /// The last failure.
        source: Arc<OriginError>,
    },
    /// The bytes do not match the manifest's checksum.
    #[error("block {block}: wrong checksum from the origin, {CHECKSUM_ATTEMPTS} times")]
    Corrupt {
        /// The block.
        block: BlockIndex,
    },
    /// The process is stopping, or the fetch panicked.
    #[error("the fetch was stopped")]
    Stopped,
    /// The manifest is damaged where the block is described.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// The error that a peer receives for a block that cannot be fetched.
impl From<FetchError> for ReadError {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Gone { .. } => Self::Gone,
            FetchError::Stale { .. } => Self::Stale,
            FetchError::TimedOut { .. } => Self::TimedOut,
            FetchError::Stopped => Self::Stopping,
            // The requesting peer has its own credentials, which may allow more.
            FetchError::Denied { .. }
            | FetchError::Unavailable { .. }
            | FetchError::Corrupt { .. }
            | FetchError::Manifest(_) => Self::unavailable("the node cannot get the block from its origin"),
        }
    }
}
