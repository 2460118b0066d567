//! The outcome of the fetch of a block.

use bytes::Bytes;

use super::error::FetchError;

/// Where bytes were found that the store did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// In the window.
    Window,
    /// At a peer.
    Peer,
    /// At the origin.
    Origin,
}

/// How the fetch of a block ended.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// The block's bytes.
    Fetched(Bytes, Tier),
    /// The fetch was for warming and the store did not admit the block. Nothing was fetched.
    NotAdmitted,
    /// The fetch was to include this block and does not.
    Skipped,
    /// The block could not be fetched.
    Failed(FetchError),
}
