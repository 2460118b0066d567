//! Limits of fetching.

use std::sync::Arc;
use std::time::Duration;

use larder_origin::Rate;

/// Limits of the fetches of one dataset.
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// The longest time that a read may wait for the origin; then it fails with ETIMEDOUT.
    pub read_deadline: Duration,
    /// Bytes in flight from the origin into the store; further fetches wait. At least 8 MiB. Fewer than bandwidth × delay
    /// leave a far origin unused: 256 MiB are 64 blocks of 4 MiB, or 2,400 files of 111 KB.
    pub fetch_bytes: u64,
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
        window_bytes: 64 << 20,
        warm_rate: None,
    };
}
