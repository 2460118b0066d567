//! A read of a range of a block by one node from another: the request and its answer, as client, server and engine use
//! them.

use std::fmt;

use bytes::Bytes;
use futures::stream::BoxStream;
use larder_dataset::{BlockRange, SnapshotId};

use crate::token::Token;

/// Asks a node for a range of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The snapshot that the block belongs to.
    pub snapshot: SnapshotId,
    /// The range: within the first [`BLOCK_BYTES`](larder_dataset::BLOCK_BYTES) of the block.
    pub range: BlockRange,
    /// The dataset's token, if the requesting node has one.
    pub token: Option<Token>,
    /// The answering node must not ask another node for the range.
    pub forwarded: bool,
    /// The answering node must not fetch the range: it refuses what it does not have.
    pub cached_only: bool,
}

/// The bytes of a range, as the answering node has them.
pub enum BlockBytes {
    /// The node has them all.
    Whole {
        /// As many bytes as were requested.
        bytes: Bytes,
        /// Their CRC32C.
        crc: u32,
    },
    /// The node is still receiving them, and passes them on piece by piece. Every piece but the last has at least
    /// [`PIECE_BYTES_LEAST`](larder_cachenode_api::frame::PIECE_BYTES_LEAST) bytes. A stream that fails or ends early
    /// refuses the rest of the range. The server drops the stream when it would drop the future of `Blocks::read`.
    Arriving(BoxStream<'static, Result<Bytes, ReadError>>),
}

impl BlockBytes {
    /// All bytes of a range whose CRC32C is not known yet.
    pub fn whole(bytes: Bytes) -> Self {
        let crc = larder_dataset::crc32c(&bytes);
        Self::Whole { bytes, crc }
    }
}

impl fmt::Debug for BlockBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole { bytes, .. } => write!(f, "Whole({} bytes)", bytes.len()),
            Self::Arriving(_) => f.write_str("Arriving(..)"),
        }
    }
}

/// Why a peer does not give a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The peer does not serve this snapshot, or not to this token. The client stops asking it for a while.
    #[error("the peer does not serve this dataset, or has another LARDER_PEER_TOKEN for it")]
    UnknownDataset,
    /// The token is missing or wrong. Peers are told [`UnknownDataset`](Self::UnknownDataset): they must not learn that
    /// the dataset is there.
    #[error("the peer does not accept this dataset's token")]
    Denied,
    /// The snapshot has no such block, or the block no such range: the client's mistake.
    #[error("the snapshot has no such block or range")]
    NoSuchRange,
    /// The object is gone from the origin.
    #[error("the object is gone from the origin")]
    Gone,
    /// The origin has another version of the object than the snapshot.
    #[error("the object changed at the origin")]
    Stale,
    /// The deadline passed.
    #[error("the deadline passed")]
    TimedOut,
    /// The range is currently unavailable from the peer. The origin may have it.
    #[error("currently unavailable: {message}")]
    Unavailable {
        /// Why, for people.
        message: String,
    },
    /// The peer is stopping. The client asks another node.
    #[error("the peer is stopping")]
    Stopping,
}

impl ReadError {
    /// For a range that is currently unavailable.
    pub fn unavailable(message: impl fmt::Display) -> Self {
        Self::Unavailable { message: message.to_string() }
    }
}
