//! The blocks that a node serves to its peers.

use async_trait::async_trait;
use larder_dataset::{CacheId, SnapshotId};

use crate::read::{BlockBytes, ReadError, ReadRequest};
use crate::token::Token;

/// A dataset that a peer asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedDataset {
    /// The dataset's cache.
    pub cache: CacheId,
    /// The dataset's token, as the peer has it.
    pub token: Option<Token>,
    /// A hash of the origin's URL, server and account, as the peer sent it; empty if it sent none.
    pub origin: String,
}

/// A snapshot that a node shares from the same origin as a snapshot that a peer asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherSnapshot {
    /// The cache that the peer asked about. The node does not share it.
    pub asked: CacheId,
    /// The snapshot that the node shares.
    pub snapshot: SnapshotId,
    /// When the shared snapshot was listed, in nanoseconds since the epoch.
    pub listed_ns: i64,
}

/// A node's cached part of one dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetStats {
    /// The dataset's cache.
    pub cache: CacheId,
    /// The dataset's name on that node.
    pub name: String,
    /// Blocks of the dataset in the node's store.
    pub blocks_cached: u64,
    /// Bytes of the dataset in the node's store.
    pub bytes_cached: u64,
    /// The most bytes of the dataset that the node may cache.
    pub capacity_bytes: u64,
}

/// Serves a node's blocks to its peers. The owner of the store and the origin implements it. Called concurrently, for
/// every peer and range.
#[async_trait]
pub trait Blocks: Send + Sync + 'static {
    /// Returns exactly `request.range.len` bytes, from the store or from another source. The implementation decides
    /// whether the token grants access to the dataset. The server drops the future when the peer disconnects or the
    /// deadline passes, so work that other readers also wait for must continue without it. Must not block.
    async fn read(&self, request: &ReadRequest) -> Result<BlockBytes, ReadError>;

    /// Statistics of the requested datasets that the node shares and whose token is right. Reveals nothing about other
    /// datasets.
    fn stats(&self, asked: &[AskedDataset]) -> Vec<DatasetStats>;

    /// For each requested dataset that the node does not share: the snapshot of the same origin that it shares, if the
    /// token grants access to that snapshot.
    fn others(&self, _asked: &[AskedDataset]) -> Vec<OtherSnapshot> {
        Vec::new()
    }

    /// The name of a dataset that the node shares, for its own log.
    fn name(&self, cache: CacheId) -> Option<String>;
}
