//! A histogram of durations. Many threads count into it without a lock, and mostly without waiting for each other's
//! cache lines.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sample::{Sample, Value};

/// The upper ends of the ranges, in microseconds: from a read of a page in memory to an origin that does not answer. An
/// end belongs to its range.
const ENDS: [u64; 14] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000, 5_000_000, 15_000_000, 60_000_000];

/// One range more than there are ends: the last range has no end.
const RANGES: usize = ENDS.len() + 1;

/// The parts of a histogram.
const STRIPES: usize = 8;

thread_local! {
    /// The part into which this thread counts. Threads are spread over the parts at random.
    static STRIPE: usize = RandomState::new().hash_one(std::thread::current().id()) as usize % STRIPES;
}

/// Counts of durations by range, and their sum.
#[derive(Debug, Default)]
pub struct Histogram {
    stripes: [Stripe; STRIPES],
}

/// The counts of some threads, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    ranges: [AtomicU64; RANGES],
    nanoseconds: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn count(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let range = ENDS.partition_point(|end| end * 1_000 < took);
        let Stripe { ranges, nanoseconds } = &self.stripes[STRIPE.with(|stripe| *stripe)];
        ranges[range].fetch_add(1, Ordering::Relaxed);
        nanoseconds.fetch_add(took, Ordering::Relaxed);
    }

    /// The durations that were counted so far.
    pub fn now(&self) -> Durations {
        let mut durations = Durations::default();
        for Stripe { ranges, nanoseconds } in &self.stripes {
            durations.ranges.iter_mut().zip(ranges).for_each(|(sum, range)| *sum += range.load(Ordering::Relaxed));
            durations.nanoseconds += nanoseconds.load(Ordering::Relaxed);
        }
        durations
    }

    /// The histogram as a sample of the metric `name`, in seconds.
    pub fn sample<const N: usize>(&self, name: &'static str, labels: [(&'static str, &str); N]) -> Sample {
        Sample::of(name, labels, self.now().value())
    }
}

/// The durations of a [`Histogram`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    ranges: [u64; RANGES],
    nanoseconds: u64,
}

impl Durations {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.ranges.iter().sum()
    }

    /// Their sum.
    pub fn seconds(&self) -> f64 {
        self.nanoseconds as f64 / 1e9
    }

    /// Those that were not counted yet at an `earlier` moment.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut ranges = self.ranges;
        ranges.iter_mut().zip(earlier.ranges).for_each(|(range, before)| *range = range.saturating_sub(before));
        Self { ranges, nanoseconds: self.nanoseconds.saturating_sub(earlier.nanoseconds) }
    }

    /// The end of the range that has this quantile, such as 0.99, in seconds. None: there are no durations, or the range
    /// has no end.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let rank = (self.count() as f64 * quantile).ceil().max(1.0) as u64;
        let mut below = 0;
        let range = self.ranges.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        ENDS.get(range).map(|end| *end as f64 / 1e6)
    }

    /// As the value of a metric, in seconds.
    pub fn value(&self) -> Value {
        let ends = ENDS.iter().map(|end| *end as f64 / 1e6).chain([f64::INFINITY]);
        Value::Histogram { buckets: ends.zip(self.ranges).collect(), sum: Duration::from_nanos(self.nanoseconds) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_into_the_first_range_that_holds_it() {
        let histogram = Histogram::default();
        for micros in [50, 51, 90_000_000] {
            histogram.count(Duration::from_micros(micros));
        }
        let Value::Histogram { buckets, sum } = histogram.sample("scheduler_request_seconds", []).value else {
            panic!()
        };
        let counts: Vec<u64> = buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!([buckets[0].0, buckets[1].0, buckets[14].0], [5e-5, 1e-4, f64::INFINITY]);
        assert_eq!(sum, Duration::from_micros(90_000_101));
    }

    #[test]
    fn what_many_threads_count_is_all_there() {
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| (0..1_000).for_each(|_| histogram.count(Duration::from_millis(1))));
            }
        });
        let all = histogram.now();
        assert_eq!((all.count(), all.quantile(0.5)), (32_000, Some(0.001)));
        assert!((all.seconds() - 32.0).abs() < 1e-9);
        assert!(histogram.stripes.iter().filter(|stripe| stripe.nanoseconds.load(Ordering::Relaxed) > 0).count() > 1);
    }

    #[test]
    fn a_quantile_is_the_end_of_its_range_and_can_be_of_a_period() {
        let histogram = Histogram::default();
        assert_eq!(histogram.now().quantile(0.5), None, "no duration");
        (0..99).for_each(|_| histogram.count(Duration::from_millis(1)));
        histogram.count(Duration::from_millis(40));
        let before = histogram.now();
        assert_eq!(
            [before.quantile(0.5), before.quantile(0.99), before.quantile(1.0)],
            [Some(0.001), Some(0.001), Some(0.05)]
        );
        (0..2).for_each(|_| histogram.count(Duration::from_secs(70)));
        let period = histogram.now().since(&before);
        assert_eq!((period.count(), period.quantile(0.5)), (2, None), "the last range has no end");
        assert!((period.seconds() - 140.0).abs() < 1e-9);
    }
}
