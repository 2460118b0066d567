//! How full a dataset's cache is.

use larder_dataset::PolicyKind;

/// How full a dataset's cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of blocks that may be cached: the reservation.
    pub capacity_bytes: u64,
    /// Bytes that might be cached if there were room for all datasets.
    pub wanted_bytes: u64,
    /// Bytes of blocks that are cached or have a permit. Disk use is higher: by up to 4 KiB and 320 bytes for each
    /// block, and while blocks are admitted by up to a tenth of the capacity, within 2 to 136 MiB, that is taken ahead
    /// or not freed yet.
    pub used_bytes: u64,
    /// Blocks cached.
    pub blocks_cached: u64,
    /// Bytes of blocks that can be admitted without evicting a block that this node owns, as far as is known.
    pub room_bytes: u64,
    /// Which blocks are kept when not all fit.
    pub policy: PolicyKind,
    /// Why nothing is admitted, if the disk fails.
    pub degraded: Option<&'static str>,
    /// True while the blocks of an earlier run are being counted: the two counts above grow, and nothing is admitted.
    pub rebuilding: bool,
}
