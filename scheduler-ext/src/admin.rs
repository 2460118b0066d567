//! The program's metrics, and its readiness.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use larder_telemetry::admin::Admin;
use larder_telemetry::{Heartbeat, Histogram, Sample};

use crate::index::state::Snapshot;
use crate::ring::Verb;
use crate::watch_age::WatchAge;

#[derive(Debug, Default)]
pub struct Counters {
    /// Of the loop that publishes snapshots.
    pub heartbeat: Heartbeat,
    /// The duration of answers, by verb.
    pub durations: [Histogram; Verb::ALL.len()],
    /// When the API last sent data.
    pub watch_age: Arc<WatchAge>,
    /// Events from the API.
    pub events: AtomicU64,
    /// Requests that were rejected as malformed.
    pub refused: AtomicU64,
    /// Connections that newer ones replaced at the limit.
    pub connections_replaced: AtomicU64,
    /// Decisions that were not kept.
    pub decisions_dropped: AtomicU64,
    /// Requests about pods whose datasets could not be determined.
    pub troubled: AtomicU64,
}

/// The program, as the admin server sees it.
#[derive(Debug)]
pub struct Status {
    pub counters: Arc<Counters>,
    pub snapshot: Arc<ArcSwap<Snapshot>>,
}

impl Admin for Status {
    fn healthy(&self) -> Result<(), String> {
        self.counters.heartbeat.check("the loop that follows the cluster")
    }

    fn ready(&self) -> Result<(), String> {
        if self.snapshot.load().is_complete {
            return Ok(());
        }
        Err("the objects of the cluster are still being listed".to_owned())
    }

    fn samples(&self) -> Vec<Sample> {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (c, snapshot) = (&self.counters, self.snapshot.load());
        let verbs = Verb::ALL.into_iter().zip(&c.durations);
        let verbs = verbs.map(|(verb, took)| took.sample("scheduler_request_seconds", [("verb", verb.name())]));
        [
            ("scheduler_connections_refused_total", number(&c.connections_replaced)),
            ("scheduler_decisions_dropped_total", number(&c.decisions_dropped)),
            ("scheduler_watch_events_total", number(&c.events)),
            ("scheduler_watch_age_seconds", c.watch_age.age().as_secs()),
            ("scheduler_nodes", snapshot.nodes.len() as u64),
            ("scheduler_pods", snapshot.pods.len() as u64),
            ("scheduler_requests_refused_total", number(&c.refused)),
            ("scheduler_unknown_dataset_requests_total", number(&c.troubled)),
        ]
        .map(|(name, value)| Sample::new(name, value))
        .into_iter()
        .chain(verbs)
        .collect()
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
    fn served_metrics_are_those_of_the_table() {
        let status = status();
        let samples = status.samples();
        let served: BTreeSet<&str> = samples.iter().map(|sample| sample.name).collect();
        let names = METRICS.iter().map(|metric| metric.name).filter(|name| name.starts_with("scheduler_"));
        assert_eq!(served, names.collect());
    }

    #[test]
    fn it_is_ready_once_all_is_known() {
        let status = status();
        assert!(status.ready().is_err());
        status.snapshot.store(Arc::new(Snapshot { is_complete: true, ..Snapshot::default() }));
        assert_eq!(status.ready(), Ok(()));
    }
}
