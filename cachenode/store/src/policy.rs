//! Admission policies: which blocks are kept when not all of them fit.
//!
//! The cast: [`Policy`] is what a dataset's cache asks; [`build_policy`] makes the four that [`PolicyKind`] names. `nr` keeps
//! what came first and never evicts, `lru` and `fifo` evict the oldest by use and by admission, `random` any.
//!
//! Invariant: an admission never leaves more bytes used than the capacity. A policy is pure: no I/O, no clock, and its
//! chance comes from a seed, so that a simulator with 100 million blocks runs the very code that a node runs.
//!
//! Capacity counts the blocks' own bytes, so that the hit ratio of NR is exactly cache / dataset. On disk a block takes
//! up to 4 KiB more, plus 64 bytes and 4 for each 64 KiB.

mod fifo;
mod lru;
mod nr;
mod queue;
mod random;
#[cfg(test)]
mod tests;

use larder_dataset::{BlockIndex, PolicyKind};

pub use fifo::Fifo;
pub use lru::Lru;
pub use nr::Nr;
pub use random::Random;

/// Decides what a cache of limited size keeps. Not shared: the caller holds it behind its own lock.
pub trait Policy: Send + std::fmt::Debug {
    /// May this block, which is not cached now, be kept? Pushes what must leave for it to `evict`; those are not cached
    /// any more. False changes nothing. A block of no bytes, or of more than the capacity, is refused.
    fn admit(&mut self, block: BlockIndex, len: u32, evict: &mut Vec<BlockIndex>) -> bool;

    /// Counts a block that is on the disk already, from an earlier run; oldest first. This alone may put the used bytes
    /// over the capacity, when the reservation has become smaller.
    fn restore(&mut self, block: BlockIndex, len: u32);

    /// Evicts until the used bytes fit the capacity. NR, which never evicts, leaves things as they are and admits
    /// nothing until there is room.
    fn trim(&mut self, evict: &mut Vec<BlockIndex>);

    /// A cached block was hit. A block that is not cached is ignored. Needed only if [`Policy::wants_touch`].
    fn touch(&mut self, block: BlockIndex);

    /// True if hits change what is evicted next.
    fn wants_touch(&self) -> bool;

    /// The block, which was admitted with this length, is no longer cached for a reason of the caller's.
    fn forget(&mut self, block: BlockIndex, len: u32);

    /// Bytes of all cached blocks.
    fn used_bytes(&self) -> u64;

    /// Bytes that may be cached.
    fn capacity_bytes(&self) -> u64;
}

/// An empty policy for blocks `0..blocks`. NR takes no memory for a block; the others 12 bytes, which the system
/// provides as blocks are touched. `seed` is for random.
pub fn build_policy(kind: PolicyKind, capacity_bytes: u64, blocks: u32, seed: u64) -> Box<dyn Policy> {
    match kind {
        PolicyKind::Nr => Box::new(Nr::new(capacity_bytes)),
        PolicyKind::Lru => Box::new(Lru::new(capacity_bytes, blocks)),
        PolicyKind::Fifo => Box::new(Fifo::new(capacity_bytes, blocks)),
        PolicyKind::Random => Box::new(Random::new(capacity_bytes, blocks, seed)),
    }
}
