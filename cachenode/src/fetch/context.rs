//! What all fetches of a dataset share: its manifest, its cache, the window, counters and limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use larder_dataset::{BlockIndex, Chain};
use larder_store::DatasetCache;
use tracing::warn;

use super::config::FetchConfig;
use super::error::FetchError;
use crate::counters::{StatsCounters, add};
use crate::manifest_file::MappedManifest;
use crate::window::Window;

/// Failed fetches are logged at most this often.
const LOG_EVERY_SECONDS: u64 = 10;

/// What all fetches of a dataset share.
#[derive(Debug)]
pub(super) struct FetchContext {
    pub(super) manifest: Arc<MappedManifest>,
    pub(super) cache: Arc<DatasetCache>,
    pub(super) window: Window,
    pub(super) counters: Arc<StatsCounters>,
    pub(super) config: FetchConfig,
    started: Instant,
    /// When a failure was last logged, in seconds since `started` plus [`LOG_EVERY_SECONDS`]; 0 if never.
    last_logged: AtomicU64,
}

impl FetchContext {
    pub(super) fn new(
        manifest: Arc<MappedManifest>,
        cache: Arc<DatasetCache>,
        counters: Arc<StatsCounters>,
        config: FetchConfig,
    ) -> Self {
        let window = Window::new(config.window_bytes);
        Self { manifest, cache, window, counters, config, started: Instant::now(), last_logged: AtomicU64::new(0) }
    }

    /// Counts a failed fetch. Logs at most one in ten seconds, however many fail.
    pub(super) fn fetch_failed(&self, block: BlockIndex, error: &FetchError) {
        add(&self.counters.origin_errors, 1);
        let now = self.started.elapsed().as_secs() + LOG_EVERY_SECONDS;
        let last = self.last_logged.load(Ordering::Relaxed);
        let is_due = now >= last + LOG_EVERY_SECONDS;
        if is_due && self.last_logged.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let failures = self.counters.origin_errors.load(Ordering::Relaxed);
            warn!(block = block.0, failures, error = %Chain(error), "fetch from origin failed");
        }
    }

    /// Counts a fetch as running until the result is dropped.
    pub(super) fn running(&self) -> RunningFetch {
        self.counters.fetches_running.fetch_add(1, Ordering::Relaxed);
        RunningFetch(Arc::clone(&self.counters))
    }
}

/// A fetch that is counted as running.
#[derive(Debug)]
pub(super) struct RunningFetch(Arc<StatsCounters>);

impl Drop for RunningFetch {
    fn drop(&mut self) {
        self.0.fetches_running.fetch_sub(1, Ordering::Relaxed);
    }
}
