//! State shared by all fetches of a dataset: its manifest, its cache, the window, counters and limits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// State shared by all fetches of a dataset.
#[derive(Debug)]
pub(super) struct FetchContext {
    pub(super) manifest: Arc<MappedManifest>,
    pub(super) cache: Arc<DatasetCache>,
    pub(super) window: Arc<Window>,
    pub(super) counters: Arc<StatsCounters>,
    pub(super) config: FetchConfig,
    started: Instant,
    /// When a failure was last logged, in seconds since `started` plus [`LOG_EVERY_SECONDS`]; 0 if never.
    last_logged: AtomicU64,
    /// True once an object was found to have been replaced.
    is_stale: AtomicBool,
    /// How to renew the listing of the dataset, in words.
    renewal: Mutex<String>,
}

impl FetchContext {
    pub(super) fn new(
        manifest: Arc<MappedManifest>,
        cache: Arc<DatasetCache>,
        counters: Arc<StatsCounters>,
        config: FetchConfig,
    ) -> Self {
        // The bytes of a packed block are checked as a whole.
        let window = Arc::new(Window::new(config.window_bytes, !manifest.is_packed()));
        let (started, last_logged) = (Instant::now(), AtomicU64::new(0));
        let (is_stale, renewal) = (AtomicBool::new(false), Mutex::default());
        Self { manifest, cache, window, counters, config, started, last_logged, is_stale, renewal }
    }

    /// Counts a failed fetch. Logs at most one in ten seconds, however many fail, and once what to do about replaced
    /// objects.
    pub(super) fn fetch_failed(&self, block: BlockIndex, error: &FetchError) {
        add(&self.counters.origin_errors, 1);
        if matches!(error, FetchError::Stale { .. }) && !self.is_stale.swap(true, Ordering::Relaxed) {
            warn!(advice = self.stale_advice(), "objects of the snapshot were replaced");
        }
        let now = self.started.elapsed().as_secs() + LOG_EVERY_SECONDS;
        let last = self.last_logged.load(Ordering::Relaxed);
        let is_due = now >= last + LOG_EVERY_SECONDS;
        if is_due && self.last_logged.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let failures = self.counters.origin_errors.load(Ordering::Relaxed);
            warn!(block = block.0, failures, error = %Chain(error), "fetch from origin failed");
        }
    }

    /// Advice about replaced objects, if one was met.
    pub(super) fn stale_advice(&self) -> Option<String> {
        if !self.is_stale.load(Ordering::Relaxed) {
            return None;
        }
        let origin = self.manifest.name_and_origin().map_or("the origin", |(_, origin)| origin);
        let made = if self.manifest.is_packed() { "packed" } else { "listed" };
        let renewal = self.renewal.lock().unwrap_or_else(PoisonError::into_inner);
        Some(format!(
            "objects of {origin} were replaced after they were {made}, and cannot be read (ESTALE): {renewal}"
        ))
    }

    /// Sets what renews the listing, in words.
    pub(super) fn set_renewal(&self, renewal: String) {
        *self.renewal.lock().unwrap_or_else(PoisonError::into_inner) = renewal;
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
