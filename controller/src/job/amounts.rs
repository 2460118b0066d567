//! Amounts of resources, and how sentences show them.

use std::collections::BTreeMap;

/// Amounts by the names of resources in Kubernetes: CPUs in thousandths, everything else in its own unit. An amount of nothing is
/// not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(BTreeMap<String, u64>);

impl Amounts {
    /// The amount of a resource.
    pub fn get(&self, resource: &str) -> u64 {
        self.0.get(resource).copied().unwrap_or(0)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(resource, amount)| (resource.as_str(), *amount))
    }

    /// True if there is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what `times` of `each` have.
    pub fn add(&mut self, each: &Self, times: u64) {
        if times == 0 {
            return;
        }
        for (resource, amount) in &each.0 {
            let sum = self.0.entry(resource.clone()).or_default();
            *sum = sum.saturating_add(amount.saturating_mul(times));
        }
    }

    /// What `times` of this are.
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

/// An amount with its unit: `1 GPU`, `1.5 CPUs`, `64 GiB of memory`.
pub fn show(resource: &str, amount: u64) -> String {
    format!("{} {}", number(resource, amount), unit(resource, amount))
}

/// A part of an amount: `6 of 8 GPUs`.
pub fn show_part(resource: &str, part: u64, whole: u64) -> String {
    format!("{} of {}", number(resource, part), show(resource, whole))
}

/// The number that goes with the unit of [`show`].
pub fn number(resource: &str, amount: u64) -> String {
    let (scale, digits) = match resource {
        "cpu" => (1_000.0, 3),
        _ if is_bytes(resource) => ((1_u64 << 30) as f64, 1),
        _ => return amount.to_string(),
    };
    let text = format!("{:.digits$}", amount as f64 / scale);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn unit(resource: &str, amount: u64) -> String {
    let counted = |one: &str, is_one: bool| if is_one { one.to_owned() } else { format!("{one}s") };
    match resource {
        "cpu" => counted("CPU", amount == 1_000),
        "memory" => "GiB of memory".to_owned(),
        "pods" => counted("pod", amount == 1),
        _ if is_bytes(resource) => format!("GiB of {resource}"),
        _ if resource.ends_with("/gpu") => counted("GPU", amount == 1),
        _ => resource.to_owned(),
    }
}

fn is_bytes(resource: &str) -> bool {
    resource == "memory" || resource == "ephemeral-storage" || resource.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_show_the_units_that_people_use() {
        for (resource, amount, text) in [
            ("nvidia.com/gpu", 1, "1 GPU"),
            ("nvidia.com/gpu", 8, "8 GPUs"),
            ("cpu", 1_500, "1.5 CPUs"),
            ("cpu", 1_000, "1 CPU"),
            ("cpu", 20_000, "20 CPUs"),
            ("memory", 64 << 30, "64 GiB of memory"),
            ("memory", 1_536 << 20, "1.5 GiB of memory"),
            ("hugepages-2Mi", 1 << 30, "1 GiB of hugepages-2Mi"),
            ("pods", 0, "0 pods"),
            ("rdma/hca", 2, "2 rdma/hca"),
        ] {
            assert_eq!(show(resource, amount), text);
        }
        assert_eq!(show_part("nvidia.com/gpu", 6, 8), "6 of 8 GPUs");
    }

    #[test]
    fn amounts_add_up_and_list_nothing_that_is_nothing() {
        let mut sum: Amounts = [("cpu", 2), ("gpu", 0), ("cpu", 1)].into_iter().collect();
        assert_eq!(sum.iter().collect::<Vec<_>>(), [("cpu", 3)]);
        sum.add(&[("gpu", 4)].into_iter().collect(), 2);
        sum.add(&[("rdma", 4)].into_iter().collect(), 0);
        assert_eq!((sum.get("cpu"), sum.get("gpu"), sum.iter().count()), (3, 8, 2));
        assert_eq!(sum.times(2), [("cpu", 6), ("gpu", 16)].into_iter().collect());
    }
}
