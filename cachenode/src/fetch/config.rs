//! Limits of fetching.

use std::sync::Arc;
use std::time::Duration;

use larder_origin::Rate;

use super::disk_threads::DiskThreads;
use crate::memory::{Account, MemoryBudget};

/// Memory for the largest possible fetch: an extent, and a block that begins at its end.
const FETCH_BYTES_LEAST: u64 = 8 << 20;

/// The most bytes in flight from peers, and the most of fetches that fill the store.
const OTHER_BYTES_MOST: u64 = 64 << 20;

/// Memory that is always there for each other purpose of a dataset: a block.
const OTHER_BYTES_LEAST: u64 = 4 << 20;

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
    /// Memory for blocks that plans fetch ahead of their readers.
    pub plan_bytes: u64,
    /// The cap on the bytes of all warm-ups of the process, if there is one.
    pub warm_rate: Option<Arc<Rate>>,
    /// The memory of the process, of which all of the above is taken. None: it has no limit.
    pub memory: Option<Arc<MemoryBudget>>,
    /// The threads of the process that wait for the cache's disks. None: this dataset has its own.
    pub disk_threads: Option<DiskThreads>,
}

impl FetchConfig {
    /// The defaults of `larder mount`.
    pub const DEFAULT: Self = Self {
        read_deadline: Duration::from_secs(60),
        fetch_bytes: 256 << 20,
        unwritten_bytes: 64 << 20,
        window_bytes: 64 << 20,
        plan_bytes: 256 << 20,
        warm_rate: None,
        memory: None,
        disk_threads: None,
    };

    /// Memory for fetches from the origin.
    pub(super) fn origin_account(&self) -> Account {
        self.account(FETCH_BYTES_LEAST, self.fetch_bytes_most())
    }

    /// Memory for fetches from peers, or for those that fill the store.
    pub(super) fn other_fetches_account(&self) -> Account {
        self.other_account(self.fetch_bytes_most().min(OTHER_BYTES_MOST))
    }

    /// At most `bytes_most` of memory for another purpose.
    pub(crate) fn other_account(&self, bytes_most: u64) -> Account {
        self.account(OTHER_BYTES_LEAST, bytes_most)
    }

    fn fetch_bytes_most(&self) -> u64 {
        self.fetch_bytes.max(FETCH_BYTES_LEAST)
    }

    fn account(&self, bytes_least: u64, bytes_most: u64) -> Account {
        // A budget without a limit need not be shared.
        self.memory.clone().unwrap_or_default().account(bytes_least >> 10, bytes_most >> 10)
    }
}
