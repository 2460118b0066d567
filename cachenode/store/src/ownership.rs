//! Ownership of blocks where nodes share a dataset: which blocks this node may drop.

use std::fmt;

use larder_dataset::BlockIndex;

/// Which blocks of a dataset this node owns, by the current list of nodes.
pub trait Ownership: fmt::Debug + Send + Sync {
    /// The version of the current list. Each change of owners changes it. None while no list is known; no block is
    /// disowned then. Must be quick: it is called under a lock.
    fn version(&self) -> Option<u64>;

    /// Removes the blocks that this node owns from `blocks`, which must be in ascending order. Returns false if
    /// `version` is not the current list's version; the contents of `blocks` are then meaningless.
    fn retain_disowned(&self, version: u64, blocks: &mut Vec<BlockIndex>) -> bool;
}
