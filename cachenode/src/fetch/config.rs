//! Limits of fetching.

use std::time::Duration;

/// Limits of the fetches of one dataset.
#[derive(Clone, Copy, Debug)]
pub struct FetchConfig {
    /// The longest time that a read may wait for the origin; then it fails with ETIMEDOUT.
    pub read_deadline: Duration,
    /// Bytes in flight from the origin into the store; further fetches wait. At least 8 MiB.
    pub fetch_bytes: u64,
    /// Memory for blocks that the store does not keep, while they are being read.
    pub window_bytes: u64,
}

impl FetchConfig {
    /// The defaults of `larder mount`.
    pub const DEFAULT: Self =
        Self { read_deadline: Duration::from_secs(60), fetch_bytes: 64 << 20, window_bytes: 64 << 20 };
}
