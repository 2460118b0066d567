//! The counters of an open dataset and of the store, by name. They are passed in, so that metrics and tests read the
//! same numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use larder_store::StoreCounters;

/// Counters of one dataset, by the names of `telemetry`'s table.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "each is described in telemetry's table of metrics")]
pub struct StatsCounters {
    pub reads: AtomicU64,
    pub lookups: AtomicU64,
    pub errors: AtomicU64,
    pub stale: AtomicU64,
    pub panics: AtomicU64,
    pub read_bytes_store: AtomicU64,
    pub read_bytes_window: AtomicU64,
    pub read_bytes_origin: AtomicU64,
    pub read_bytes_peer: AtomicU64,
    pub peer_errors: AtomicU64,
    pub peer_hedges: AtomicU64,
    pub peer_hedges_won: AtomicU64,
    pub peer_served: AtomicU64,
    pub peer_served_bytes: AtomicU64,
    pub origin_gets: AtomicU64,
    pub origin_bytes: AtomicU64,
    pub origin_errors: AtomicU64,
    pub fetches_running: AtomicU64,
    pub plan_blocks_in_time: AtomicU64,
    pub plan_blocks_late: AtomicU64,
    pub plan_blocks_wasted: AtomicU64,
    pub plan_blocks_in_page_cache: AtomicU64,
    pub plan_wasted_bytes: AtomicU64,
    pub plan_stalled_microseconds: AtomicU64,
}

/// Adds `n`. Counters order nothing, so relaxed is enough.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl StatsCounters {
    /// Name and value of each one that only grows.
    pub(crate) fn totals(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.values().filter(|(name, _)| name.ends_with("_total"))
    }

    /// Name and value of each one, gauges included.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("fs_reads_total", &self.reads),
            ("fs_lookups_total", &self.lookups),
            ("fs_errors_total", &self.errors),
            ("fs_stale_total", &self.stale),
            ("fs_panics_total", &self.panics),
            ("fs_read_bytes_store_total", &self.read_bytes_store),
            ("fs_read_bytes_window_total", &self.read_bytes_window),
            ("fs_read_bytes_origin_total", &self.read_bytes_origin),
            ("fs_read_bytes_peer_total", &self.read_bytes_peer),
            ("fs_peer_errors_total", &self.peer_errors),
            ("fs_peer_hedges_total", &self.peer_hedges),
            ("fs_peer_hedges_won_total", &self.peer_hedges_won),
            ("fs_peer_served_total", &self.peer_served),
            ("fs_peer_served_bytes_total", &self.peer_served_bytes),
            ("fs_origin_gets_total", &self.origin_gets),
            ("fs_origin_bytes_total", &self.origin_bytes),
            ("fs_origin_errors_total", &self.origin_errors),
            ("fs_fetches_running", &self.fetches_running),
            ("fs_plan_blocks_in_time_total", &self.plan_blocks_in_time),
            ("fs_plan_blocks_late_total", &self.plan_blocks_late),
            ("fs_plan_blocks_wasted_total", &self.plan_blocks_wasted),
            ("fs_plan_blocks_in_page_cache_total", &self.plan_blocks_in_page_cache),
            ("fs_plan_wasted_bytes_total", &self.plan_wasted_bytes),
            ("fs_plan_stalled_microseconds_total", &self.plan_stalled_microseconds),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
        .into_iter()
    }
}

/// Counters of the mirrors of all datasets of a node.
#[derive(Debug, Default)]
pub(crate) struct MirrorCounters {
    pub(crate) gets: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Objects that a mirror lacked or had in another version.
    pub(crate) missing: AtomicU64,
    /// How often an origin was left.
    pub(crate) left: AtomicU64,
}

impl MirrorCounters {
    /// Name and value of each.
    pub(crate) fn values(&self) -> [(&'static str, u64); 4] {
        [
            ("fs_mirror_gets_total", &self.gets),
            ("fs_mirror_bytes_total", &self.bytes),
            ("fs_mirror_missing_total", &self.missing),
            ("fs_origins_left_total", &self.left),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}

/// The store's counters over all of its datasets, by name.
pub fn store_values(store: &StoreCounters) -> [(&'static str, u64); 13] {
    [
        ("store_adopted_total", store.adopted.get()),
        ("store_adopted_bytes_total", store.adopted_bytes.get()),
        ("store_admitted_total", store.admitted.get()),
        ("store_admitted_bytes_total", store.admitted_bytes.get()),
        ("store_refused_total", store.refused.get()),
        ("store_unwritten_total", store.unwritten.get()),
        ("store_disowned_total", store.disowned.get()),
        ("store_evicted_total", store.evicted.get()),
        ("store_corrupt_total", store.corrupt()),
        ("store_read_errors_total", store.read_errors.get()),
        ("store_write_errors_total", store.write_errors.get()),
        ("store_index_dropped_total", store.index_dropped.get()),
        ("store_index_errors_total", store.index_errors.get()),
    ]
}
