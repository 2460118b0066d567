//! The passes of a dataset's readers. A pass is as many requested bytes as the dataset has.
//!
//! An epoch cannot be observed: readers shuffle, several read at the same time, and pages in the kernel's cache are
//! never requested. Where programs have plans, a pass ends with the last of them, and is an epoch. Over a pass, the part
//! of the bytes that the cache answered can be compared with the part of the dataset that its reservation holds, which
//! is what the cache promises.
//!
//! [`Passes`] is pure: the caller passes the time and what was counted so far, about once a second. A pass begins with
//! the first bytes after the last one, so an idle dataset is in none.

use std::collections::{BTreeMap, VecDeque};

use larder_store::DatasetCache;
use larder_telemetry::Durations;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::counters::Source;
use crate::kept_listing::now_ns;
use crate::stalls::{Cause, TimeByCause, known_causes};

/// While programs have plans, a pass ends with the plans, and at the latest with so many times the bytes of the dataset:
/// a program may have a plan without an end.
const PLANNED_MOST: u64 = 2;

/// The most passes that are kept of a dataset.
const KEPT: usize = 32;

/// A pass over a dataset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// The number of the pass since the dataset was opened, from 1.
    pub number: u64,
    /// When it began, in seconds since 1970.
    pub started_unix_seconds: i64,
    /// How long it took, or has taken so far.
    pub seconds: f64,
    /// False if it is running, or was cut off by the end of the mount.
    pub complete: bool,
    /// True if it ended with the last plan of the programs that read: an epoch.
    #[serde(default)]
    pub planned: bool,
    /// Bytes of the dataset.
    pub dataset_bytes: u64,
    /// The reservation when it began.
    pub capacity_bytes: u64,
    /// Bytes in the cache when it began.
    pub cached_bytes: u64,
    /// The part of the bytes that the cache answered. None if there are none.
    pub hit_ratio: Option<f64>,
    /// The part of the dataset that the reservation holds. A pass that began with a filled cache hits it.
    pub promised_ratio: f64,
    /// The bytes by the place where they were found.
    pub bytes: BTreeMap<String, u64>,
    /// The reads that were answered with bytes.
    pub reads: u64,
    /// The reads that were answered with an error.
    pub read_errors: u64,
    /// The time in which at least one read waited.
    pub stall_seconds: f64,
    /// The same by cause.
    #[serde(deserialize_with = "known_causes")]
    pub stalls: BTreeMap<Cause, f64>,
    /// Fetches from the origin that failed.
    pub origin_errors: u64,
    /// Attempts at the origin that were repeated, by the reason.
    pub origin_retries: BTreeMap<String, u64>,
    /// Reads from other nodes that failed.
    #[serde(default)]
    pub peer_errors: u64,
    /// The median of the time to the head of an answer of the origin. None if there were none.
    pub origin_p50_seconds: Option<f64>,
    /// The 99th percentile of it.
    pub origin_p99_seconds: Option<f64>,
}

impl Pass {
    /// Whether it is the first one and fills the cache, which promises nothing before that.
    pub fn fills_cache(&self) -> bool {
        self.number <= 1 && (self.cached_bytes as f64) < 0.95 * self.capacity_bytes.min(self.dataset_bytes) as f64
    }
}

/// The counts so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) bytes: [u64; Source::ALL.len()],
    pub(crate) reads: u64,
    pub(crate) read_errors: u64,
    pub(crate) stalls: TimeByCause,
    pub(crate) origin_errors: u64,
    pub(crate) origin_retries: [(&'static str, u64); 3],
    pub(crate) peer_errors: u64,
    pub(crate) origin_answers: Durations,
    /// The plans that programs have open now.
    pub(crate) plans: usize,
    /// How often the last of them has ended.
    pub(crate) epochs: u64,
}

/// The cache at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cached {
    pub(crate) dataset_bytes: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) cached_bytes: u64,
}

/// A moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    pub(crate) unix_seconds: i64,
}

impl Cached {
    /// The present state of the cache of a dataset with so many bytes.
    pub(crate) fn of(dataset_bytes: u64, cache: &DatasetCache) -> Self {
        let usage = cache.usage();
        Self { dataset_bytes, capacity_bytes: usage.capacity_bytes, cached_bytes: usage.used_bytes }
    }
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), unix_seconds: now_ns() / 1_000_000_000 }
    }
}

/// The last passes of a dataset.
#[derive(Debug)]
pub(crate) struct Passes {
    ended: VecDeque<Pass>,
    number: u64,
    /// At the last look.
    before: Counted,
    looked: (Moment, Cached),
    running: Option<Begun>,
}

/// A pass that is running.
#[derive(Debug)]
struct Begun {
    began: Moment,
    before: Counted,
    cached: Cached,
}

impl Passes {
    /// Of a dataset that is opened now, with this in its cache.
    pub(crate) fn new(now: Moment, cached: Cached) -> Self {
        Self { ended: VecDeque::new(), number: 0, before: Counted::default(), looked: (now, cached), running: None }
    }

    /// Looks at what was counted so far. Returns the pass that has ended since the last look.
    pub(crate) fn look(&mut self, now: Moment, counted: Counted, cached: Cached) -> Option<Pass> {
        let before = std::mem::replace(&mut self.before, counted);
        let (began, cached) = std::mem::replace(&mut self.looked, (now, cached));
        // Reads that all fail are of a pass, too: they must not count as none.
        let is_read = all(&counted) > all(&before) || counted.read_errors > before.read_errors;
        if self.running.is_none() && is_read {
            self.number += 1;
            self.running = Some(Begun { began, before, cached });
        }
        let planned = counted.epochs > before.epochs;
        let most = if counted.plans > 0 { PLANNED_MOST } else { 1 };
        let begun = self
            .running
            .take_if(|begun| planned || all(&counted) - all(&begun.before) >= most * begun.cached.dataset_bytes)?;
        let pass = begun.pass(self.number, true, now, &counted);
        Some(self.keep(Pass { planned, ..pass }))
    }

    /// Ends the pass that is running, because the dataset is being closed.
    pub(crate) fn cut(&mut self, now: Moment, counted: Counted, cached: Cached) -> Option<Pass> {
        let ended = self.look(now, counted, cached);
        let cut = self.running.take().map(|begun| begun.pass(self.number, false, now, &counted));
        ended.or_else(|| Some(self.keep(cut?)))
    }

    fn keep(&mut self, pass: Pass) -> Pass {
        if self.ended.len() == KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(pass.clone());
        pass
    }

    /// The last passes, and the one that is running.
    pub(crate) fn all(&self, now: Moment, counted: &Counted) -> Vec<Pass> {
        let running = self.running.as_ref().map(|begun| begun.pass(self.number, false, now, counted));
        self.ended.iter().cloned().chain(running).collect()
    }

    /// The last complete pass.
    pub(crate) fn last(&self) -> Option<&Pass> {
        self.ended.back()
    }
}

impl Begun {
    fn pass(&self, number: u64, complete: bool, now: Moment, counted: &Counted) -> Pass {
        let before = &self.before;
        let bytes: [u64; Source::ALL.len()] = std::array::from_fn(|at| counted.bytes[at] - before.bytes[at]);
        let (hit, sum) = (bytes[Source::Store as usize], bytes.iter().sum::<u64>());
        let Cached { dataset_bytes, capacity_bytes, cached_bytes } = self.cached;
        let stalls: BTreeMap<Cause, f64> = Cause::ALL
            .into_iter()
            .map(|cause| {
                let [now, before] = [counted, before].map(|counted| counted.stalls[cause as usize]);
                (cause, now.saturating_sub(before).as_secs_f64())
            })
            .collect();
        let retries = counted.origin_retries.into_iter().zip(before.origin_retries);
        let answers = counted.origin_answers.since(&before.origin_answers);
        Pass {
            number,
            started_unix_seconds: self.began.unix_seconds,
            seconds: now.at.saturating_duration_since(self.began.at).as_secs_f64(),
            complete,
            planned: false,
            dataset_bytes,
            capacity_bytes,
            cached_bytes,
            hit_ratio: (sum > 0).then(|| hit as f64 / sum as f64),
            promised_ratio: (capacity_bytes as f64 / dataset_bytes.max(1) as f64).min(1.0),
            bytes: Source::ALL
                .into_iter()
                .zip(bytes)
                .map(|(source, bytes)| (source.name().to_owned(), bytes))
                .collect(),
            reads: counted.reads - before.reads,
            read_errors: counted.read_errors - before.read_errors,
            stall_seconds: stalls.values().sum(),
            stalls,
            origin_errors: counted.origin_errors - before.origin_errors,
            origin_retries: retries.map(|((reason, now), (_, before))| (reason.to_owned(), now - before)).collect(),
            peer_errors: counted.peer_errors - before.peer_errors,
            origin_p50_seconds: answers.quantile(0.5),
            origin_p99_seconds: answers.quantile(0.99),
        }
    }
}

/// All bytes that were read.
fn all(counted: &Counted) -> u64 {
    counted.bytes.iter().sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_telemetry::Histogram;

    use super::*;

    /// A dataset of 100 bytes with room for 60.
    const CACHED: Cached = Cached { dataset_bytes: 100, capacity_bytes: 60, cached_bytes: 60 };

    /// A program that reads, and its clock.
    struct Reader {
        now: Moment,
        counted: Counted,
        passes: Passes,
    }

    impl Reader {
        fn new() -> Self {
            let now = Moment { at: Instant::now(), unix_seconds: 1_000 };
            Self { now, counted: Counted::default(), passes: Passes::new(now, CACHED) }
        }

        /// Reads these bytes from the store and from the origin in so many seconds.
        fn reads(&mut self, store: u64, origin: u64, seconds: u64) -> Option<Pass> {
            self.counted.bytes[Source::Store as usize] += store;
            self.counted.bytes[Source::Origin as usize] += origin;
            self.counted.reads += store + origin;
            self.passes_by(seconds)
        }

        fn passes_by(&mut self, seconds: u64) -> Option<Pass> {
            self.now.at += Duration::from_secs(seconds);
            self.now.unix_seconds += seconds as i64;
            self.passes.look(self.now, self.counted, CACHED)
        }
    }

    #[tokio::test]
    async fn a_pass_ends_with_as_many_bytes_as_the_dataset_has_and_has_its_own_hits() {
        let mut reader = Reader::new();
        assert_eq!(reader.passes_by(500), None, "an idle dataset is in no pass");
        assert_eq!(reader.reads(0, 50, 1), None);
        let first = reader.reads(0, 50, 9).unwrap();
        assert_eq!((first.number, first.started_unix_seconds, first.seconds), (1, 1_500, 10.0));
        assert_eq!((first.hit_ratio, first.promised_ratio, first.complete), (Some(0.0), 0.6, true));
        assert_eq!(reader.passes_by(3_600), None);
        assert_eq!(reader.reads(30, 20, 1), None);
        let second = reader.reads(30, 20, 4).unwrap();
        assert_eq!((second.number, second.hit_ratio, second.seconds), (2, Some(0.6), 5.0));
        assert_eq!((second.bytes["store"], second.bytes["origin"], second.reads), (60, 40, 100));
        // The one that is running is the last.
        reader.reads(10, 0, 1);
        let all = reader.passes.all(reader.now, &reader.counted);
        assert_eq!(
            all.iter().map(|pass| (pass.number, pass.complete)).collect::<Vec<_>>(),
            [(1, true), (2, true), (3, false)]
        );
    }

    #[tokio::test]
    async fn what_was_counted_before_a_pass_is_not_of_it() {
        let (mut reader, answers) = (Reader::new(), Histogram::default());
        let counted_by = |reader: &mut Reader, millis| {
            answers.count(Duration::from_millis(millis));
            reader.counted.stalls[Cause::Throttled as usize] += Duration::from_millis(millis);
            reader.counted.origin_retries[0] = ("throttled", reader.counted.origin_retries[0].1 + 2);
            reader.counted.origin_errors += 1;
            reader.counted.peer_errors += 1;
            reader.counted.read_errors += 1;
            reader.counted.origin_answers = answers.now();
        };
        counted_by(&mut reader, 4_000);
        reader.reads(0, 100, 1).unwrap();
        counted_by(&mut reader, 250);
        let pass = reader.reads(60, 40, 1).unwrap();
        assert_eq!((pass.cached_bytes, pass.fills_cache()), (60, false));
        assert_eq!((pass.stall_seconds, pass.stalls[&Cause::Throttled], pass.stalls[&Cause::Disk]), (0.25, 0.25, 0.0));
        assert_eq!((pass.origin_retries["throttled"], pass.origin_errors, pass.read_errors), (2, 1, 1));
        assert_eq!(pass.peer_errors, 1);
        assert_eq!((pass.origin_p50_seconds, pass.origin_p99_seconds), (Some(0.25), Some(0.25)));
        let json = serde_json::to_value(&pass).unwrap();
        assert_eq!(json["stalls"]["throttled"], 0.25);
        assert_eq!(serde_json::from_value::<Pass>(json).unwrap(), pass);
    }

    #[tokio::test]
    async fn a_pass_begins_with_what_was_cached_before_its_first_bytes() {
        let mut reader = Reader::new();
        let mut look = |store, origin, cached_bytes| {
            reader.counted.bytes[Source::Store as usize] += store;
            reader.counted.bytes[Source::Origin as usize] += origin;
            reader.passes.look(reader.now, reader.counted, Cached { cached_bytes, ..CACHED })
        };
        assert_eq!(look(0, 0, 0), None);
        let first = look(0, 100, 60).unwrap();
        assert_eq!((first.cached_bytes, first.fills_cache()), (0, true));
        let second = look(60, 40, 60).unwrap();
        assert_eq!((second.cached_bytes, second.fills_cache()), (60, false));
    }

    #[tokio::test]
    async fn reads_that_all_fail_are_of_a_pass() {
        let mut reader = Reader::new();
        reader.counted.read_errors = 3;
        assert_eq!(reader.passes_by(1), None);
        let all = reader.passes.all(reader.now, &reader.counted);
        assert_eq!((all.len(), all[0].read_errors, all[0].hit_ratio), (1, 3, None));
        let pass = reader.reads(60, 40, 1).unwrap();
        assert_eq!((pass.number, pass.read_errors, pass.hit_ratio), (1, 3, Some(0.6)));
    }

    #[tokio::test]
    async fn an_epoch_of_plans_ends_with_the_last_of_them() {
        let mut reader = Reader::new();
        reader.counted.plans = 8;
        // Each rank reads a few files twice.
        assert_eq!(reader.reads(60, 70, 10), None);
        (reader.counted.plans, reader.counted.epochs) = (8, 1);
        let epoch = reader.passes_by(1).unwrap();
        assert_eq!((epoch.planned, epoch.complete, epoch.bytes["origin"]), (true, true, 70));
        // A validation that reads a part of the dataset.
        reader.reads(10, 0, 1);
        (reader.counted.plans, reader.counted.epochs) = (0, 2);
        let validation = reader.passes_by(1).unwrap();
        assert_eq!((validation.number, validation.planned, validation.hit_ratio), (2, true, Some(1.0)));
        // A plan without an end does not hold a pass open for good.
        reader.counted.plans = 1;
        assert_eq!(reader.reads(199, 0, 1), None);
        assert!(!reader.reads(1, 0, 1).unwrap().planned);
        // Plans that end while nothing is read are no pass.
        (reader.counted.plans, reader.counted.epochs) = (0, 9);
        assert_eq!(reader.passes_by(1), None);
    }

    #[tokio::test]
    async fn a_pass_that_is_cut_off_is_not_complete_and_few_passes_are_kept() {
        let mut reader = Reader::new();
        for _ in 0..100 {
            reader.reads(60, 40, 1).unwrap();
        }
        let all = reader.passes.all(reader.now, &reader.counted);
        assert_eq!((all.len(), all[0].number, all[KEPT - 1].number), (KEPT, 69, 100));
        let cut = |reader: &mut Reader| reader.passes.cut(reader.now, reader.counted, CACHED);
        assert_eq!(cut(&mut reader), None, "none is running");
        reader.reads(30, 0, 2);
        let pass = cut(&mut reader).unwrap();
        assert_eq!((pass.number, pass.complete, pass.hit_ratio), (101, false, Some(1.0)));
        assert_eq!(cut(&mut reader), None);
    }
}
