//! Limits of fetching.

use std::sync::Arc;
use std::time::Duration;

use larder_origin::Rate;

/// Memory for the largest possible fetch: an extent, and a block that begins at its end.
const FETCH_BYTES_LEAST: u64 = 8 << 20;

/// The most bytes in flight from peers, and the most of fetches that fill the store.
const OTHER_BYTES_MOST: u64 = 64 << 20;

/// Limits of the fetches of one dataset.
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// The longest time that a read may wait for the origin; then it fails with ETIMEDOUT.
    pub read_deadline: Duration,
    /// Bytes in flight from the origin; further fetches wait. At least 8 MiB. Fewer than bandwidth × delay leave a far
    /// origin unused: 256 MiB are 64 blocks of 4 MiB, or 2,400 files of 111 KB. As many, and at most 64 MiB, may be in
    /// flight from peers, and as many in fetches that fill the store.
    pub fetch_bytes: u64,
    /// Memory for blocks that readers have and that are not in the store yet. A block without room there is not kept.
    pub unwritten_bytes: u64,
    /// Memory for blocks that the store does not keep, while they are being read.
    pub window_bytes: u64,
    /// The cap on the bytes of all warm-ups of the process, if there is one.
    pub warm_rate: Option<Arc<Rate>>,
}

impl FetchConfig {
    /// The defaults of `larder mount`.
    pub const DEFAULT: Self = Self {
        read_deadline: Duration::from_secs(60),
        fetch_bytes: 256 << 20,
        unwritten_bytes: 64 << 20,
        window_bytes: 64 << 20,
        warm_rate: None,
    };

    /// `fetch_bytes` as a number of permits, one for each KiB.
    pub(super) fn fetch_kib(&self) -> usize {
        (self.fetch_bytes.max(FETCH_BYTES_LEAST) >> 10) as usize
    }

    /// The same for fetches from peers, and for those that fill the store.
    pub(super) fn other_kib(&self) -> usize {
        self.fetch_kib().min((OTHER_BYTES_MOST >> 10) as usize)
    }
}
