//! The contract between a dataset's cache and its policy.

use larder_dataset::BlockIndex;

use super::sizes::Sizes;

/// Why a block is to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A reader missed it, or is about to.
    Missed,
    /// To fill the cache. No block is evicted for it.
    Fill,
    /// The same, and a list names it: the order of the list decides which blocks are kept.
    Listed,
}

/// Decides which blocks a cache of limited size keeps. Not thread-safe: the caller holds it behind its own lock.
pub trait Policy: Send + std::fmt::Debug {
    /// True if the policy keeps a block of `len` bytes that is not cached now, provided that there is room. Call it
    /// once before each [`Policy::admit`].
    fn wants(&mut self, _block: BlockIndex, _len: u32, _wish: Wish) -> bool {
        true
    }

    /// Sets how many bytes the blocks of each size that this cache may hold have together.
    fn set_sizes(&mut self, _sizes: &Sizes) {}

    /// Decides whether to keep a block that is not cached now. Pushes the blocks that must be evicted for it to
    /// `evict`; they are no longer cached. A result of false changes nothing. Refuses an empty block and one larger
    /// than the capacity.
    fn admit(&mut self, block: BlockIndex, len: u32, evict: &mut Vec<BlockIndex>) -> bool;

    /// Counts a block that is on the disk from an earlier run. Call it for the oldest block first. Only this method may
    /// raise the used bytes above the capacity, which happens when the reservation has shrunk.
    fn restore(&mut self, block: BlockIndex, len: u32);

    /// Evicts until the used bytes fit the capacity. NR never evicts: it changes nothing and admits nothing until it
    /// has space.
    fn trim(&mut self, evict: &mut Vec<BlockIndex>);

    /// Records a hit. Ignores a block that is not cached. Needed only if [`Policy::wants_touch`].
    fn touch(&mut self, block: BlockIndex);

    /// True if hits change the order of eviction.
    fn wants_touch(&self) -> bool;

    /// Removes a block that is no longer cached although the policy did not evict it. `len` is its admitted length in
    /// bytes.
    fn forget(&mut self, block: BlockIndex, len: u32);

    /// Total bytes of all cached blocks.
    fn used_bytes(&self) -> u64;

    /// Changes how many bytes may be cached. If more are cached, evicting policies evict at the next admission, and NR
    /// admits nothing until it has space.
    fn set_capacity(&mut self, capacity_bytes: u64);

    /// The number of bytes that may be cached.
    fn capacity_bytes(&self) -> u64;
}
