//! The purposes of a fetch.

use crate::sharing::Asker;

/// The reason that a block is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A reader waits for the bytes.
    Read,
    /// To fill the store. Pointless if the store does not admit the block.
    Warm,
    /// A peer waits for the bytes; `forwarded` if no other peer may be asked.
    Peer { forwarded: bool },
}

impl Purpose {
    /// The node that wants the block.
    pub(super) fn asker(self) -> Asker {
        match self {
            Self::Read | Self::Warm => Asker::Here,
            Self::Peer { forwarded } => Asker::Peer { forwarded },
        }
    }
}
