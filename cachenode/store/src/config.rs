//! A dataset's settings in the store.

use std::fmt;
use std::sync::Arc;

use larder_dataset::{BlockIndex, PolicyKind, SnapshotId};

use crate::reservations::Reservation;

/// The lengths of a snapshot's blocks.
pub trait BlockLens: Send + Sync {
    /// The length of a block in bytes. None if it cannot be known at present.
    fn len_of(&self, block: BlockIndex) -> Option<u32>;

    /// The same, for a caller that asks for many blocks in ascending order.
    fn in_order(&self) -> Box<dyn FnMut(BlockIndex) -> Option<u32> + '_> {
        Box::new(|block| self.len_of(block))
    }
}

impl<F: Fn(BlockIndex) -> u32 + Send + Sync> BlockLens for F {
    fn len_of(&self, block: BlockIndex) -> Option<u32> {
        Some(self(block))
    }
}

/// How a dataset is cached.
#[derive(Clone)]
pub struct CacheConfig {
    /// The snapshot whose blocks are cached.
    pub snapshot: SnapshotId,
    /// For people; the index keeps at most 1 KiB of it.
    pub name: String,
    /// Blocks of the snapshot.
    pub blocks: u32,
    /// Bytes of blocks that may be cached at first.
    pub reservation_bytes: u64,
    /// The promise that a later process finds: more than `reservation_bytes` while the whole cache is too
    /// small for all that was promised.
    pub promised: Reservation,
    /// Which blocks are kept when not all fit.
    pub policy: PolicyKind,
    /// For the random policy.
    pub seed: u64,
    /// The length of each block; asked for when blocks of an earlier run are counted and when a block is evicted.
    pub block_lens: Arc<dyn BlockLens>,
}

impl fmt::Debug for CacheConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheConfig")
            .field("snapshot", &self.snapshot)
            .field("name", &self.name)
            .field("blocks", &self.blocks)
            .field("reservation_bytes", &self.reservation_bytes)
            .field("promised", &self.promised)
            .field("policy", &self.policy)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}
