//! What a dataset asks of the store.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use larder_dataset::{BlockIndex, PolicyKind, SnapshotId};

use crate::index::DatasetRow;

/// The length of each block of a snapshot.
pub type BlockLen = Arc<dyn Fn(BlockIndex) -> u32 + Send + Sync>;

/// How a dataset is cached.
#[derive(Clone)]
pub struct CacheConfig {
    /// The snapshot whose blocks are cached.
    pub snapshot: SnapshotId,
    /// For people; the index keeps at most 1 KiB of it.
    pub name: String,
    /// Blocks of the snapshot.
    pub blocks: u32,
    /// Bytes of blocks that may be cached.
    pub reservation_bytes: u64,
    /// What is kept when not all blocks fit.
    pub policy: PolicyKind,
    /// For the random policy.
    pub seed: u64,
    /// The length of each block; called when blocks of an earlier run are counted and when a block is evicted.
    pub block_len: BlockLen,
}

impl CacheConfig {
    /// The dataset's row in the index, used now.
    pub(crate) fn row(&self, number: u32) -> DatasetRow {
        DatasetRow {
            number,
            policy: self.policy,
            reservation_bytes: self.reservation_bytes,
            // A clock before 1970 counts as 0.
            last_use_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            name: self.name.clone(),
        }
    }
}

impl fmt::Debug for CacheConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheConfig")
            .field("snapshot", &self.snapshot)
            .field("name", &self.name)
            .field("blocks", &self.blocks)
            .field("reservation_bytes", &self.reservation_bytes)
            .field("policy", &self.policy)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}
