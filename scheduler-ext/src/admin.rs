//! The program's metrics, and whether it can answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use larder_telemetry::admin::{Admin, Histogram, Sample};

use crate::heard::Heard;
use crate::index::state::Snapshot;
use crate::ring::Verb;

/// The ends of the ranges of durations, in microseconds.
const ENDS: [u64; 11] = [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000];

/// How long requests took.
#[derive(Debug, Default)]
pub struct Durations {
    /// One more than there are ends.
    ranges: [AtomicU64; ENDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Durations {
    /// Counts one.
    pub fn count(&self, took: Duration) {
        let range = ENDS.partition_point(|end| Duration::from_micros(*end) < took);
        self.ranges[range].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn histogram(&self, verb: Verb) -> Histogram {
        let mut sum = 0;
        let ends = ENDS.iter().map(|end| *end as f64 / 1e6).chain([f64::INFINITY]);
        let buckets = ends.zip(&self.ranges).map(|(end, range)| {
            sum += range.load(Ordering::Relaxed);
            (end, sum)
        });
        Histogram {
            name: "scheduler_request_seconds",
            labels: format!("verb=\"{}\"", verb.name()),
            buckets: buckets.collect(),
            sum: self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }
}

/// The counters of the program.
#[derive(Debug, Default)]
pub struct Counters {
    /// By verb.
    pub durations: [Durations; Verb::ALL.len()],
    /// When the API last said anything.
    pub heard: Arc<Heard>,
    /// News of the API.
    pub events: AtomicU64,
    /// Requests that are none.
    pub refused: AtomicU64,
    /// Connections that were too many.
    pub connections_refused: AtomicU64,
    /// Decisions that were not kept.
    pub decisions_dropped: AtomicU64,
    /// Requests about pods of which nobody knows what they read.
    pub troubled: AtomicU64,
}

/// The program on the admin server.
#[derive(Debug)]
pub struct Status {
    /// What it counts.
    pub counters: Arc<Counters>,
    /// What it knows.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
}

impl Admin for Status {
    fn ready(&self) -> Result<(), String> {
        if self.snapshot.load().is_complete {
            return Ok(());
        }
        Err("the objects of the cluster are still being listed".to_owned())
    }

    fn samples(&self) -> Vec<Sample> {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (c, snapshot) = (&self.counters, self.snapshot.load());
        [
            ("scheduler_connections_refused_total", number(&c.connections_refused)),
            ("scheduler_decisions_dropped_total", number(&c.decisions_dropped)),
            ("scheduler_watch_events_total", number(&c.events)),
            ("scheduler_watch_age_seconds", c.heard.age().as_secs()),
            ("scheduler_nodes", snapshot.nodes.len() as u64),
            ("scheduler_pods", snapshot.pods.len() as u64),
            ("scheduler_requests_refused_total", number(&c.refused)),
            ("scheduler_unknown_dataset_requests_total", number(&c.troubled)),
        ]
        .map(|(name, value)| Sample { name, value })
        .into()
    }

    fn histograms(&self) -> Vec<Histogram> {
        let durations = self.counters.durations.iter();
        Verb::ALL.into_iter().zip(durations).map(|(verb, durations)| durations.histogram(verb)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use larder_telemetry::METRICS;

    use super::*;

    fn status() -> Status {
        Status { counters: Arc::default(), snapshot: Arc::default() }
    }

    #[test]
    fn what_is_served_is_in_the_table_and_the_other_way_round() {
        let status = status();
        let (samples, histograms) = (status.samples(), status.histograms());
        let samples = samples.iter().map(|sample| sample.name);
        let served: BTreeSet<&str> = samples.chain(histograms.iter().map(|histogram| histogram.name)).collect();
        let names = METRICS.iter().map(|metric| metric.name).filter(|name| name.starts_with("scheduler_"));
        assert_eq!(served, names.collect());
    }

    #[test]
    fn a_duration_counts_up_to_the_end_of_its_range() {
        let durations = Durations::default();
        for micros in [50, 51, 2_000_000] {
            durations.count(Duration::from_micros(micros));
        }
        let histogram = durations.histogram(Verb::Preempt);
        let counts: Vec<u64> = histogram.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3]);
        assert_eq!((histogram.labels.as_str(), histogram.sum), ("verb=\"preempt\"", 2.000101));
    }

    #[test]
    fn it_is_ready_once_all_is_known() {
        let status = status();
        assert!(status.ready().is_err());
        status.snapshot.store(Arc::new(Snapshot { is_complete: true, ..Snapshot::default() }));
        assert_eq!(status.ready(), Ok(()));
    }
}
