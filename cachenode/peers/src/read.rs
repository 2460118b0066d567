//! A read of a range of a block from another node: the request and its answer, as client, server and engine use them.

use std::fmt;

use bytes::Bytes;
use futures::stream::BoxStream;
use larder_dataset::{BlockRange, CacheId};

use crate::token::Token;

/// A request to a node for a range of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The cache that the block belongs to.
    pub cache: CacheId,
    /// The range. It must lie within the first [`BLOCK_BYTES`](larder_dataset::BLOCK_BYTES) of the block.
    pub range: BlockRange,
    /// The dataset's token, if the requesting node has one.
    pub token: Option<Token>,
    /// True if the answering node must not ask another node for the range.
    pub forwarded: bool,
    /// True if the answering node must not fetch the range: it refuses bytes that it has not cached.
    pub cached_only: bool,
}

/// The bytes of a range, in the form in which the answering node has them.
pub enum BlockBytes {
    /// The node has all bytes.
    Whole {
        /// Exactly as many bytes as were requested.
        bytes: Bytes,
        /// The CRC32C of `bytes`.
        crc: u32,
    },
    /// The node is still receiving the bytes and forwards them piece by piece. Every piece but the last has at least
    /// [`PIECE_BYTES_LEAST`](larder_cachenode_api::frame::PIECE_BYTES_LEAST) bytes. If the stream fails or ends early,
    /// the rest of the range is refused. The server drops the stream when it would drop the future of `Blocks::read`.
    Arriving(BoxStream<'static, Result<Bytes, ReadError>>),
}

impl BlockBytes {
    /// All bytes of a range. Computes their CRC32C.
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

/// Why a peer does not provide a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The peer does not serve this snapshot, or not to this token. The client stops asking it for a while.
    #[error("the peer does not serve this dataset, or has another LARDER_PEER_TOKEN for it")]
    UnknownDataset,
    /// The token is missing or wrong. Peers receive [`UnknownDataset`](Self::UnknownDataset) instead, so that they
    /// cannot find out that the dataset exists.
    #[error("the peer does not accept this dataset's token")]
    Denied,
    /// The snapshot has no such block, or the block has no such range. This is a bug in the client.
    #[error("the snapshot has no such block or range")]
    NoSuchRange,
    /// The object no longer exists at the origin.
    #[error("the object is gone from the origin")]
    Gone,
    /// The object at the origin has another version than the snapshot records.
    #[error("the object changed at the origin")]
    Stale,
    /// The peer could not provide the range before the request's deadline.
    #[error("the deadline passed")]
    TimedOut,
    /// The range is currently unavailable from the peer. The origin may have it.
    #[error("currently unavailable: {message}")]
    Unavailable {
        /// The reason, for logs.
        message: String,
    },
    /// The peer is stopping. The client asks another node.
    #[error("the peer is stopping")]
    Stopping,
}

impl ReadError {
    /// Builds the error for a range that is currently unavailable.
    pub fn unavailable(message: impl fmt::Display) -> Self {
        Self::Unavailable { message: message.to_string() }
    }
}
