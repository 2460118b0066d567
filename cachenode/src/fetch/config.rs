//! Limits of fetching.

use std::time::Duration;

/// Memory for the largest possible fetch: an extent, and a block that begins at its end.
const FETCH_BYTES_LEAST: u64 = 8 << 20;

/// Limits of the fetches of one dataset.
#[derive(Clone, Copy, Debug)]
pub struct FetchConfig {
    /// The longest time that a read may wait for the origin; then it fails with ETIMEDOUT.
    pub read_deadline: Duration,
    /// Bytes in flight from the origin; further fetches wait. At least 8 MiB. The same limit holds for what is in
    /// flight from peers, for what waits for the store after readers had it, and for what fills the store.
    pub fetch_bytes: u64,
    /// Memory for blocks that the store does not keep, while they are being read.
    pub window_bytes: u64,
}

impl FetchConfig {
    /// The defaults of `larder mount`.
    pub const DEFAULT: Self =
        Self { read_deadline: Duration::from_secs(60), fetch_bytes: 64 << 20, window_bytes: 64 << 20 };

    /// `fetch_bytes` as a number of permits, one for each KiB.
    pub(super) fn fetch_kib(&self) -> usize {
        (self.fetch_bytes.max(FETCH_BYTES_LEAST) >> 10) as usize
    }
}
