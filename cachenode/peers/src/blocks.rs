//! What a node gives to others: ranges of blocks, to who holds the dataset's token.
//!
//! [`Blocks`] is implemented by whoever has the store and the origin; the server asks it for every range. [`ReadError`] is
//! how it says no, and each variant is another decision for the one who asked.
//!
//! Invariant: a token is never printed, and comparing it takes as long whether its first byte or its last is wrong.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use larder_cachenode_api::frame::TOKEN_BYTES_MOST;
use larder_dataset::{BlockIndex, SnapshotId};

/// What lets one read a dataset from another node. Prints as nothing; compares in constant time.
#[derive(Clone, Eq)]
pub struct Token(Arc<str>);

/// It is empty, too long, or has characters that a token cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token is 1 to {TOKEN_BYTES_MOST} printable ASCII characters without spaces")]
pub struct InvalidToken;

impl Token {
    /// A token of printable ASCII characters without spaces.
    pub fn new(token: &str) -> Result<Self, InvalidToken> {
        let fits = (1..=TOKEN_BYTES_MOST).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(Self(token.into())) } else { Err(InvalidToken) }
    }

    /// The secret itself, for the one place that sends it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), other.0.as_bytes());
        // Through black_box, or the compiler may stop at the first difference.
        let differing = ours.iter().zip(theirs).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
        ours.len() == theirs.len() && differing == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A range of a block that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The block.
    pub block: BlockIndex,
    /// First byte, counted from the start of the block.
    pub start: u32,
    /// Bytes; at least 1.
    pub len: u32,
}

/// A range of a block that a peer asks for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Of which dataset.
    pub snapshot: SnapshotId,
    /// What the peer showed.
    pub token: Option<Token>,
    /// The block.
    pub block: BlockIndex,
    /// First byte, counted from the start of the block.
    pub start: u32,
    /// Bytes: 1 to [`BLOCK_BYTES`](larder_dataset::BLOCK_BYTES), and the range ends within that.
    pub len: u32,
    /// Do not ask another node for it.
    pub forwarded: bool,
    /// When the peer stops waiting; the server does too, and drops the read.
    pub deadline: Instant,
}

/// The bytes of a range, as a node gives them.
pub enum Given {
    /// They are here: as many as were asked for, and their CRC32C.
    Whole(Bytes, u32),
    /// They are on their way here, and are passed on as they come: the next ones each time,
    /// [`PIECE_BYTES_LEAST`](larder_cachenode_api::frame::PIECE_BYTES_LEAST) or more but for the last. What ends with an
    /// error or too soon is refused in the middle. Dropped like [`Blocks::read`].
    Arriving(BoxStream<'static, Result<Bytes, ReadError>>),
}

/// Why a peer does not get a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The node does not serve this snapshot: ask it no more for now.
    #[error("the node does not serve this dataset")]
    UnknownDataset,
    /// The token is missing or wrong.
    #[error("the node does not accept this dataset's token")]
    Denied,
    /// The snapshot has no such block, or the block no such range: a mistake of the one who asks.
    #[error("there is no such block or range")]
    NoSuchRange,
    /// The object is gone from the origin.
    #[error("the object is gone from the origin")]
    Gone,
    /// The origin has another object than the snapshot.
    #[error("the object changed in the origin")]
    Stale,
    /// Not within the deadline.
    #[error("not to be had within the deadline")]
    TimedOut,
    /// Not at present; the origin may say otherwise.
    #[error("not to be had at present: {message}")]
    Unavailable {
        /// Why, for people.
        message: String,
    },
    /// The node is on its way out: ask another.
    #[error("the node is stopping")]
    Stopping,
}

impl ReadError {
    /// For what is not to be had at present.
    pub fn unavailable(message: impl fmt::Display) -> Self {
        Self::Unavailable { message: message.to_string() }
    }
}

/// What a node has of one dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetStats {
    /// Which snapshot.
    pub snapshot: SnapshotId,
    /// Its name.
    pub name: String,
    /// Blocks in the store.
    pub blocks_cached: u64,
    /// Bytes in the store.
    pub bytes_cached: u64,
    /// Bytes that the node keeps of it at most.
    pub capacity_bytes: u64,
}

/// What a node gives to others. Called concurrently, for every peer and range.
#[async_trait]
pub trait Blocks: Send + Sync + 'static {
    /// Exactly `ask.len` bytes, from the store or from wherever the node gets them. It decides itself whether the token may
    /// read the dataset. Dropped when the peer goes away or the deadline has passed: work that others wait for too must go
    /// on without this future. Must not block.
    async fn read(&self, ask: &Ask) -> Result<Given, ReadError>;

    /// What is cached of each dataset. Names and sums: whoever is a member of the cluster may read it.
    fn stats(&self) -> Vec<DatasetStats>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_printed_and_equals_only_itself() {
        let token = Token::new("s3cret").unwrap();
        assert_eq!(format!("{token:?}"), "Token(..)");
        assert_eq!(token, Token::new("s3cret").unwrap());
        for other in ["s3creT", "S3cret", "s3cre", "s3cret1"] {
            assert_ne!(token, Token::new(other).unwrap(), "{other}");
        }
        for bad in ["", "a b", "a\nb", "ä", &"x".repeat(TOKEN_BYTES_MOST + 1)] {
            assert_eq!(Token::new(bad), Err(InvalidToken));
        }
    }
}
