//! Ownership where nodes share a dataset: which blocks this node need not keep.

use std::fmt;

use larder_dataset::BlockIndex;

/// Which blocks of a dataset this node owns, by the present list of nodes.
pub trait Ownership: fmt::Debug + Send + Sync {
    /// The version of the present list: each change of owners gives another one. None while no list is known; then no
    /// block is disowned. Quick: it is called under a lock.
    fn version(&self) -> Option<u64>;

    /// Removes the blocks that this node owns from `blocks`, which are in ascending order. False if `version` is not
    /// that of the present list; `blocks` is of no use then.
    fn retain_disowned(&self, version: u64, blocks: &mut Vec<BlockIndex>) -> bool;
}
