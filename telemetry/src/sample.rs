//! The values of metrics at the time of a scrape.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// The names and values of a sample's labels.
pub type Labels = Vec<(&'static str, String)>;

/// The value of a metric in [`METRICS`](crate::METRICS), for one set of labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name in [`METRICS`](crate::METRICS), without the prefix `larder_`.
    pub name: &'static str,
    /// The sample's labels. Their values may come from users, so they are escaped in the output.
    pub labels: Labels,
    /// The value at the time of the scrape.
    pub value: Value,
}

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// The value of a counter or a gauge.
    Number(u64),
    /// The same in seconds. Times are added up exactly: a sum of fractions depends on their order, and a scraper takes
    /// the smallest fall of a counter for a restart.
    Time(Duration),
    /// The value of a gauge with fractions, or of a counter that is never added up.
    Fraction(f64),
    /// The value of a histogram of times.
    Histogram {
        /// The upper end of each range, in seconds, and the number of times in it. The last end is infinite.
        buckets: Vec<(f64, u64)>,
        /// The sum of all times.
        sum: Duration,
    },
}

impl Value {
    /// Adds the value of the same metric of something else.
    fn add(&mut self, other: Self) {
        match (self, other) {
            (Self::Number(sum), Self::Number(value)) => *sum += value,
            (Self::Time(sum), Self::Time(value)) => *sum += value,
            (Self::Fraction(sum), Self::Fraction(value)) => *sum += value,
            (Self::Histogram { buckets, sum }, Self::Histogram { buckets: others, sum: other }) => {
                buckets.iter_mut().zip(others).for_each(|((_, count), (_, other))| *count += other);
                *sum += other;
            }
            (value, other) => *value = other,
        }
    }
}

impl Sample {
    /// A counter or gauge without labels.
    pub fn new(name: &'static str, value: u64) -> Self {
        Self::with(name, [], value)
    }

    /// A counter or gauge with labels.
    pub fn with<const N: usize>(name: &'static str, labels: [(&'static str, &str); N], value: u64) -> Self {
        Self::of(name, labels, Value::Number(value))
    }

    /// A sample with any value.
    pub fn of<const N: usize>(name: &'static str, labels: [(&'static str, &str); N], value: Value) -> Self {
        Self { name, labels: labels.map(|(label, value)| (label, value.to_owned())).into(), value }
    }
}

/// Samples, of which those of one metric with the same labels are added up.
#[derive(Clone, Debug, Default)]
pub struct Sums(BTreeMap<(&'static str, Labels), Value>);

impl Sums {
    /// Adds a sample.
    pub fn add(&mut self, Sample { name, labels, value }: Sample) {
        match self.0.entry((name, labels)) {
            Entry::Vacant(entry) => {
                entry.insert(value);
            }
            Entry::Occupied(entry) => entry.into_mut().add(value),
        }
    }

    /// The samples, by name.
    pub fn samples(self) -> impl Iterator<Item = Sample> {
        self.0.into_iter().map(|((name, labels), value)| Sample { name, labels, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_with_the_same_labels_are_added_up_and_others_are_not() {
        let histogram = |count, millis| {
            let (buckets, sum) = (vec![(1.0, count), (f64::INFINITY, 1)], Duration::from_millis(millis));
            Sample::of("read_seconds", [("tier", "store")], Value::Histogram { buckets, sum })
        };
        let stall = |millis| Sample::of("stall_seconds_total", [], Value::Time(Duration::from_millis(millis)));
        let mut sums = Sums::default();
        for sample in [
            Sample::with("reads_total", [("tier", "store")], 2),
            histogram(1, 500),
            Sample::with("reads_total", [("tier", "peer")], 1),
            Sample::with("reads_total", [("tier", "store")], 3),
            histogram(2, 250),
            stall(500),
            stall(250),
        ] {
            sums.add(sample);
        }
        let (buckets, sum) = (vec![(1.0, 3), (f64::INFINITY, 2)], Duration::from_millis(750));
        assert_eq!(
            sums.samples().collect::<Vec<_>>(),
            [
                Sample::of("read_seconds", [("tier", "store")], Value::Histogram { buckets, sum }),
                Sample::with("reads_total", [("tier", "peer")], 1),
                Sample::with("reads_total", [("tier", "store")], 5),
                stall(750),
            ]
        );
    }

    #[test]
    fn a_sum_of_times_does_not_depend_on_their_order() {
        let times = [100, 200, 300].map(Duration::from_millis);
        let sum = |order: [usize; 3]| {
            let mut sums = Sums::default();
            order.iter().for_each(|at| sums.add(Sample::of("stall_seconds_total", [], Value::Time(times[*at]))));
            sums.samples().collect::<Vec<_>>()
        };
        let fractions = |order: [usize; 3]| order.iter().map(|at| times[*at].as_secs_f64()).sum::<f64>();
        assert!(fractions([2, 1, 0]) < fractions([0, 1, 2]), "a sum of fractions would fall");
        assert_eq!(sum([2, 1, 0]), sum([0, 1, 2]));
    }
}
