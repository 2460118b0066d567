//! State shared by all fetches of a dataset: its manifest, its cache, the window, counters and limits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use larder_dataset::{BlockIndex, Chain};
use larder_store::DatasetCache;
use tracing::warn;

use super::config::FetchConfig;
use super::error::FetchError;
use crate::counters::{StatsCounters, add};
use crate::log_pace::LogPace;
use crate::manifest_file::MappedManifest;
use crate::memory::{Account, Permit};
use crate::planned::PlannedBlocks;
use crate::stalls::{Phase, PhaseWatch, Stalls};
use crate::window::Window;

/// The middle of the time from now to `deadline`.
pub(super) fn halfway(deadline: tokio::time::Instant) -> tokio::time::Instant {
    let now = tokio::time::Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

/// State shared by all fetches of a dataset.
#[derive(Debug)]
pub(super) struct FetchContext {
    pub(super) manifest: Arc<MappedManifest>,
    pub(super) cache: Arc<DatasetCache>,
    pub(super) window: Arc<Window>,
    /// The blocks that plans have fetched ahead of their readers.
    pub(super) planned: Arc<PlannedBlocks>,
    pub(super) counters: Arc<StatsCounters>,
    /// How long its readers wait.
    pub(super) stalls: Arc<Stalls>,
    pub(super) config: FetchConfig,
    /// Memory for blocks that readers have and that are not in the store yet.
    unwritten: Account,
    failures_log: LogPace,
    unwritten_log: LogPace,
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
        // The window counts its bytes itself, and what it counts in KiB may be more.
        let memory = config.other_account(u64::MAX);
        let window = Arc::new(Window::new(config.window_bytes, !manifest.is_packed(), memory));
        let planned = Arc::new(PlannedBlocks::new(Arc::clone(&counters)));
        let unwritten = config.other_account(config.unwritten_bytes);
        let (failures_log, unwritten_log) = (LogPace::new(), LogPace::new());
        let (is_stale, renewal) = (AtomicBool::new(false), Mutex::default());
        Self {
            manifest,
            cache,
            window,
            planned,
            counters,
            stalls: Arc::default(),
            config,
            unwritten,
            failures_log,
            unwritten_log,
            is_stale,
            renewal,
        }
    }

    /// Has `phase` follow the calls of a fetch to the origin.
    pub(super) fn watch(&self, phase: &Arc<Phase>) -> Arc<PhaseWatch> {
        let (stalls, phase, counters) = (Arc::clone(&self.stalls), Arc::clone(phase), Arc::clone(&self.counters));
        Arc::new(PhaseWatch { stalls, phase, counters })
    }

    /// When a read or a fetch that begins now ends at the latest.
    pub(super) fn deadline(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.config.read_deadline
    }

    /// The error of a fetch or a read whose deadline has passed.
    pub(super) fn timed_out(&self, block: BlockIndex) -> FetchError {
        FetchError::TimedOut { block, deadline: self.config.read_deadline }
    }

    /// Memory for `kib` KiB of a complete block until the store has written it. None: too many blocks wait for the
    /// store already, which is counted. A reader must not wait for the disk, so this block is not kept.
    pub(super) fn memory_until_written(&self, kib: u32) -> Option<Permit> {
        let memory = self.unwritten.try_acquire(kib);
        if memory.is_none() {
            self.cache.count_unwritten();
            if !self.cache.is_rebuilding() && self.unwritten_log.is_due() {
                warn!(
                    "the cache's disk writes more slowly than blocks arrive, or --memory-target is too small: they are \
                     served and not kept"
                );
            }
        }
        memory
    }

    /// True if the cache's disk takes blocks about as fast as they arrive.
    pub(super) fn disk_keeps_up(&self) -> bool {
        self.unwritten.leaves_half(0)
    }

    /// Counts a failed fetch. Logs at most one in ten seconds, however many fail, and once what to do about replaced
    /// objects.
    pub(super) fn fetch_failed(&self, block: BlockIndex, error: &FetchError) {
        add(&self.counters.origin_errors, 1);
        if matches!(error, FetchError::Stale { .. }) && !self.is_stale.swap(true, Ordering::Relaxed) {
            warn!(advice = self.stale_advice(), "objects of the snapshot were replaced");
        }
        if self.failures_log.is_due() {
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
