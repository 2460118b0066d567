//! The store's view of another snapshot of a dataset's origin, whose blocks the dataset may adopt.

use std::fmt;

use larder_dataset::{BlockIndex, SnapshotId};

/// Another snapshot of the same origin, compared with that of a dataset. Only blocks that certainly have the same bytes
/// are the same.
pub trait Earlier: fmt::Debug + Send + Sync {
    /// The other snapshot.
    fn snapshot(&self) -> SnapshotId;

    /// The number of its blocks.
    fn blocks(&self) -> u32;

    /// True if it has room of its own: what is adopted from it takes none of the dataset's.
    fn is_promised(&self) -> bool;

    /// Its block that has the same bytes as `block` of the dataset.
    fn find(&self, block: BlockIndex) -> Option<BlockIndex>;

    /// Calls `f` with all runs of blocks that have the same bytes, in the order of the dataset's blocks, until it
    /// returns false, or until `is_stopped`: there may be millions of files between two of them.
    fn each_run(&self, is_stopped: &dyn Fn() -> bool, f: &mut dyn FnMut(SameBlocks) -> bool);
}

/// Blocks that follow each other in two snapshots and have the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SameBlocks {
    /// The first of them in the dataset.
    pub first: BlockIndex,
    /// The first of them in the other snapshot.
    pub earlier: BlockIndex,
    /// Their number.
    pub count: u32,
}
