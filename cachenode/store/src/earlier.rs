//! The store's view of another snapshot of a dataset's origin, whose blocks the dataset may adopt.

use std::fmt;

use larder_dataset::{BlockIndex, CacheId};

/// Another snapshot of the same origin, compared with a dataset's snapshot. Two blocks count as the same only if their
/// bytes are certainly equal. Of a file, all blocks are the same as those of one file of the other snapshot, or none.
pub trait Earlier: fmt::Debug + Send + Sync {
    /// The id of the other snapshot's cache.
    fn cache(&self) -> CacheId;

    /// The number of blocks in the other snapshot.
    fn blocks(&self) -> u32;

    /// True if the other snapshot has a reservation of its own: blocks adopted from it take no space from the dataset's
    /// reservation.
    fn is_promised(&self) -> bool;

    /// The block of the other snapshot that has the same bytes as `block` of the dataset.
    fn find(&self, block: BlockIndex) -> Option<BlockIndex>;

    /// Calls `f` with each run of blocks that have the same bytes, in the order of the dataset's blocks. Ends when `f`
    /// returns false or `is_stopped` returns true. `is_stopped` is checked between runs as well: two runs may be
    /// millions of files apart.
    fn each_run(&self, is_stopped: &dyn Fn() -> bool, f: &mut dyn FnMut(SameBlocks) -> bool);
}

/// Consecutive blocks that have the same bytes in two snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SameBlocks {
    /// The first block of the run in the dataset.
    pub first: BlockIndex,
    /// The first block of the run in the other snapshot.
    pub earlier: BlockIndex,
    /// The number of blocks in the run.
    pub count: u32,
}
