//! What keeps a block from being had.

use std::sync::Arc;
use std::time::Duration;

use larder_dataset::{BlockIndex, ManifestError};
use larder_origin::OriginError;
use larder_peers::ReadError;

use super::CHECKSUM_ATTEMPTS;

/// Why a block could not be had. Shared by all who waited for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FetchError {
    /// The object is not there any more.
    #[error("block {block}: the object is gone from the origin")]
    Gone {
        /// Which block.
        block: BlockIndex,
    },
    /// The object is another than the one that was listed.
    #[error("block {block}: the object changed after import; import the dataset again")]
    Stale {
        /// Which block.
        block: BlockIndex,
    },
    /// The origin does not let us read it.
    #[error("block {block}: access denied by the origin")]
    Denied {
        /// Which block.
        block: BlockIndex,
        /// What the origin said.
        source: Arc<OriginError>,
    },
    /// No answer within the read deadline.
    #[error("block {block}: no answer from the origin within {deadline:?}")]
    TimedOut {
        /// Which block.
        block: BlockIndex,
        /// The read deadline.
        deadline: Duration,
    },
    /// The origin kept failing.
    #[error("block {block}: origin unavailable")]
    Unavailable {
        /// Which block.
        block: BlockIndex,
        /// The last failure.
        source: Arc<OriginError>,
    },
    /// The bytes do not match the manifest's checksum.
    #[error("block {block}: wrong checksum from the origin, {CHECKSUM_ATTEMPTS} times")]
    Corrupt {
        /// Which block.
        block: BlockIndex,
    },
    /// The process is stopping, or the flight broke down.
    #[error("the fetch was stopped")]
    Stopped,
    /// The manifest is damaged where the block is described.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// What a peer receives instead of a block that cannot be fetched.
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
