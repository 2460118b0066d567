//! How full a dataset's cache is.

use larder_dataset::PolicyKind;

/// How full a dataset's cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The limit on the bytes of cached blocks: the reservation.
    pub capacity_bytes: u64,
    /// The limit that would apply if there were space for all datasets.
    pub wanted_bytes: u64,
    /// Bytes of blocks that are cached or have a permit. Disk use is up to 4 KiB and 320 bytes per block higher. While
    /// blocks are admitted, it is higher by up to another tenth of the capacity (at least 2 and at most 136 MiB for
    /// each disk): space that is allocated ahead, or not freed yet.
    pub used_bytes: u64,
    /// The number of cached blocks.
    pub blocks_cached: u64,
    /// Bytes of blocks that can be admitted without evicting a block that this node owns, as far as is known.
    pub room_bytes: u64,
    /// Which blocks are kept when not all fit.
    pub policy: PolicyKind,
    /// Why nothing is admitted while the disk fails; `None` while it works.
    pub degraded: Option<&'static str>,
    /// True while the blocks of an earlier run are being counted. `used_bytes` and `blocks_cached` grow during that
    /// time, and nothing is admitted.
    pub rebuilding: bool,
}
