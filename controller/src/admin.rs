//! The controller's metrics, and whether it can do its job.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use larder_controller_api::Phase;
use larder_telemetry::admin::{Admin, Labelled, Sample};

use crate::job::known::Jobs;
use crate::write::Write;

/// The counters of a controller.
#[derive(Debug, Default)]
pub struct Counters {
    /// This process holds the lease.
    pub leading: AtomicBool,
    /// It knows all objects.
    pub synced: AtomicBool,
    /// Decisions about a dataset.
    pub decisions: AtomicU64,
    /// Writes to the API, by resource and verb.
    pub writes: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    /// Writes that the API refused or did not answer.
    pub write_errors: AtomicU64,
    /// Objects that could not be read.
    pub unreadable: AtomicU64,
    /// Looks at all training jobs.
    pub rounds: AtomicU64,
    /// Training jobs that have no room yet.
    pub jobs_waiting: AtomicU64,
    /// Training jobs that have room.
    pub jobs_running: AtomicU64,
    /// Datasets that there are.
    pub datasets: AtomicU64,
    /// Those of them that are ready.
    pub datasets_ready: AtomicU64,
}

impl Counters {
    /// Counts the training jobs.
    pub fn count_jobs(&self, jobs: &Jobs) {
        let (mut waiting, mut running) = (0, 0);
        for memory in jobs.memories.values() {
            let state = &memory.record.state;
            waiting += u64::from(state.phase == Phase::Queued);
            running += u64::from(state.holds_room());
        }
        self.jobs_waiting.store(waiting, Ordering::Relaxed);
        self.jobs_running.store(running, Ordering::Relaxed);
    }

    /// Counts a write.
    pub fn count(&self, write: &Write) {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        *writes.entry((write.resource(), write.verb())).or_default() += 1;
    }
}

/// The controller on the admin server.
#[derive(Debug)]
pub struct Status(pub Arc<Counters>);

impl Admin for Status {
    /// A replica that waits for the lease is ready too: it can take over.
    fn ready(&self) -> Result<(), String> {
        let counters = &self.0;
        if counters.leading.load(Ordering::Relaxed) && !counters.synced.load(Ordering::Relaxed) {
            return Err("the objects of the cluster are still being listed".to_owned());
        }
        Ok(())
    }

    fn samples(&self) -> Vec<Sample> {
        let c = &self.0;
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("controller_datasets", number(&c.datasets)),
            ("controller_datasets_ready", number(&c.datasets_ready)),
            ("controller_decisions_total", number(&c.decisions)),
            ("controller_job_rounds_total", number(&c.rounds)),
            ("controller_jobs_running", number(&c.jobs_running)),
            ("controller_jobs_waiting", number(&c.jobs_waiting)),
            ("controller_leading", u64::from(c.leading.load(Ordering::Relaxed))),
            ("controller_unreadable_total", number(&c.unreadable)),
            ("controller_write_errors_total", number(&c.write_errors)),
        ]
        .map(|(name, value)| Sample { name, value })
        .into()
    }

    fn labelled(&self) -> Vec<Labelled> {
        let writes = self.0.writes.lock().unwrap_or_else(PoisonError::into_inner);
        let all = writes.iter().map(|((resource, verb), value)| Labelled {
            name: "controller_writes_total",
            labels: format!("verb=\"{verb}\",resource=\"{resource}\""),
            value: *value,
        });
        all.collect()
    }
}
