//! The contract between a dataset's cache and its policy.

use larder_dataset::BlockIndex;

/// Decides which blocks a cache of limited size keeps. Not thread-safe: the caller holds it behind its own lock.
pub trait Policy: Send + std::fmt::Debug {
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
