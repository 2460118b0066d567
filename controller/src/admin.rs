//! The controller's metrics, and its readiness.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use larder_api::Phase;
use larder_api::quantity::amount;
use larder_api::queue::flavor::split;
use larder_telemetry::admin::Admin;
use larder_telemetry::{Heartbeat, Sample, Value};

use crate::jobs::counts::{Counts, WAIT_ENDS};
use crate::jobs::index::Jobs;
use crate::jobs::machine::Cause;
use crate::jobs::objects::QueueObject;
use crate::jobs::queues::Report;
use crate::write::Write;

/// The most namespaces with a queue that the metrics name.
const NAMED_MOST: usize = 200;

/// The name of all others in the metrics.
const OTHER: &str = "_other";

/// The training jobs of a queue that wait for room, and those that have it.
type JobCounts = [u64; 2];

#[derive(Debug, Default)]
pub struct Counters {
    /// Of the loop that acts, or waits for the Lease.
    pub heartbeat: Heartbeat,
    /// This process holds the Lease.
    pub leading: AtomicBool,
    /// All objects have been listed.
    pub synced: AtomicBool,
    /// Decisions about datasets.
    pub decisions: AtomicU64,
    /// Writes to the API, by resource and verb.
    pub writes: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    /// Writes that the API rejected or did not answer.
    pub write_errors: AtomicU64,
    /// Objects that could not be parsed.
    pub unreadable: AtomicU64,
    /// Rounds over all training jobs.
    pub rounds: AtomicU64,
    /// Training jobs that wait for room.
    pub jobs_waiting: AtomicU64,
    /// Training jobs that have room.
    pub jobs_running: AtomicU64,
    /// Since when the longest-waiting job has been waiting, in seconds since 1970; 0 if no job waits.
    pub oldest_waiting: AtomicU64,
    /// The training jobs by namespace and queue. Jobs without a queue have an empty one.
    pub jobs_by_queue: Mutex<BTreeMap<(String, String), JobCounts>>,
    /// The counters of training jobs' steps.
    pub steps: Mutex<Counts>,
    /// The queues of training jobs, by name.
    pub queues: Mutex<BTreeMap<String, QueueFigures>>,
    /// Existing datasets.
    pub datasets: AtomicU64,
    /// Datasets that are ready.
    pub datasets_ready: AtomicU64,
}

/// The figures of a queue.
#[derive(Clone, Debug, Default)]
pub struct QueueFigures {
    waiting: u64,
    running: u64,
    /// Since when the longest-waiting job has been waiting, in seconds since 1970; 0 if no job waits.
    oldest_waiting: u64,
    /// The nominal quota and the usage, by the names of resources and of resources of flavors.
    amounts: BTreeMap<String, (u64, u64)>,
    /// The counters of its jobs' steps.
    steps: Counts,
}

impl QueueFigures {
    /// The figures of a round, without those of single jobs.
    fn new(object: &QueueObject, report: &Report) -> Self {
        let used = |name: &str| {
            let (resource, flavor) = split(name);
            let all = match flavor {
                Some(flavor) => report.status.flavors.get(flavor),
                None => Some(&report.status.usage),
            };
            all.and_then(|all| amount(resource, &all.get(resource)?.used)).unwrap_or(0)
        };
        let quota = object.queue.iter().flat_map(|checked| &checked.quota);
        Self {
            waiting: report.status.waiting.into(),
            running: report.status.running.into(),
            oldest_waiting: 0,
            amounts: quota.map(|(name, quota)| (name.clone(), (quota.nominal, used(name)))).collect(),
            steps: Counts::default(),
        }
    }

    fn samples(&self, queue: &str, now: u64) -> Vec<Sample> {
        let mut samples: Vec<Sample> = [
            ("controller_queue_jobs_running", self.running),
            ("controller_queue_jobs_waiting", self.waiting),
            ("controller_queue_oldest_wait_seconds", age(self.oldest_waiting, now)),
            ("controller_queue_preemptions_total", self.steps.preemptions),
            ("controller_queue_starts_total", self.steps.starts),
            ("controller_queue_wait_seconds_total", self.steps.waited_seconds),
        ]
        .map(|(name, value)| Sample::with(name, [("queue", queue)], value))
        .into();
        for (name, (nominal, used)) in &self.amounts {
            let (resource, flavor) = split(name);
            let labels = [("queue", queue), ("resource", resource), ("flavor", flavor.unwrap_or_default())];
            samples.push(Sample::with("controller_queue_borrowed", labels, used.saturating_sub(*nominal)));
            samples.push(Sample::with("controller_queue_quota", labels, *nominal));
            samples.push(Sample::with("controller_queue_used", labels, *used));
        }
        samples
    }
}

impl Counters {
    pub fn count_jobs(&self, jobs: &Jobs) {
        let figures = |object: &QueueObject| {
            let report = jobs.queue_reports.get(&object.meta.key.name)?;
            Some((object.meta.key.name.clone(), QueueFigures::new(object, report)))
        };
        let mut queues: BTreeMap<String, QueueFigures> = jobs.queues.iter().filter_map(figures).collect();
        let (mut waiting, mut running, mut oldest) = (0, 0, None::<u64>);
        let mut by_queue: BTreeMap<(String, String), JobCounts> = BTreeMap::new();
        for (key, job_state) in &jobs.job_states {
            let state = &job_state.record.state;
            let counts = [u64::from(state.phase == Phase::Queued), u64::from(state.holds_room())];
            waiting += counts[0];
            running += counts[1];
            if counts != [0, 0] {
                let named = (key.namespace.clone(), job_state.queue.clone());
                let is_full = by_queue.len() >= NAMED_MOST && !by_queue.contains_key(&named);
                let named = if is_full { (OTHER.to_owned(), OTHER.to_owned()) } else { named };
                by_queue.entry(named).or_default().iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
            // An invalid job waits for its user, not for room.
            let is_valid = job_state.waiting.is_some() && job_state.undecided_since.is_none();
            if state.phase == Phase::Queued && is_valid {
                let since = u64::try_from(state.since.0).unwrap_or(0);
                oldest = Some(oldest.map_or(since, |oldest| oldest.min(since)));
                if let Some(queue) = queues.get_mut(&job_state.queue) {
                    let before = Some(queue.oldest_waiting).filter(|before| *before > 0);
                    queue.oldest_waiting = before.map_or(since, |before| before.min(since));
                }
            }
        }
        let mut before = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, queue) in &mut queues {
            queue.steps = before.remove(name).unwrap_or_default().steps;
        }
        *before = queues;
        drop(before);
        *self.jobs_by_queue.lock().unwrap_or_else(PoisonError::into_inner) = by_queue;
        self.oldest_waiting.store(oldest.unwrap_or(0), Ordering::Relaxed);
        self.jobs_waiting.store(waiting, Ordering::Relaxed);
        self.jobs_running.store(running, Ordering::Relaxed);
    }

    /// Counts the steps of a job in a queue; empty for none.
    pub fn count_steps(&self, queue: &str, counts: &Counts) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).add(counts);
        if let Some(queue) = self.queues.lock().unwrap_or_else(PoisonError::into_inner).get_mut(queue) {
            queue.steps.add(counts);
        }
    }

    pub fn count(&self, write: &Write) {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        *writes.entry((write.resource(), write.verb())).or_default() += 1;
    }
}

/// The controller, as the admin server sees it.
#[derive(Debug)]
pub struct Status(pub Arc<Counters>);

impl Admin for Status {
    fn healthy(&self) -> Result<(), String> {
        let is_leading = self.0.leading.load(Ordering::Relaxed);
        self.0.heartbeat.check(if is_leading { "the loop that acts" } else { "the loop that waits for the Lease" })
    }

    /// A replica that waits for the Lease is ready too, because it can take over.
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
        let steps = c.steps.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let lost = Cause::ALL.into_iter().zip(steps.lost);
        let lost =
            lost.map(|(cause, value)| Sample::with("controller_job_restarts_total", [("cause", cause.field())], value));
        let ends = WAIT_ENDS.map(|end| end as f64).into_iter().chain([f64::INFINITY]);
        let waits = Value::Histogram {
            buckets: ends.zip(steps.waits).collect(),
            sum: Duration::from_secs(steps.waited_seconds),
        };
        let waits = Sample::of("controller_job_queue_seconds", [], waits);
        let writes = c.writes.lock().unwrap_or_else(PoisonError::into_inner);
        let writes = writes.iter().map(|((resource, verb), value)| {
            Sample::with("controller_writes_total", [("verb", *verb), ("resource", *resource)], *value)
        });
        let now = now();
        [
            ("controller_datasets", number(&c.datasets)),
            ("controller_datasets_ready", number(&c.datasets_ready)),
            ("controller_decisions_total", number(&c.decisions)),
            ("controller_job_oldest_wait_seconds", age(number(&c.oldest_waiting), now)),
            ("controller_job_preemptions_total", steps.preemptions),
            ("controller_job_rounds_total", number(&c.rounds)),
            ("controller_job_starts_total", steps.starts),
            ("controller_job_wait_seconds_total", steps.waited_seconds),
            ("controller_jobs_running", number(&c.jobs_running)),
            ("controller_jobs_waiting", number(&c.jobs_waiting)),
            ("controller_leading", u64::from(c.leading.load(Ordering::Relaxed))),
            ("controller_unreadable_total", number(&c.unreadable)),
            ("controller_write_errors_total", number(&c.write_errors)),
        ]
        .map(|(name, value)| Sample::new(name, value))
        .into_iter()
        .chain(lost)
        .chain(writes)
        .chain([waits])
        .chain(self.jobs(false))
        .collect()
    }

    fn named_samples(&self) -> Vec<Sample> {
        let mut samples = self.samples();
        samples.retain(|sample| sample.name != JOBS);
        samples.extend(self.jobs(true));
        let (queues, now) = (self.0.queues.lock().unwrap_or_else(PoisonError::into_inner), now());
        samples.extend(queues.iter().flat_map(|(name, queue)| queue.samples(name, now)));
        samples
    }
}

/// The metric that has the names of queues for scrapers that may see them.
const JOBS: &str = "controller_jobs";

impl Status {
    /// The training jobs by state, with the names of their queues or without.
    fn jobs(&self, with_names: bool) -> Vec<Sample> {
        let by_queue = self.0.jobs_by_queue.lock().unwrap_or_else(PoisonError::into_inner);
        let sample = |state, labels: [(&'static str, &str); 2], count| {
            let mut sample = Sample::with(JOBS, [("state", state)], count);
            let labels = labels.iter().map(|(label, value)| (*label, (*value).to_owned()));
            sample.labels.extend(labels.filter(|_| with_names));
            sample
        };
        let samples = |(namespace, queue): (&str, &str), [queued, running]: JobCounts| {
            let labels = [("namespace", namespace), ("queue", queue)];
            [sample("queued", labels, queued), sample("running", labels, running)]
        };
        if with_names {
            let named =
                by_queue.iter().flat_map(|((namespace, queue), it)| samples((namespace.as_str(), queue.as_str()), *it));
            return named.collect();
        }
        let all = by_queue.values().fold([0, 0], |sum, it| [sum[0] + it[0], sum[1] + it[1]]);
        samples(("", ""), all).into()
    }
}

/// The current time in seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The time since `since`; 0 if `since` is 0.
fn age(since: u64, now: u64) -> u64 {
    if since == 0 { 0 } else { now.saturating_sub(since) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use larder_telemetry::METRICS;

    use super::*;
    use crate::write::Change;
    use larder_kube::kinds::Kind;

    #[test]
    fn served_metrics_are_those_of_the_table() {
        let status = Status(Arc::new(Counters::default()));
        status.0.count(&Write::new(Kind::Pod, "team-a", "train", Change::Delete(String::new())));
        let amounts = [("nvidia.com/gpu h100".to_owned(), (4, 6))].into();
        let figures = QueueFigures { running: 1, amounts, ..QueueFigures::default() };
        status.0.queues.lock().unwrap().insert("vision".to_owned(), figures);
        status.0.jobs_by_queue.lock().unwrap().insert(("team-a".to_owned(), "vision".to_owned()), [1, 2]);
        let samples = status.named_samples();
        let served: BTreeSet<&str> = samples.iter().map(|sample| sample.name).collect();
        let names = METRICS.iter().map(|metric| metric.name).filter(|name| name.starts_with("controller_"));
        assert_eq!(served, names.collect());
        let labels = [("queue", "vision"), ("resource", "nvidia.com/gpu"), ("flavor", "h100")];
        assert!(samples.contains(&Sample::with("controller_queue_borrowed", labels, 2)));
    }

    // SEMANTICS: P9
    #[test]
    fn queues_have_names_only_for_those_who_may_see_them() {
        let status = Status(Arc::new(Counters::default()));
        let named = |namespace: &str, queue: &str| (namespace.to_owned(), queue.to_owned());
        let by_queue = BTreeMap::from([(named("team-a", "gpus"), [2, 1]), (named("team-b", ""), [3, 0])]);
        *status.0.jobs_by_queue.lock().unwrap() = by_queue;
        status.0.queues.lock().unwrap().insert("gpus".to_owned(), QueueFigures::default());
        let open = status.samples();
        assert!(!["team-a", "gpus"].iter().any(|name| format!("{open:?}").contains(name)));
        let jobs = |samples: Vec<Sample>| samples.into_iter().filter(|it| it.name == JOBS).collect::<Vec<_>>();
        let of = |state, count| Sample::with(JOBS, [("state", state)], count);
        assert_eq!(jobs(open), [of("queued", 5), of("running", 1)]);
        let labels = |state, namespace, queue| [("state", state), ("namespace", namespace), ("queue", queue)];
        let of = |state, namespace, queue, count| Sample::with(JOBS, labels(state, namespace, queue), count);
        assert_eq!(
            jobs(status.named_samples()),
            [
                of("queued", "team-a", "gpus", 2),
                of("running", "team-a", "gpus", 1),
                of("queued", "team-b", "", 3),
                of("running", "team-b", "", 0)
            ]
        );
    }

    #[test]
    fn waits_of_started_jobs_are_counted_by_range() {
        let mut counts = Counts::default();
        counts.waits[WAIT_ENDS.partition_point(|end| *end < 60)] += 1;
        counts.waited_seconds += 60;
        let status = Status(Arc::new(Counters::default()));
        status.0.count_steps("", &counts);
        status.0.count_steps("", &counts);
        let samples = status.samples();
        let waits = samples.iter().find(|sample| sample.name == "controller_job_queue_seconds").unwrap();
        let Value::Histogram { buckets, sum } = &waits.value else { panic!() };
        assert_eq!((buckets[3], buckets.last().unwrap().1, *sum), ((60.0, 2), 0, Duration::from_secs(120)));
    }

    #[test]
    fn the_longest_wait_has_no_age_if_nothing_waits() {
        assert_eq!([age(0, 100), age(40, 100), age(101, 100)], [0, 60, 0]);
    }
}
