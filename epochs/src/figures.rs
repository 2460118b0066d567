//! Statistics over measured values.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::table::figures_table;

/// The median, the minimum and the maximum of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Returns `None` for no values. The median of an even number of values is the mean of the middle two.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let upper = values.len() / 2;
        let lower = (values.len() - 1) / 2;
        Some(Self { median: f64::midpoint(values[lower], values[upper]), min, max })
    }

    /// The values as tables show them: `median (min..max)`, with this many digits after the point.
    pub fn shown(&self, digits: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.digits$} ({min:.digits$}..{max:.digits$})")
    }
}

/// The median; `None` for no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

/// The value that this share of the sorted values does not exceed; `None` for no values.
pub fn percentile<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    let at = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied()
}

/// Times of many events.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Latencies {
    /// Number of events.
    pub count: usize,
    /// The median, in seconds.
    pub p50: f64,
    /// The 99th percentile, in seconds.
    pub p99: f64,
    /// The longest time, in seconds.
    pub max: f64,
}

impl Latencies {
    pub fn of(times: impl Iterator<Item = Duration>) -> Self {
        let mut times: Vec<Duration> = times.collect();
        times.sort();
        let at = |share| percentile(&times, share).unwrap_or_default().as_secs_f64();
        Self { count: times.len(), p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

impl Latencies {
    /// The times in milliseconds, as a phrase for a line of progress.
    pub fn milliseconds(&self) -> String {
        let [p50, p99, max] = [self.p50, self.p99, self.max].map(|seconds| seconds * 1e3);
        format!("p50 {p50:.3}, p99 {p99:.3}, longest {max:.3} ms of {}", self.count)
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {:.1} s, p99 {:.1} s, longest {:.1} s of {}", self.p50, self.p99, self.max, self.count)
    }
}

/// The machine's load averages over 1, 5 and 15 minutes; zeros if they cannot be read.
pub fn machine_load() -> [f64; 3] {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut numbers = text.split_whitespace().map(|word| word.parse().unwrap_or_default());
    std::array::from_fn(|_| numbers.next().unwrap_or_default())
}

/// A measured figure and its goal.
#[derive(Clone, Debug)]
pub struct Goal {
    pub figure: String,
    pub measured: String,
    pub goal: String,
    pub is_met: bool,
}

/// A table of figures with their goals.
pub fn goals_table(goals: &[Goal]) -> String {
    let head = ["figure", "measured", "goal", ""].map(str::to_owned).to_vec();
    let rows = goals.iter().map(|Goal { figure, measured, goal, is_met }| {
        let word = if *is_met { "met" } else { "MISSED" };
        vec![figure.clone(), measured.clone(), goal.clone(), word.to_owned()]
    });
    figures_table(&[vec![head], rows.collect()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles_come_from_the_sorted_values() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([9.0, 1.0, 2.0, 4.0]), Some(3.0));
        let sorted: Vec<u32> = (0..100).collect();
        let found = [percentile(&sorted, 0.5), percentile(&sorted, 0.99), percentile(&[], 0.5)];
        assert_eq!(found, [Some(50), Some(99), None]);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 9.0]).unwrap().median, 3.0);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn the_load_of_this_machine_can_be_read() {
        assert!(machine_load().iter().all(|load| *load >= 0.0));
    }
}
