//! Amounts of resources.

use std::sync::Arc;

use larder_api::quantity::is_gpu;

/// Amounts by Kubernetes resource name: CPUs in thousandths, all other resources in their own unit. Amounts of zero are
/// not stored.
///
/// Every pod and every node has amounts, which are copied often. So they are a list, sorted by name, whose names are
/// shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(Vec<(Arc<str>, u64)>);

impl Amounts {
    /// The amount of a resource; 0 if it is not stored.
    pub fn get(&self, resource: &str) -> u64 {
        self.find(resource).map_or(0, |at| self.0[at].1)
    }

    /// The position of a resource; `Err`: the position where it belongs.
    fn find(&self, resource: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(name, _)| (**name).cmp(resource))
    }

    /// Adds an amount of one resource.
    fn add_one(&mut self, resource: &Arc<str>, amount: u64) {
        match self.find(resource) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(amount),
            Err(at) => self.0.insert(at, (Arc::clone(resource), amount)),
        }
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
        for (resource, amount) in &each.0 {
            self.add_one(resource, amount.saturating_mul(times));
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
        let mut sums = Self::default();
        for (resource, amount) in amounts.into_iter().filter(|(_, amount)| *amount > 0) {
            sums.add_one(&resource.into(), amount);
        }
        sums
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
