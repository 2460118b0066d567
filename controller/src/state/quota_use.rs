//! The state of CacheQuotas beside the objects: totals over them, and the datasets that wait.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::{NodeQuota, PromisedDataset};

use crate::datasets::cache_quotas::Taken;
use crate::objects::Key;

/// The state of quotas beside the objects.
#[derive(Debug, Default)]
pub(super) struct QuotaUse {
    /// The promised room of each namespace.
    pub(super) promised: BTreeMap<String, u128>,
    /// The namespaces whose usage has changed; true if it has fallen.
    pub(super) changed: BTreeMap<String, bool>,
    /// The CacheQuota that counts for each namespace.
    pub(super) in_force: BTreeMap<String, Key>,
    /// The CacheQuotas that do not count, because an older one names a namespace of theirs.
    pub(super) taken: BTreeMap<Key, Taken>,
    /// The limits that each node enforces.
    pub(super) on_nodes: Vec<NodeQuota>,
    /// The datasets that their quota limits, and the bytes that each waits for.
    pub(super) limited: BTreeMap<Key, u64>,
    /// The datasets that wait to import, in the order in which they came.
    pub(super) import_queue: Vec<Key>,
    /// The datasets whose import is being created.
    pub(super) begun: BTreeSet<Key>,
    /// The Jobs of known Datasets that import.
    pub(super) importing: BTreeSet<Key>,
}

impl QuotaUse {
    /// Replaces the promises of a node.
    pub(super) fn replace(&mut self, before: &[PromisedDataset], now: &[PromisedDataset]) {
        if before == now {
            return;
        }
        let namespace = |promise: &PromisedDataset| {
            promise.name.split_once('/').map(|(namespace, _)| namespace.to_owned()).unwrap_or_default()
        };
        let mut sums: BTreeMap<String, (u128, u128)> = BTreeMap::new();
        for promise in before {
            sums.entry(namespace(promise)).or_default().0 += u128::from(promise.bytes);
        }
        for promise in now {
            sums.entry(namespace(promise)).or_default().1 += u128::from(promise.bytes);
        }
        for (namespace, (before, now)) in sums.into_iter().filter(|(_, (before, now))| before != now) {
            self.note(&namespace, now < before);
            let sum = self.promised.entry(namespace.clone()).or_default();
            *sum = *sum - before + now;
            if *sum == 0 {
                self.promised.remove(&namespace);
            }
        }
    }

    /// The usage of a namespace has changed.
    pub(super) fn note(&mut self, namespace: &str, has_fallen: bool) {
        *self.changed.entry(namespace.to_owned()).or_default() |= has_fallen;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_summed_up_by_namespace_and_a_fall_is_noted() {
        let promise = |name: &str, bytes| PromisedDataset { name: name.into(), bytes, ..PromisedDataset::default() };
        let mut usage = QuotaUse::default();
        let first = [promise("team-a/pets", 5), promise("team-a/cars", 7), promise("team-b/pets", 1)];
        usage.replace(&[], &first);
        assert_eq!(usage.promised, [("team-a".to_owned(), 12), ("team-b".to_owned(), 1)].into());
        assert_eq!(usage.changed, [("team-a".to_owned(), false), ("team-b".to_owned(), false)].into());
        usage.changed.clear();
        usage.replace(&first, &first[..1]);
        assert_eq!(usage.promised, [("team-a".to_owned(), 5)].into());
        assert_eq!(usage.changed, [("team-a".to_owned(), true), ("team-b".to_owned(), true)].into());
        usage.changed.clear();
        usage.replace(&first[..1], &first[..1]);
        assert!(usage.changed.is_empty());
    }
}
