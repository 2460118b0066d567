//! How soon a peer's recent answers began, counted in buckets.
//!
//! Invariant: uses constant memory and allocates nothing, for any number of answers.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The end of the first bucket. Shorter times are not distinguished.
const FIRST_END_US: u64 = 5_000;

/// The number of buckets with an end. Each ends a fifth later than the previous one; the last, which ends at 0.83 s, is
/// followed by one without an end.
const ENDS: usize = 29;

/// Once this many answers are counted, all counts are halved, so that older answers weigh less.
const RECENT: u32 = 1_000;

/// The fewest answers from which the slowest hundredth can be estimated.
const KNOWN_LEAST: u32 = 100;

const ENDS_US: [u64; ENDS] = {
    let mut ends = [FIRST_END_US; ENDS];
    let mut at = 1;
    while at < ENDS {
        ends[at] = ends[at - 1] * 6 / 5;
        at += 1;
    }
    ends
};

/// How soon a peer's recent answers began. Shared by all reads from that peer.
#[derive(Debug, Default)]
pub(super) struct FirstBytes(Mutex<Buckets>);

#[derive(Debug, Default)]
struct Buckets {
    counts: [u32; ENDS + 1],
    total: u32,
}

impl FirstBytes {
    fn lock(&self) -> MutexGuard<'_, Buckets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that an answer began after `waited`, or had not begun by then.
    pub(super) fn note(&self, waited: Duration) {
        let bucket = ENDS_US.partition_point(|&end| u128::from(end) < waited.as_micros());
        let mut buckets = self.lock();
        if buckets.total >= RECENT {
            buckets.counts.iter_mut().for_each(|count| *count /= 2);
            buckets.total = buckets.counts.iter().sum();
        }
        buckets.counts[bucket] += 1;
        buckets.total += 1;
    }

    /// The time within which 99 of 100 answers began, overestimated by up to a fifth. None if too few answers are
    /// known, or if more than one of 100 took longer than the last bucket's end.
    pub(super) fn p99(&self) -> Option<Duration> {
        let buckets = self.lock();
        if buckets.total < KNOWN_LEAST {
            return None;
        }
        let slow_most = buckets.total / 100;
        let mut slower = buckets.total;
        let end = ENDS_US.iter().zip(&buckets.counts).find(|&(_, &count)| {
            slower -= count;
            slower <= slow_most
        });
        end.map(|(&end, _)| Duration::from_micros(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(waits: impl IntoIterator<Item = u64>) -> FirstBytes {
        let times = FirstBytes::default();
        waits.into_iter().for_each(|ms| times.note(Duration::from_millis(ms)));
        times
    }

    fn is_about(times: &FirstBytes, ms: u64) -> bool {
        let p99 = times.p99().unwrap();
        (Duration::from_millis(ms)..=Duration::from_millis(ms) * 6 / 5).contains(&p99)
    }

    #[test]
    fn the_99th_percentile_of_the_recent_answers_is_known_after_a_hundred() {
        assert_eq!(noted([1; 99]).p99(), None);
        assert_eq!(noted([1; 100]).p99(), Some(Duration::from_millis(5)), "all in the first bucket");
        assert!(is_about(&noted((1..=100).map(|n| n * 3)), 297));
        // One of a hundred may be slow, and two may not.
        let one_of_50 = |slow: u64| noted((0..1000).map(|n| if n % 50 == 0 { slow } else { 20 }));
        assert!(is_about(&noted((0..1000).map(|n| if n % 100 == 0 { 400 } else { 20 })), 20));
        assert!(is_about(&one_of_50(400), 400));
        assert_eq!(one_of_50(5_000).p99(), None, "longer than all buckets");
    }

    #[test]
    fn a_peer_that_becomes_slow_or_fast_is_believed_within_some_thousand_answers() {
        let times = noted(std::iter::repeat_n(1, 50_000));
        (0..100).for_each(|_| times.note(Duration::from_millis(300)));
        assert!(is_about(&times, 300), "a tenth of the recent ones");
        (0..8_000).for_each(|_| times.note(Duration::from_millis(1)));
        assert_eq!(times.p99(), Some(Duration::from_millis(5)));
    }

    #[test]
    fn every_wait_has_a_bucket() {
        let times = noted([]);
        for waited in [Duration::ZERO, Duration::from_micros(ENDS_US[ENDS - 1]), Duration::MAX] {
            times.note(waited);
        }
        assert_eq!(times.lock().total, 3);
        assert_eq!(times.lock().counts[ENDS], 1);
    }
}
