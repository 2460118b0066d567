//! A dataset's settings in the store.

use std::fmt;
use std::sync::Arc;

use larder_dataset::{BLOCK_BYTES, BlockIndex, CacheKey, PolicyKind};

use crate::reservations::Reservation;

/// The lengths of a snapshot's blocks, and the files that they are of.
pub trait BlockLens: Send + Sync {
    /// The length of a block in bytes. None if it is not known now, for example because the manifest cannot be read.
    fn len_of(&self, block: BlockIndex) -> Option<u32>;

    /// A variant of [`len_of`](Self::len_of) for callers that request many blocks in ascending order.
    fn in_order(&self) -> Box<dyn FnMut(BlockIndex) -> Option<u32> + '_> {
        Box::new(|block| self.len_of(block))
    }

    /// The file that a block is of. None if it is not known now, or if files are none of the store's business: each
    /// block is then stored alone.
    fn file_of(&self, block: BlockIndex) -> Option<FileSpan> {
        let _ = block;
        None
    }
}

/// The blocks of a file, which are consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSpan {
    /// The first block.
    pub first: BlockIndex,
    /// The size of the file.
    pub bytes: u64,
}

impl FileSpan {
    /// The blocks of the file.
    pub fn blocks(&self) -> impl Iterator<Item = BlockIndex> + use<> {
        (self.first.0..).map(BlockIndex).take(self.count() as usize)
    }

    /// The number of blocks.
    pub fn count(&self) -> u64 {
        self.bytes.div_ceil(BLOCK_BYTES)
    }

    /// True if a block is of this file.
    pub fn contains(&self, block: BlockIndex) -> bool {
        block.0.checked_sub(self.first.0).is_some_and(|nth| u64::from(nth) < self.count())
    }

    /// Where a block of the file begins in it.
    pub(crate) fn offset_of(&self, block: BlockIndex) -> u64 {
        u64::from(block.0.saturating_sub(self.first.0)) * BLOCK_BYTES
    }

    /// The length of a block of the file.
    pub(crate) fn len_of(&self, block: BlockIndex) -> u32 {
        // At most BLOCK_BYTES, which a u32 holds.
        self.bytes.saturating_sub(self.offset_of(block)).min(BLOCK_BYTES) as u32
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
    /// The snapshot whose blocks are cached, and for whom.
    pub key: CacheKey,
    /// Only this key's readers ever used the cache that an earlier version, which stored no keys, made of the snapshot.
    /// If false, such a cache is dropped.
    pub is_known_as_ours: bool,
    /// The dataset's name, for logs and listings; the index keeps at most 1 KiB of it.
    pub name: String,
    /// The number of blocks in the snapshot.
    pub blocks: u32,
    /// The initial limit on the bytes of cached blocks.
    pub reservation_bytes: u64,
    /// The promise that is stored for a later process. It exceeds `reservation_bytes` while the whole cache is too
    /// small for everything that was promised.
    pub promised: Reservation,
    /// Which blocks are kept when not all fit.
    pub policy: PolicyKind,
    /// Seeds the random policy's draws; other policies ignore it.
    pub seed: u64,
    /// The length of each block, and its file. Used to count the blocks of an earlier run, to evict a block, and to
    /// store the blocks of a large file together.
    pub block_lens: Arc<dyn BlockLens>,
}

impl fmt::Debug for CacheConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheConfig")
            .field("key", &self.key)
            .field("is_known_as_ours", &self.is_known_as_ours)
            .field("name", &self.name)
            .field("blocks", &self.blocks)
            .field("reservation_bytes", &self.reservation_bytes)
            .field("promised", &self.promised)
            .field("policy", &self.policy)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}
