//! The measurements of a dataset: for its metrics, its statistics and its passes.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_origin::{Attempt, Scheme};
use larder_telemetry::{Sample, Value};
use tokio::time::Instant;

use super::Dataset;
use crate::counters::{Source, add};
use crate::history::PassRecord;
use crate::kept_listing::age_of;
use crate::passes::{Cached, Counted, Moment, Pass};
use crate::stalls::Cause;
use crate::stats::{StallStats, TimesStats};

impl Dataset {
    /// Counters that may have the name of the dataset as a label.
    pub(crate) fn labelled(&self) -> Vec<Sample> {
        let stalls = Cause::ALL.into_iter().zip(self.stalls().times());
        let stalls =
            stalls.map(|(cause, time)| Sample::of("stall_seconds_total", [("cause", cause.name())], Value::Time(time)));
        self.counters.labelled().into_iter().chain(stalls).collect()
    }

    /// Counters and histograms that never have it.
    pub(crate) fn times(&self) -> Vec<Sample> {
        self.counters.times(self.scheme())
    }

    /// Gauges that are of no interest without the name of the dataset.
    pub(crate) fn named_gauges(&self) -> Vec<Sample> {
        let usage = self.cache.usage();
        let ratio = |name, ratio| Sample::of(name, [], Value::Fraction(ratio));
        let mut gauges = vec![
            Sample::new("dataset_bytes", self.manifest.totals().bytes),
            Sample::new("cache_capacity_bytes", usage.capacity_bytes),
            Sample::new("cache_wanted_bytes", usage.wanted_bytes),
            Sample::new("cache_used_bytes", usage.used_bytes),
            Sample::new("cache_degraded", usage.degraded.is_some().into()),
            Sample::new("listing_age_seconds", age_of(self.manifest.created_ns()).as_secs()),
        ];
        if let Some(pass) = self.passes().last() {
            gauges.extend(pass.hit_ratio.map(|hits| ratio("pass_hit_ratio", hits)));
            gauges.extend((!pass.fills_cache()).then(|| ratio("pass_promised_ratio", pass.promised_ratio)));
        }
        gauges
    }

    /// The number of reads that are not answered yet, and how long the first of them has waited.
    pub(crate) fn waiting(&self) -> (u64, Duration) {
        let (reads, oldest) = self.stalls().waiting();
        (reads as u64, oldest)
    }

    /// Notes that requests have waited since `began` because all threads of the mount were busy.
    pub fn was_busy(&self, began: Instant) {
        self.stalls().waited(Cause::Kernel, began);
    }

    /// The READ requests since the last call.
    pub(crate) fn new_reads(&self) -> u64 {
        let reads = self.counters.reads.load(Ordering::Relaxed);
        reads.saturating_sub(self.seen_reads.swap(reads, Ordering::Relaxed))
    }

    /// Counts for how long its readers waited, and looks whether a pass has ended. Called about once a second.
    /// `without_cpu`: for how long the threads that serve them had no CPU since the last call.
    pub(crate) fn look_at_readers(&self, without_cpu: Duration) -> Option<PassRecord> {
        self.stalls().look(without_cpu);
        let ended = self.passes().look(Moment::now(), self.counted(), self.cached())?;
        add(&self.counters.passes, 1);
        Some(self.record(ended))
    }

    /// Ends the pass that is running, because the dataset is being closed.
    pub(crate) fn cut_pass(&self) -> Option<PassRecord> {
        self.stalls().look(Duration::ZERO);
        let cut = self.passes().cut(Moment::now(), self.counted(), self.cached())?;
        add(&self.counters.passes, cut.complete.into());
        Some(self.record(cut))
    }

    fn record(&self, pass: Pass) -> PassRecord {
        let summary = self.summary();
        PassRecord {
            cache: summary.cache().to_owned(),
            name: summary.name,
            origin: summary.origin,
            snapshot: summary.snapshot,
            policy: self.cache.usage().policy.to_string(),
            ended_unix_seconds: Moment::now().unix_seconds,
            pass,
        }
    }

    /// The last passes, and the one that is running.
    pub(super) fn all_passes(&self) -> Vec<Pass> {
        self.passes().all(Moment::now(), &self.counted())
    }

    /// The `stalls` section of `.larder/stats.json`.
    pub(super) fn stall_stats(&self) -> StallStats {
        let by_cause: BTreeMap<Cause, f64> = Cause::ALL
            .into_iter()
            .zip(self.stalls().times())
            .map(|(cause, time)| (cause, time.as_secs_f64()))
            .collect();
        let (reads_waiting, oldest) = self.waiting();
        let seconds = by_cause.values().sum();
        StallStats {
            seconds,
            by_cause,
            reads_waiting,
            oldest_wait_seconds: oldest.as_secs_f64(),
            plan_seconds: self.counters.plan_stalls().as_secs_f64(),
        }
    }

    /// The `reads` section.
    pub(super) fn read_stats(&self) -> BTreeMap<String, TimesStats> {
        let times = Source::ALL.into_iter().zip(&self.counters.read_times);
        times.map(|(source, times)| (source.name().to_owned(), times.now().into())).collect()
    }

    /// The `origin_answers` section.
    pub(super) fn answer_stats(&self) -> BTreeMap<String, TimesStats> {
        let times = Attempt::ALL.into_iter().zip(&self.counters.origin_answers);
        times.map(|(attempt, times)| (attempt.name().to_owned(), times.now().into())).collect()
    }

    /// The `origin_retries` section.
    pub(super) fn retry_stats(&self) -> BTreeMap<String, u64> {
        self.counters.retries().into_iter().map(|(reason, retries)| (reason.to_owned(), retries)).collect()
    }

    fn counted(&self) -> Counted {
        let (counters, (plans, epochs)) = (&self.counters, self.planner.epochs());
        Counted {
            bytes: counters.read_bytes(),
            reads: counters.read_times.iter().map(|times| times.now().count()).sum(),
            read_errors: counters.errors(),
            stalls: self.stalls().times(),
            origin_errors: counters.origin_errors.load(Ordering::Relaxed),
            origin_retries: counters.retries(),
            peer_errors: counters.peer_errors.load(Ordering::Relaxed),
            origin_answers: counters.origin_answers[Attempt::Answered as usize].now(),
            plans,
            epochs,
        }
    }

    fn cached(&self) -> Cached {
        Cached::of(self.manifest.totals().bytes, &self.cache)
    }

    fn scheme(&self) -> Scheme {
        self.fetcher.scheme()
    }
}
