//! The values of metrics at the time of a scrape.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

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
    /// The same, if it has fractions.
    Fraction(f64),
    /// The value of a histogram.
    Histogram {
        /// The upper end of each range and the number of values in it. The last end is infinite.
        buckets: Vec<(f64, u64)>,
        /// The sum of all values, in the metric's unit.
        sum: f64,
    },
}

impl Value {
    /// Adds the value of the same metric of something else.
    fn add(&mut self, other: Self) {
        match (self, other) {
            (Self::Number(sum), Self::Number(value)) => *sum += value,
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
        let histogram = |count, sum| {
            let buckets = vec![(1.0, count), (f64::INFINITY, 1)];
            Sample::of("read_seconds", [("tier", "store")], Value::Histogram { buckets, sum })
        };
        let mut sums = Sums::default();
        for sample in [
            Sample::with("reads_total", [("tier", "store")], 2),
            histogram(1, 0.5),
            Sample::with("reads_total", [("tier", "peer")], 1),
            Sample::with("reads_total", [("tier", "store")], 3),
            histogram(2, 0.25),
            Sample::of("stall_seconds_total", [], Value::Fraction(0.5)),
            Sample::of("stall_seconds_total", [], Value::Fraction(0.25)),
        ] {
            sums.add(sample);
        }
        let buckets = vec![(1.0, 3), (f64::INFINITY, 2)];
        assert_eq!(
            sums.samples().collect::<Vec<_>>(),
            [
                Sample::of("read_seconds", [("tier", "store")], Value::Histogram { buckets, sum: 0.75 }),
                Sample::with("reads_total", [("tier", "peer")], 1),
                Sample::with("reads_total", [("tier", "store")], 5),
                Sample::of("stall_seconds_total", [], Value::Fraction(0.75)),
            ]
        );
    }
}
