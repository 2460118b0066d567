//! Amounts of resources.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::sync::Arc;

use larder_api::quantity::is_gpu;

/// Amounts by Kubernetes resource name: CPUs in thousandths, all other resources in their own unit. Amounts of zero are
/// not stored.
///
/// Every pod and every node has amounts, which are copied often. So they are a list, sorted by name, whose names are
/// shared. A pod may request thousands of resources, so no name is inserted into a list by itself: that would move all
/// names after it, each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(Vec<(Arc<str>, u64)>);

impl Amounts {
    /// The amount of a resource; 0 if it is not stored.
    pub fn get(&self, resource: &str) -> u64 {
        self.0.binary_search_by(|(name, _)| (**name).cmp(resource)).map_or(0, |at| self.0[at].1)
    }

    /// All amounts with their resource names, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(resource, amount)| (&**resource, *amount))
    }

    /// True if GPUs are among them.
    pub fn has_gpus(&self) -> bool {
        self.0.iter().any(|(resource, _)| is_gpu(resource))
    }

    /// True if all amounts are zero.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds `each`, `times` times.
    pub fn add(&mut self, each: &Self, times: u64) {
        if times == 0 {
            return;
        }
        let known = self.0.len();
        for (resource, amount) in &each.0 {
            let amount = amount.saturating_mul(times);
            match self.0[..known].binary_search_by(|(name, _)| name.cmp(resource)) {
                Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(amount),
                Err(_) => self.0.push((Arc::clone(resource), amount)),
            }
        }
        if self.0.len() > known {
            // Both parts are sorted, and this sort merges such parts in linear time.
            self.0.sort_by(|(one, _), (other, _)| one.cmp(other));
        }
    }

    /// The amounts, each limited to the amount in `most`.
    pub fn at_most(&self, most: &Self) -> Self {
        let limited = self.0.iter().map(|(resource, amount)| (Arc::clone(resource), (*amount).min(most.get(resource))));
        Self(limited.filter(|(_, amount)| *amount > 0).collect())
    }

    /// The amounts, multiplied by `times`.
    pub fn times(&self, times: u64) -> Self {
        let mut product = Self::default();
        product.add(self, times);
        product
    }
}

impl<S: Into<Arc<str>>> FromIterator<(S, u64)> for Amounts {
    /// Amounts of the same resource are added up.
    fn from_iter<I: IntoIterator<Item = (S, u64)>>(amounts: I) -> Self {
        let amounts = amounts.into_iter().filter(|(_, amount)| *amount > 0);
        let mut sums: Vec<(Arc<str>, u64)> = amounts.map(|(resource, amount)| (resource.into(), amount)).collect();
        sums.sort_by(|(one, _), (other, _)| one.cmp(other));
        sums.dedup_by(|(resource, amount), (before, sum)| {
            let is_same = resource == before;
            if is_same {
                *sum = sum.saturating_add(*amount);
            }
            is_same
        });
        Self(sums)
    }
}

/// Many amounts are summed together. Added one by one, all that were added before would be merged with each.
impl<'a> Sum<&'a Self> for Amounts {
    fn sum<I: Iterator<Item = &'a Self>>(all: I) -> Self {
        let mut sums: BTreeMap<&Arc<str>, u64> = BTreeMap::new();
        for (resource, amount) in all.flat_map(|amounts| &amounts.0) {
            let sum = sums.entry(resource).or_default();
            *sum = sum.saturating_add(*amount);
        }
        Self(sums.into_iter().map(|(resource, sum)| (Arc::clone(resource), sum)).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Amounts of up to a hundred resources, in any order, some of them several times.
    fn any_list() -> impl Strategy<Value = Vec<(String, u64)>> {
        let amount = prop_oneof![0..4_u64, Just(u64::MAX)];
        let one = (0..100_u8, amount).prop_map(|(name, amount)| (format!("r{name}"), amount));
        prop::collection::vec(one, 0..60)
    }

    proptest! {
        #[test]
        fn sums_are_those_of_a_map(lists in prop::collection::vec(any_list(), 0..6), times in 0..3_u64) {
            let mut expected: BTreeMap<String, u64> = BTreeMap::new();
            for (resource, amount) in lists.iter().flatten() {
                let sum = expected.entry(resource.clone()).or_default();
                *sum = sum.saturating_add(*amount);
            }
            let expected = |times: u64| -> Vec<(String, u64)> {
                let sums = expected.iter().map(|(resource, sum)| (resource.clone(), sum.saturating_mul(times)));
                sums.filter(|(_, sum)| *sum > 0).collect()
            };
            let listed = |amounts: &Amounts| -> Vec<(String, u64)> {
                amounts.iter().map(|(resource, amount)| (resource.to_owned(), amount)).collect()
            };
            let collected: Amounts = lists.iter().flatten().cloned().collect();
            prop_assert_eq!(listed(&collected), expected(1));
            let each: Vec<Amounts> = lists.iter().map(|list| list.iter().cloned().collect()).collect();
            let summed: Amounts = each.iter().sum();
            prop_assert_eq!(listed(&summed), expected(1));
            let mut added = Amounts::default();
            for amounts in &each {
                added.add(amounts, times);
            }
            prop_assert_eq!(listed(&added), expected(times));
        }
    }

    /// A million resources, as many in each of these parts. The names of each part come before those of the last one.
    fn million(parts: u64) -> impl Iterator<Item = Amounts> {
        let each = 1_000_000 / parts;
        let one = |name: u64| (format!("example.com/r{name:06}"), name + 1);
        (0..parts).rev().map(move |part| (part * each..(part + 1) * each).map(one).collect::<Amounts>())
    }

    /// Checks the sum of [`million`].
    fn is_million(sum: &Amounts) {
        assert_eq!(sum.iter().count(), 1_000_000);
        assert!((1..).zip(sum.iter()).all(|(expected, (_, amount))| amount == expected));
        assert_eq!((sum.get("example.com/r000000"), sum.get("example.com/r999999")), (1, 1_000_000));
    }

    // If each name moved all names after it, this and the next test would take longer than any test may.
    #[test]
    fn many_amounts_of_many_resources_are_added() {
        let mut sum = Amounts::default();
        for each in million(50) {
            sum.add(&each, 1);
        }
        is_million(&sum);
        sum.add(&sum.clone(), 1);
        assert_eq!((sum.iter().count(), sum.get("example.com/r999999")), (1_000_000, 2_000_000));
    }

    #[test]
    fn many_amounts_of_few_resources_are_summed() {
        let all: Vec<Amounts> = million(20_000).collect();
        let sum: Amounts = all.iter().sum();
        is_million(&sum);
    }

    #[test]
    fn amounts_add_up_and_those_of_zero_are_not_listed() {
        let mut sum: Amounts = [("cpu", 2), ("gpu", 0), ("cpu", 1)].into_iter().collect();
        assert_eq!(sum.iter().collect::<Vec<_>>(), [("cpu", 3)]);
        sum.add(&[("gpu", 4)].into_iter().collect(), 2);
        sum.add(&[("rdma", 4)].into_iter().collect(), 0);
        assert_eq!((sum.get("cpu"), sum.get("gpu"), sum.iter().count()), (3, 8, 2));
        assert_eq!(sum.at_most(&[("gpu", 5)].into_iter().collect()), [("gpu", 5)].into_iter().collect());
        assert!(!sum.has_gpus() && Amounts::from_iter([("nvidia.com/gpu", 1)]).has_gpus());
        assert!(!Amounts::from_iter([("nvidia.com/gpu", 0)]).has_gpus());
        assert_eq!(sum.times(2), [("cpu", 6), ("gpu", 16)].into_iter().collect());
    }
}
