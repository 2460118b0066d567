//! The outcome of the fetch of a block.

use bytes::Bytes;

use super::error::FetchError;
use crate::counters::Source;

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

impl From<Tier> for Source {
    fn from(tier: Tier) -> Self {
        match tier {
            Tier::Window => Self::Window,
            Tier::Peer => Self::Peer,
            Tier::Origin => Self::Origin,
        }
    }
}

/// How the fetch of a block ended.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// The block's bytes.
    Fetched(Bytes, Tier),
    /// The fetch was for warming and the store did not admit the block. Nothing was fetched.
    NotAdmitted,
    /// The store does not keep the block and the window has no room for it: it is read in pieces. Nothing was fetched.
    InPieces,
    /// The fetch was to include this block and does not.
    Skipped,
    /// The block could not be fetched.
    Failed(FetchError),
}

/// The outcome of warming a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warmed {
    /// The block is in the store.
    Kept,
    /// The reservation is full.
    NoRoom,
    /// The policy keeps smaller blocks in its place.
    LeftOut,
    /// The store cannot keep it, for this reason.
    Unkept(&'static str),
    /// Another node keeps it.
    NotOurs,
    /// It could not be fetched. The error was counted and logged.
    Failed,
}
