//! The purposes of a fetch.

use crate::sharing::Asker;

/// The reason that a block is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A reader waits for the bytes.
    Read,
    /// A reader is expected to want the bytes. Pointless if neither the store nor the window has room.
    Ahead,
    /// A plan wants the bytes ahead of its reader, and holds them. It has memory for them.
    Planned,
    /// To fill the store. Pointless if the store does not admit the block.
    Warm,
    /// The same, and nothing else: what follows in the order of the warming needs the room.
    WarmAlone,
    /// A peer waits for the bytes; `forwarded` if no other peer may be asked.
    Peer { forwarded: bool },
}

impl Purpose {
    /// True to fill the store only.
    pub(super) fn is_warm(self) -> bool {
        matches!(self, Self::Warm | Self::WarmAlone)
    }

    /// True if whoever started the fetch holds memory for its bytes.
    pub(super) fn has_memory(self) -> bool {
        self.is_warm() || self == Self::Planned
    }

    /// The node that wants the block.
    pub(super) fn asker(self) -> Asker {
        match self {
            Self::Read | Self::Ahead | Self::Planned | Self::Warm | Self::WarmAlone => Asker::Here,
            Self::Peer { forwarded } => Asker::Peer { forwarded },
        }
    }
}
