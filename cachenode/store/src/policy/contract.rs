//! The contract between a dataset's cache and its policy.

use larder_dataset::BlockIndex;

/// Decides what a cache of limited size keeps. Not shared: the caller holds it behind its own lock.
pub trait Policy: Send + std::fmt::Debug {
    /// May this block, which is not cached now, be kept? Pushes the blocks that must be evicted for it to `evict`; they
    /// are no longer cached. False changes nothing. An empty block or one larger than the capacity is refused.
    fn admit(&mut self, block: BlockIndex, len: u32, evict: &mut Vec<BlockIndex>) -> bool;

    /// Counts a block that is on the disk from an earlier run; oldest first. Only this may raise the used bytes above
    /// the capacity, when the reservation has become smaller.
    fn restore(&mut self, block: BlockIndex, len: u32);

    /// Evicts until the used bytes fit the capacity. NR, which never evicts, changes nothing and admits nothing until
    /// there is room.
    fn trim(&mut self, evict: &mut Vec<BlockIndex>);

    /// Records a hit of a cached block; a block that is not cached is ignored. Needed only if [`Policy::wants_touch`].
    fn touch(&mut self, block: BlockIndex);

    /// True if hits change what is evicted next.
    fn wants_touch(&self) -> bool;

    /// The block, admitted with this length, is no longer cached, for a reason that the policy does not know.
    fn forget(&mut self, block: BlockIndex, len: u32);

    /// Bytes of all cached blocks.
    fn used_bytes(&self) -> u64;

    /// Changes how many bytes may be cached. If more are cached, evicting policies evict at the next admission, and NR
    /// admits nothing until there is room.
    fn set_capacity(&mut self, capacity_bytes: u64);

    /// Bytes that may be cached.
    fn capacity_bytes(&self) -> u64;
}
