//! The blocks that a node serves to its peers.

use async_trait::async_trait;
use larder_dataset::SnapshotId;

use crate::read::{BlockBytes, ReadError, ReadRequest};
use crate::token::Token;

/// A dataset that a peer asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedDataset {
    /// Which snapshot.
    pub snapshot: SnapshotId,
    /// The token that the peer shows.
    pub token: Option<Token>,
    /// A hash of the origin's URL, server and account; empty: not stated.
    pub origin: String,
}

/// A snapshot that a node shares of the same origin as one that it was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherSnapshot {
    /// The snapshot that it was asked about, which it does not share.
    pub asked: SnapshotId,
    /// The one that it shares.
    pub snapshot: SnapshotId,
    /// When that was listed, nanoseconds since the epoch.
    pub listed_ns: i64,
}

/// One dataset as a node has cached it.
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
    /// The most bytes of the dataset that the node keeps.
    pub capacity_bytes: u64,
}

/// Serves a node's blocks to its peers; implemented by the owner of the store and the origin. Called concurrently, for
/// every peer and range.
#[async_trait]
pub trait Blocks: Send + Sync + 'static {
    /// Exactly `request.range.len` bytes, from the store or from wherever the node gets them. The implementation
    /// decides whether the token opens the dataset. The server drops the future when the peer disconnects or the
    /// deadline passes, so work that others also wait for must continue without it. Must not block.
    async fn read(&self, request: &ReadRequest) -> Result<BlockBytes, ReadError>;

    /// Statistics of the requested datasets that the node shares and whose token is right; nothing about others.
    fn stats(&self, asked: &[AskedDataset]) -> Vec<DatasetStats>;

    /// Of those of the datasets that the node does not share: what it shares of the same origin, if the token opens
    /// that.
    fn others(&self, _asked: &[AskedDataset]) -> Vec<OtherSnapshot> {
        Vec::new()
    }

    /// The name of a dataset that the node shares, for its own log.
    fn name(&self, snapshot: SnapshotId) -> Option<String>;
}
