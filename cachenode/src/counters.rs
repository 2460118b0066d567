//! The counters of an open dataset and of the store, by name. They are passed in, so that metrics and tests read the
//! same numbers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_origin::{Attempt, Scheme};
use larder_store::StoreCounters;
use larder_telemetry::{Histogram, Sample, Value};

/// Where a read found its bytes. The slowest is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// In the store.
    Store,
    /// In memory.
    Window,
    /// At a peer.
    Peer,
    /// At the origin.
    Origin,
}

impl Source {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Store, Self::Window, Self::Peer, Self::Origin];

    /// Its name in metrics and statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Window => "window",
            Self::Peer => "peer",
            Self::Origin => "origin",
        }
    }
}

/// The names of the errors that reads are answered with. The last is of all others.
const CODES: [&str; 6] = ["ENOENT", "ESTALE", "EACCES", "ETIMEDOUT", "EIO", "other"];

/// Counters of one dataset, by the names of `telemetry`'s table.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "each is described in telemetry's table of metrics")]
pub struct StatsCounters {
    pub reads: AtomicU64,
    pub lookups: AtomicU64,
    pub getattrs: AtomicU64,
    pub listings: AtomicU64,
    pub read_times: [Histogram; Source::ALL.len()],
    errors: AtomicU64,
    errors_by_code: [AtomicU64; CODES.len()],
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
    pub origin_answers: [Histogram; Attempt::ALL.len()],
    pub origin_retries: [AtomicU64; Attempt::ALL.len()],
    pub passes: AtomicU64,
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
    /// Counts a read that was answered with bytes of this source, the slowest that it needed.
    pub(crate) fn answered(&self, source: Source, took: Duration) {
        self.read_times[source as usize].count(took);
    }

    /// Counts a read that was answered with the error of this name.
    pub fn failed(&self, code: &str) {
        add(&self.errors, 1);
        let number = CODES.iter().position(|other| *other == code).unwrap_or(CODES.len() - 1);
        add(&self.errors_by_code[number], 1);
    }

    /// The reads that were answered with an error.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// The bytes that were read from each source.
    pub(crate) fn read_bytes(&self) -> [u64; Source::ALL.len()] {
        let bytes = [&self.read_bytes_store, &self.read_bytes_window, &self.read_bytes_peer, &self.read_bytes_origin];
        bytes.map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// The retries after each outcome that is a failure, by name.
    pub(crate) fn retries(&self) -> [(&'static str, u64); Attempt::ALL.len() - 1] {
        [Attempt::Throttled, Attempt::TimedOut, Attempt::Failed]
            .map(|attempt| (attempt.name(), self.origin_retries[attempt as usize].load(Ordering::Relaxed)))
    }

    /// How long reads waited for planned blocks, summed over the reads.
    pub(crate) fn plan_stalls(&self) -> Duration {
        Duration::from_micros(self.plan_stalled_microseconds.load(Ordering::Relaxed))
    }

    /// The counters that have labels, or that are not whole numbers.
    pub(crate) fn labelled(&self) -> Vec<Sample> {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut samples = Vec::new();
        for (source, bytes) in Source::ALL.into_iter().zip(self.read_bytes()) {
            let tier = [("tier", source.name())];
            samples.push(Sample::with("read_bytes_total", tier, bytes));
            samples.push(Sample::with("reads_total", tier, self.read_times[source as usize].now().count()));
        }
        for (code, errors) in CODES.into_iter().zip(&self.errors_by_code) {
            samples.push(Sample::with("read_errors_total", [("code", code)], number(errors)));
        }
        for (reason, retries) in self.retries() {
            samples.push(Sample::with("origin_retries_total", [("reason", reason)], retries));
        }
        samples.push(Sample::new("passes_total", number(&self.passes)));
        samples.push(Sample::of("plan_stall_seconds_total", [], Value::Time(self.plan_stalls())));
        samples
    }

    /// The requests of the kernel, and the histograms, which never have the name of a dataset. `scheme`: of the origin.
    pub(crate) fn times(&self, scheme: Scheme) -> Vec<Sample> {
        let requests = [
            ("lookup", &self.lookups),
            ("getattr", &self.getattrs),
            ("readdir", &self.listings),
            ("read", &self.reads),
        ];
        let requests = requests
            .map(|(verb, counter)| Sample::with("requests_total", [("verb", verb)], counter.load(Ordering::Relaxed)));
        let reads = Source::ALL.into_iter().zip(&self.read_times);
        let reads = reads.map(|(source, times)| times.sample("read_seconds", [("tier", source.name())]));
        let answers = Attempt::ALL.into_iter().zip(&self.origin_answers).map(|(attempt, times)| {
            times.sample("origin_request_seconds", [("scheme", scheme.as_str()), ("result", attempt.name())])
        });
        requests.into_iter().chain(reads).chain(answers).collect()
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_their_codes_and_all_of_them_together() {
        let counters = StatsCounters::default();
        ["EIO", "ESTALE", "EIO", "ENOTDIR", ""].into_iter().for_each(|code| counters.failed(code));
        assert_eq!(counters.errors(), 5);
        let of = |code, errors| Sample::with("read_errors_total", [("code", code)], errors);
        let samples = counters.labelled();
        for sample in [of("EIO", 2), of("ESTALE", 1), of("ENOENT", 0), of("other", 2)] {
            assert!(samples.contains(&sample), "{sample:?}");
        }
    }

    #[test]
    fn each_source_has_its_own_number_and_the_slowest_is_the_last() {
        for (number, source) in Source::ALL.into_iter().enumerate() {
            assert_eq!(source as usize, number);
        }
        assert!(Source::ALL.is_sorted());
    }
}
