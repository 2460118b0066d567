//! How long readers of a dataset wait, and for what.
//!
//! The cast: [`Stalls`] has the sums of a dataset; a [`WaitingRead`] is a read that could not be answered at once; a
//! [`Waiting`] is the wait of a read for one thing; a [`Phase`] is the thing that a fetch waits for at present, which
//! all reads that wait for the fetch share; a [`PhaseWatch`] has the phase follow the calls to the origin.
//!
//! Time is counted once, however many reads wait: a moment in which several wait is divided among their causes by their
//! number. So the sum of all causes is the time in which at least one read waited, and never more than what a clock
//! shows.
//!
//! Reads that are answered at once never come here. A wait that is noticed once it is over, such as one for a slow disk,
//! is counted as far as no other wait has covered the time, and not before the next look, about once a second: a thread
//! that had no CPU seems to have waited for the disk.
//!
//! Invariant: no code waits for anything under the lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_origin::{Attempt, WaitsFor, Watch};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::Instant;

use crate::counters::{StatsCounters, add};

/// Why a read waits. A closed set, which suits a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The origin has not answered the first request yet, or its bytes are coming.
    Origin,
    /// The origin has failed to answer a request.
    OriginErrors,
    /// The origin has refused a request for lack of capacity.
    Throttled,
    /// The node limits itself: the requests in flight, their rate, or the memory for what they bring.
    Limit,
    /// A peer has not answered yet.
    Peer,
    /// The cache's disk has not answered yet.
    Disk,
    /// The kernel has requests that no thread of the mount is free to take.
    Kernel,
    /// A thread that has a request has no CPU.
    Cpu,
}

impl Cause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Origin,
        Self::OriginErrors,
        Self::Throttled,
        Self::Limit,
        Self::Peer,
        Self::Disk,
        Self::Kernel,
        Self::Cpu,
    ];

    /// The cause's name in metrics and statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Origin => "origin",
            Self::OriginErrors => "origin_errors",
            Self::Throttled => "throttled",
            Self::Limit => "limit",
            Self::Peer => "peer",
            Self::Disk => "disk",
            Self::Kernel => "kernel",
            Self::Cpu => "cpu",
        }
    }
}

/// Deserializes times by cause, without causes that only a later version knows.
pub(crate) fn known_causes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<Cause, f64>, D::Error> {
    let all = BTreeMap::<String, f64>::deserialize(deserializer)?;
    Ok(Cause::ALL.into_iter().filter_map(|cause| Some((cause, *all.get(cause.name())?))).collect())
}

/// The time for each cause, in the order of [`Cause::ALL`].
pub(crate) type TimeByCause = [Duration; Cause::ALL.len()];

/// The waits of the reads of a dataset.
#[derive(Debug)]
pub(crate) struct Stalls(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The waits at present, by cause.
    waits: [u32; Cause::ALL.len()],
    times: TimeByCause,
    /// The waits since the last look that were noticed once they were over. Not in `times` yet.
    noticed: TimeByCause,
    /// When the last look was, and the sum of the times then.
    looked: (Instant, Duration),
    /// All time before this is counted.
    counted_to: Instant,
    /// The reads that are not answered yet, by arrival.
    reads: BTreeMap<u64, Instant>,
    arrivals: u64,
}

impl State {
    /// Counts the time until now.
    fn count(&mut self, now: Instant) {
        let all: u32 = self.waits.iter().sum();
        if all == 0 {
            return;
        }
        let passed = now.saturating_duration_since(self.counted_to);
        for (time, waits) in self.times.iter_mut().zip(self.waits) {
            *time += passed.mul_f64(f64::from(waits) / f64::from(all));
        }
        self.counted_to = self.counted_to.max(now);
    }

    /// Changes the waits for a cause.
    fn change(&mut self, cause: Cause, by: i32) {
        if self.waits.iter().all(|waits| *waits == 0) {
            // Nobody has waited since.
            self.counted_to = self.counted_to.max(Instant::now());
        }
        let waits = &mut self.waits[cause as usize];
        *waits = waits.saturating_add_signed(by);
    }
}

impl Default for Stalls {
    fn default() -> Self {
        let (now, none) = (Instant::now(), TimeByCause::default());
        Self(Mutex::new(State {
            waits: [0; Cause::ALL.len()],
            times: none,
            noticed: none,
            looked: (now, Duration::ZERO),
            counted_to: now,
            reads: BTreeMap::new(),
            arrivals: 0,
        }))
    }
}

impl Stalls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A read that could not be answered at once, until the result is dropped.
    pub(crate) fn read(&self) -> WaitingRead<'_> {
        let mut state = self.lock();
        let number = state.arrivals;
        state.arrivals += 1;
        state.reads.insert(number, Instant::now());
        WaitingRead { stalls: self, number }
    }

    /// A read waits for this cause until the result is dropped.
    pub(crate) fn waits_for(self: &Arc<Self>, cause: Cause) -> Waiting {
        self.joins(&Arc::new(Phase::of(cause)))
    }

    /// A read waits for what a fetch waits for, until the result is dropped.
    pub(crate) fn joins(self: &Arc<Self>, phase: &Arc<Phase>) -> Waiting {
        let mut state = self.lock();
        state.count(Instant::now());
        phase.waits.fetch_add(1, Ordering::Relaxed);
        state.change(phase.cause(), 1);
        Waiting { stalls: Arc::clone(self), phase: Arc::clone(phase) }
    }

    /// A fetch waits for this cause from now on.
    pub(crate) fn enters(&self, phase: &Phase, cause: Cause) {
        let mut state = self.lock();
        let before = phase.cause();
        phase.cause.store(cause as u8, Ordering::Relaxed);
        let waits = phase.waits.load(Ordering::Relaxed);
        if waits > 0 && before != cause {
            state.count(Instant::now());
            let waits = i32::try_from(waits).unwrap_or(i32::MAX);
            // In this order, so that some read waits all the time.
            state.change(cause, waits);
            state.change(before, -waits);
        }
    }

    /// A read has waited since `began` for this cause, and does not any more.
    pub(crate) fn waited(&self, cause: Cause, began: Instant) {
        let (mut state, now) = (self.lock(), Instant::now());
        state.count(now);
        let uncounted = now.saturating_duration_since(began.max(state.counted_to));
        state.noticed[cause as usize] += uncounted;
        state.counted_to = state.counted_to.max(now);
    }

    /// Counts the waits that were noticed since the last look. `without_cpu` is for how long the threads that serve the
    /// readers had no CPU since then.
    pub(crate) fn look(&self, mut without_cpu: Duration) {
        let (mut state, now) = (self.lock(), Instant::now());
        state.count(now);
        for cause in Cause::ALL {
            let noticed = std::mem::take(&mut state.noticed[cause as usize]);
            let for_cpu = noticed.min(without_cpu);
            without_cpu -= for_cpu;
            state.times[cause as usize] += noticed - for_cpu;
            state.times[Cause::Cpu as usize] += for_cpu;
        }
        let ((looked, before), sum) = (state.looked, state.times.iter().sum::<Duration>());
        let uncounted = now.saturating_duration_since(looked).saturating_sub(sum.saturating_sub(before));
        let more = without_cpu.min(uncounted);
        if !more.is_zero() {
            state.times[Cause::Cpu as usize] += more;
            // When that was is not known, so nothing before now is counted again.
            state.counted_to = state.counted_to.max(now);
        }
        state.looked = (now, sum + more);
    }

    /// The time in which reads waited so far, by cause.
    pub(crate) fn times(&self) -> TimeByCause {
        let mut state = self.lock();
        state.count(Instant::now());
        state.times
    }

    /// The number of reads that are not answered yet, and how long the first of them has waited.
    pub(crate) fn waiting(&self) -> (usize, Duration) {
        let state = self.lock();
        let oldest = state.reads.values().next().map(Instant::elapsed).unwrap_or_default();
        (state.reads.len(), oldest)
    }
}

/// A read that is not answered yet.
#[derive(Debug)]
pub(crate) struct WaitingRead<'a> {
    stalls: &'a Stalls,
    number: u64,
}

impl Drop for WaitingRead<'_> {
    fn drop(&mut self) {
        self.stalls.lock().reads.remove(&self.number);
    }
}

/// The wait of a read for one thing.
#[derive(Debug)]
pub(crate) struct Waiting {
    stalls: Arc<Stalls>,
    phase: Arc<Phase>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.stalls.lock();
        state.count(Instant::now());
        self.phase.waits.fetch_sub(1, Ordering::Relaxed);
        state.change(self.phase.cause(), -1);
    }
}

/// The thing that a fetch waits for, and the number of reads that wait for the fetch. Both change under the lock of the
/// dataset's [`Stalls`] only.
#[derive(Debug)]
pub(crate) struct Phase {
    cause: AtomicU8,
    waits: AtomicU32,
}

impl Phase {
    fn of(cause: Cause) -> Self {
        Self { cause: AtomicU8::new(cause as u8), waits: AtomicU32::new(0) }
    }

    fn cause(&self) -> Cause {
        Cause::ALL[usize::from(self.cause.load(Ordering::Relaxed))]
    }
}

impl Default for Phase {
    /// A fetch begins by waiting for its turn.
    fn default() -> Self {
        Self::of(Cause::Limit)
    }
}

/// Has the phase of a fetch follow its calls to the origin, and counts their attempts.
#[derive(Debug)]
pub(crate) struct PhaseWatch {
    pub(crate) stalls: Arc<Stalls>,
    pub(crate) phase: Arc<Phase>,
    pub(crate) counters: Arc<StatsCounters>,
}

impl Watch for PhaseWatch {
    fn waits_for(&self, what: WaitsFor) {
        let cause = match what {
            WaitsFor::Turn => Cause::Limit,
            WaitsFor::Answer => Cause::Origin,
            WaitsFor::Capacity => Cause::Throttled,
            WaitsFor::Recovery => Cause::OriginErrors,
        };
        // The fetch may have several calls at a time. That one has failed stays the cause when another begins.
        let is_failure = |cause| matches!(cause, Cause::Throttled | Cause::OriginErrors);
        if is_failure(cause) || !is_failure(self.phase.cause()) {
            self.stalls.enters(&self.phase, cause);
        }
    }

    fn attempted(&self, attempt: Attempt, took: Duration) {
        self.counters.origin_answers[attempt as usize].count(took);
    }

    fn retries(&self, after: Attempt) {
        add(&self.counters.origin_retries[after as usize], 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The seconds of each cause that has any.
    fn seconds(stalls: &Stalls) -> Vec<(&'static str, f64)> {
        let times = Cause::ALL.into_iter().zip(stalls.times());
        times.filter(|(_, time)| !time.is_zero()).map(|(cause, time)| (cause.name(), time.as_secs_f64())).collect()
    }

    #[test]
    fn each_cause_has_its_own_number_and_name() {
        for (number, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, number);
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_moment_is_counted_once_and_divided_among_the_causes_of_all_reads_that_wait() {
        let stalls = Arc::new(Stalls::default());
        advance(SECOND).await;
        let disk = stalls.waits_for(Cause::Disk);
        advance(SECOND).await;
        let peers = [stalls.waits_for(Cause::Peer), stalls.waits_for(Cause::Peer), stalls.waits_for(Cause::Peer)];
        advance(4 * SECOND).await;
        drop((disk, peers));
        advance(10 * SECOND).await;
        assert_eq!(seconds(&stalls), [("peer", 3.0), ("disk", 2.0)]);
        // Waits that have not ended are counted, too.
        let _origin = stalls.waits_for(Cause::Origin);
        advance(SECOND).await;
        assert_eq!(seconds(&stalls), [("origin", 1.0), ("peer", 3.0), ("disk", 2.0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_wait_for_what_their_fetch_waits_for_and_a_fetch_without_reads_costs_nothing() {
        let (stalls, phase) = (Arc::new(Stalls::default()), Arc::new(Phase::default()));
        let counters = Arc::new(StatsCounters::default());
        let watch = PhaseWatch { stalls: Arc::clone(&stalls), phase: Arc::clone(&phase), counters };
        watch.waits_for(WaitsFor::Answer);
        advance(100 * SECOND).await;
        let reads = [stalls.joins(&phase), stalls.joins(&phase)];
        advance(SECOND).await;
        watch.waits_for(WaitsFor::Capacity);
        advance(2 * SECOND).await;
        watch.waits_for(WaitsFor::Recovery);
        // Another range of the block.
        watch.waits_for(WaitsFor::Turn);
        watch.waits_for(WaitsFor::Answer);
        advance(3 * SECOND).await;
        drop(reads);
        watch.waits_for(WaitsFor::Turn);
        advance(SECOND).await;
        assert_eq!(seconds(&stalls), [("origin", 1.0), ("origin_errors", 3.0), ("throttled", 2.0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_noticed_once_it_is_over_counts_as_far_as_no_other_covers_it() {
        let stalls = Arc::new(Stalls::default());
        let began = Instant::now();
        advance(2 * SECOND).await;
        stalls.waited(Cause::Disk, began);
        // Another thread that waited meanwhile, and two seconds longer.
        advance(2 * SECOND).await;
        stalls.waited(Cause::Kernel, began);
        assert!(seconds(&stalls).is_empty(), "not before the next look");
        stalls.look(Duration::ZERO);
        assert_eq!(seconds(&stalls), [("disk", 2.0), ("kernel", 2.0)]);
        let began = Instant::now();
        let origin = stalls.waits_for(Cause::Origin);
        advance(SECOND).await;
        stalls.waited(Cause::Disk, began);
        drop(origin);
        stalls.look(Duration::ZERO);
        assert_eq!(seconds(&stalls), [("origin", 1.0), ("disk", 2.0), ("kernel", 2.0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_a_cpu_is_not_that_of_the_disk_and_no_short_wait_hides_it() {
        let (stalls, began, millis) = (Arc::new(Stalls::default()), Instant::now(), Duration::from_millis);
        // A read that had no CPU for most of its time.
        advance(SECOND).await;
        stalls.waited(Cause::Disk, began);
        stalls.look(millis(700));
        assert_eq!(seconds(&stalls), [("disk", 0.3), ("cpu", 0.7)]);
        advance(millis(900)).await;
        let origin = stalls.waits_for(Cause::Origin);
        advance(millis(100)).await;
        drop(origin);
        stalls.look(millis(600));
        assert_eq!(seconds(&stalls), [("origin", 0.1), ("disk", 0.3), ("cpu", 1.3)]);
        // Never more than what a clock shows.
        advance(SECOND).await;
        stalls.look(5 * SECOND);
        assert_eq!(seconds(&stalls), [("origin", 0.1), ("disk", 0.3), ("cpu", 2.3)]);
        stalls.waited(Cause::Disk, began);
        stalls.look(5 * SECOND);
        assert_eq!(seconds(&stalls)[2], ("cpu", 2.3));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_read_is_the_first_that_is_not_answered() {
        let stalls = Stalls::default();
        assert_eq!(stalls.waiting(), (0, Duration::ZERO));
        let first = stalls.read();
        advance(SECOND).await;
        let second = stalls.read();
        advance(SECOND).await;
        assert_eq!(stalls.waiting(), (2, 2 * SECOND));
        drop(first);
        assert_eq!(stalls.waiting(), (1, SECOND));
        drop(second);
        assert_eq!(stalls.waiting(), (0, Duration::ZERO));
    }
}
