//! A histogram of durations. Many threads count into it without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::admin::{Sample, Value};

/// The upper ends of the ranges, in microseconds. An end belongs to its range.
const ENDS: [u64; 11] = [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000];

/// Counts of durations by range, and their sum.
#[derive(Debug, Default)]
pub struct Histogram {
    /// One range more than there are ends: the last range has no end.
    ranges: [AtomicU64; ENDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn count(&self, took: Duration) {
        let range = ENDS.partition_point(|end| Duration::from_micros(*end) < took);
        self.ranges[range].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The histogram as a sample of the metric `name`, in seconds.
    pub fn sample<const N: usize>(&self, name: &'static str, labels: [(&'static str, &str); N]) -> Sample {
        let ends = ENDS.iter().map(|end| *end as f64 / 1e6).chain([f64::INFINITY]);
        let buckets = ends.zip(&self.ranges).map(|(end, range)| (end, range.load(Ordering::Relaxed))).collect();
        let sum = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        Sample { value: Value::Histogram { buckets, sum }, ..Sample::with(name, labels, 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_into_the_first_range_that_holds_it() {
        let histogram = Histogram::default();
        for micros in [50, 51, 2_000_000] {
            histogram.count(Duration::from_micros(micros));
        }
        let Value::Histogram { buckets, sum } = histogram.sample("scheduler_request_seconds", []).value else {
            panic!()
        };
        let counts: Vec<u64> = buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!([buckets[0].0, buckets[1].0, buckets[11].0], [5e-5, 1e-4, f64::INFINITY]);
        assert!((sum - 2.000_101).abs() < 1e-9, "{sum}");
    }
}
