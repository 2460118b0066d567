//! The distribution of the slots for warming.
//!
//! A slot that is free goes to the namespace that has the fewest, and there to the dataset that has the fewest. Nodes
//! of jobs with GPUs come first, until they have half of all slots; from then on they take turns with all others. The
//! others leave an eighth of the slots to them, so that a job with GPUs does not wait until a large fill ends. A slot
//! is never taken back.

use std::collections::BTreeMap;

use crate::objects::Key;

/// The nodes of a dataset that wait for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Nodes of jobs with GPUs.
    pub urgent: u32,
    pub others: u32,
    /// The slots that nodes of jobs with GPUs have.
    pub urgent_held: u32,
}

impl Needs {
    /// True if no node waits.
    pub fn are_met(&self) -> bool {
        self.urgent + self.others == 0
    }

    /// The needs that remain after `started` nodes have got a slot. Nodes of jobs with GPUs get theirs first.
    pub fn after(self, started: u32) -> Self {
        let urgent = started.min(self.urgent);
        Self {
            urgent: self.urgent - urgent,
            others: self.others.saturating_sub(started - urgent),
            urgent_held: self.urgent_held + urgent,
        }
    }
}

/// A dataset that has slots or waits for them.
#[derive(Clone, Debug, Default)]
pub struct Claimant {
    /// The slots that it has.
    pub held: u32,
    pub needs: Needs,
}

/// The namespaces and datasets that were served last. They break ties, so that the same ones are not always served
/// first.
#[derive(Debug, Default)]
pub struct Turns {
    last: u64,
    namespaces: BTreeMap<String, u64>,
    datasets: BTreeMap<Key, u64>,
}

impl Turns {
    /// Records that a dataset got slots.
    pub fn served(&mut self, dataset: &Key) {
        self.last += 1;
        self.namespaces.insert(dataset.namespace.clone(), self.last);
        self.datasets.insert(dataset.clone(), self.last);
    }

    /// Forgets a dataset, and its namespace if `was_last` of it.
    pub fn forget(&mut self, dataset: &Key, was_last: bool) {
        self.datasets.remove(dataset);
        if was_last {
            self.namespaces.remove(&dataset.namespace);
        }
    }

    fn of(&self, dataset: &Key) -> (u64, u64) {
        let namespace = self.namespaces.get(&dataset.namespace);
        (namespace.copied().unwrap_or(0), self.datasets.get(dataset).copied().unwrap_or(0))
    }
}

/// The slots that each dataset may take now, of `most` in all.
pub fn share_out(most: u32, mut claimants: BTreeMap<Key, Claimant>, turns: &Turns) -> BTreeMap<Key, u32> {
    let held: u32 = claimants.values().map(|claimant| claimant.held).sum();
    let mut urgent_held: u32 = claimants.values().map(|claimant| claimant.needs.urgent_held.min(claimant.held)).sum();
    let mut others_held = held - urgent_held;
    let mut namespaces: BTreeMap<String, u32> = BTreeMap::new();
    for (key, claimant) in &claimants {
        *namespaces.entry(key.namespace.clone()).or_default() += claimant.held;
    }
    let mut granted = BTreeMap::new();
    for _ in held..most {
        let is_first = urgent_held < most.div_ceil(2);
        let may_others = others_held < most - most / 8;
        let next = |wants: &dyn Fn(&Needs) -> bool| {
            let waiting = claimants.iter().filter(|(_, claimant)| wants(&claimant.needs));
            let key = waiting.min_by_key(|(key, claimant)| {
                let (namespace, dataset) = turns.of(key);
                (namespaces[&key.namespace], namespace, claimant.held, dataset, *key)
            });
            key.map(|(key, _)| key.clone())
        };
        let urgent = if is_first { next(&|needs| needs.urgent > 0) } else { None };
        let all = || next(&|needs| needs.urgent > 0 || may_others && needs.others > 0);
        let Some(key) = urgent.or_else(all) else { break };
        if let Some(claimant) = claimants.get_mut(&key) {
            let held = if claimant.needs.urgent > 0 { &mut urgent_held } else { &mut others_held };
            *held += 1;
            claimant.held += 1;
            claimant.needs = claimant.needs.after(1);
        }
        *namespaces.entry(key.namespace.clone()).or_default() += 1;
        *granted.entry(key).or_default() += 1;
    }
    granted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dataset with slots, and nodes that wait: of jobs with GPUs, and others.
    fn claimant(held: u32, urgent: u32, others: u32) -> Claimant {
        Claimant { held, needs: Needs { urgent, others, urgent_held: 0 } }
    }

    fn share(most: u32, claimants: &[(&str, &str, Claimant)], turns: &Turns) -> BTreeMap<String, u32> {
        let claimants = claimants.iter().map(|(namespace, name, of)| (Key::new(namespace, name), of.clone()));
        let granted = share_out(most, claimants.collect(), turns);
        granted.into_iter().map(|(key, slots)| (key.to_string(), slots)).collect()
    }

    fn expected(of: &[(&str, u32)]) -> BTreeMap<String, u32> {
        of.iter().map(|(key, slots)| ((*key).to_owned(), *slots)).collect()
    }

    #[test]
    fn namespaces_get_equal_shares_and_so_do_their_datasets() {
        let turns = Turns::default();
        let bulk = || claimant(0, 0, 5000);
        let all = [("aaa", "one", bulk()), ("aaa", "two", bulk()), ("mmm", "x", bulk()), ("zzz", "pets", bulk())];
        assert_eq!(
            share(24, &all, &turns),
            expected(&[("aaa/one", 4), ("aaa/two", 3), ("mmm/x", 7), ("zzz/pets", 7)]),
            "21 of 24: an eighth is for jobs with GPUs"
        );
        // One that has more than its share gets none of the slots that become free.
        let late = [("aaa", "one", claimant(5, 0, 90)), ("zzz", "pets", bulk())];
        assert_eq!(share(7, &late, &turns), expected(&[("zzz/pets", 2)]));
        // A small one leaves the rest to others.
        let small = [("aaa", "one", bulk()), ("zzz", "pets", claimant(0, 0, 1))];
        assert_eq!(share(7, &small, &turns), expected(&[("aaa/one", 6), ("zzz/pets", 1)]));
    }

    #[test]
    fn nodes_of_jobs_with_gpus_come_first_up_to_half_and_others_are_not_starved() {
        let turns = Turns::default();
        let urgent = || claimant(0, 100, 0);
        let all = [("aaa", "bulk", claimant(0, 0, 5000)), ("zzz", "pets", urgent())];
        assert_eq!(share(16, &all, &turns), expected(&[("aaa/bulk", 8), ("zzz/pets", 8)]));
        // Two of them have half together, and then all take turns: three namespaces have 16 slots.
        let both = [("aaa", "bulk", claimant(0, 0, 5000)), ("yyy", "cars", urgent()), ("zzz", "pets", urgent())];
        let granted = share(16, &both, &turns);
        assert!(granted.values().all(|slots| *slots >= 5), "{granted:?}");
        // A fill that was alone has left an eighth free.
        let alone = share(16, &all[..1], &turns);
        assert_eq!(alone, expected(&[("aaa/bulk", 14)]));
        let later = [("aaa", "bulk", claimant(14, 0, 5000)), ("zzz", "pets", urgent())];
        assert_eq!(share(16, &later, &turns), expected(&[("zzz/pets", 2)]));
    }

    #[test]
    fn with_fewer_slots_than_namespaces_they_take_turns() {
        let mut turns = Turns::default();
        let all = ["aaa", "mmm", "zzz"].map(|namespace| (namespace, "d", claimant(0, 0, 9)));
        let mut served = Vec::new();
        for _ in 0..6 {
            let granted = share(1, &all, &turns);
            let key = granted.into_keys().next().expect("one slot");
            turns.served(&Key::parse(&key).expect("a key"));
            served.push(key);
        }
        assert_eq!(served, ["aaa/d", "mmm/d", "zzz/d", "aaa/d", "mmm/d", "zzz/d"]);
        turns.forget(&Key::new("aaa", "d"), true);
        assert_eq!(turns.of(&Key::new("aaa", "d")), (0, 0));
    }

    #[test]
    fn needs_are_met_by_jobs_with_gpus_first() {
        let needs = Needs { urgent: 2, others: 3, urgent_held: 1 };
        assert_eq!(needs.after(3), Needs { urgent: 0, others: 2, urgent_held: 3 });
        assert!(needs.after(5).are_met() && !needs.after(4).are_met());
    }
}
