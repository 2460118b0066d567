//! Amounts of resources.

use std::collections::BTreeMap;

use larder_api::quantity::is_gpu;

/// Amounts by Kubernetes resource name: CPUs in thousandths, all other resources in their own unit. Amounts of zero are
/// not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(BTreeMap<String, u64>);

impl Amounts {
    /// The amount of a resource; 0 if it is not stored.
    pub fn get(&self, resource: &str) -> u64 {
        self.0.get(resource).copied().unwrap_or(0)
    }

    /// All amounts with their resource names, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(resource, amount)| (resource.as_str(), *amount))
    }

    /// True if GPUs are among them.
    pub fn has_gpus(&self) -> bool {
        self.0.keys().any(|resource| is_gpu(resource))
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
        for (resource, amount) in &each.0 {
            let sum = self.0.entry(resource.clone()).or_default();
            *sum = sum.saturating_add(amount.saturating_mul(times));
        }
    }

    /// The amounts, each limited to the amount in `most`.
    pub fn at_most(&self, most: &Self) -> Self {
        self.iter().map(|(resource, amount)| (resource, amount.min(most.get(resource)))).collect()
    }

    /// The amounts, multiplied by `times`.
    pub fn times(&self, times: u64) -> Self {
        let mut product = Self::default();
        product.add(self, times);
        product
    }
}

impl<S: Into<String>> FromIterator<(S, u64)> for Amounts {
    /// Amounts of the same resource are added up.
    fn from_iter<I: IntoIterator<Item = (S, u64)>>(amounts: I) -> Self {
        let mut sums = BTreeMap::<String, u64>::new();
        for (resource, amount) in amounts.into_iter().filter(|(_, amount)| *amount > 0) {
            let sum = sums.entry(resource.into()).or_default();
            *sum = sum.saturating_add(amount);
        }
        Self(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
