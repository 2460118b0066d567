//! Computes how much of its quota a Queue uses, how much it borrows and lends, and how much it may use now.
//!
//! The inputs are the specs of the queues and the usage in their statuses. [`super::tree`] says how queues lend.

use serde::Serialize;

use super::checked::{CheckedQueue, CheckedQuota};
use super::tree::{Balances, Place, Tree};
use super::{Queue, flavor};
use crate::quantity::amount;
use crate::quantity::words::{number, show, show_part};

/// A queue's account of one resource, in the unit of [`amount`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Account {
    /// The name of the resource.
    pub resource: String,
    /// The queue's nominal quota.
    pub nominal: u64,
    /// The amount that the queue's jobs use.
    pub used: u64,
    /// The part of `used` that other queues lend.
    pub borrowed: u64,
    /// The part of `nominal` that other queues use, so that this queue cannot use it now.
    pub lent: u64,
    /// The amount that the queue's jobs may use now, including the amount that it could borrow.
    pub may_use: u64,
}

impl Account {
    /// A sentence without the final period: `queue vision uses 6 of 8 GPUs, needs 4`.
    pub fn lacks(&self, queue: &str, needs: u64) -> String {
        let Self { resource, nominal, used, may_use, .. } = self;
        let uses = show_part(resource, *used, *nominal);
        let needs = number(resource, needs);
        if self.borrowed > 0 {
            let (uses, borrowed) = (show(resource, *used), number(resource, self.borrowed));
            format!("queue {queue} uses {uses}, {borrowed} of them borrowed, needs {needs}")
        } else if self.lent > 0 {
            format!("queue {queue} uses {uses} and has lent {}, needs {needs}", number(resource, self.lent))
        } else if may_use > nominal {
            let may_borrow = number(resource, may_use - nominal);
            format!("queue {queue} uses {uses} and may borrow {may_borrow} now, needs {needs}")
        } else {
            format!("queue {queue} uses {uses}, needs {needs}")
        }
    }
}

/// The accounts of a queue, one per resource, and one per resource of each flavor. `all` are all queues of the cluster.
/// A queue with an invalid spec has no accounts.
pub fn accounts(queue: &Queue, all: &[Queue]) -> Vec<Account> {
    let Ok(checked) = queue.spec.check() else { return Vec::new() };
    let others = all.iter().filter(|other| other.metadata.name != queue.metadata.name);
    let known: Vec<(&Queue, CheckedQueue)> =
        std::iter::once(queue).chain(others).filter_map(|queue| Some((queue, queue.spec.check().ok()?))).collect();
    let tree = Tree::new(known.iter().map(|(queue, checked)| Place {
        name: queue.metadata.name.as_deref().unwrap_or_default(),
        parent: checked.parent.as_deref().unwrap_or_default(),
        cohort: checked.cohort.as_deref().unwrap_or_default(),
    }));
    let account = |(resource, quota): (&String, &CheckedQuota)| {
        let mut balances = Balances::new(&tree, |at| known[at].1.quota.get(resource).copied());
        for (at, (queue, checked)) in known.iter().enumerate() {
            if checked.quota.contains_key(resource) {
                balances.add(&tree, at, used(queue, resource));
            }
        }
        let used = balances.used(0);
        let may_use = used.saturating_add(balances.available(&tree, 0));
        Account {
            resource: resource.clone(),
            nominal: quota.nominal,
            used,
            borrowed: used.saturating_sub(quota.nominal),
            lent: quota.nominal.saturating_sub(may_use),
            may_use,
        }
    };
    checked.quota.iter().map(account).collect()
}

fn used(queue: &Queue, name: &str) -> u64 {
    let usage = queue.status.as_ref().and_then(|status| match flavor::split(name) {
        (resource, Some(flavor)) => status.flavors.get(flavor)?.get(resource),
        (resource, None) => status.usage.get(resource),
    });
    usage.and_then(|usage| amount(flavor::split(name).0, &usage.used)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GPU: &str = "nvidia.com/gpu";

    fn queue(name: &str, cohort: Option<&str>, quota: Value, used: &str) -> Queue {
        serde_json::from_value(json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name},
            "spec": {"namespaces": ["*"], "cohort": cohort, "quota": {GPU: quota}},
            "status": {"usage": {GPU: {"used": used, "borrowed": "0"}}},
        }))
        .unwrap()
    }

    /// The account's nominal, used, borrowed, lent and usable amounts.
    fn numbers(queue: &Queue, all: &[Queue]) -> (u64, u64, u64, u64, u64) {
        let [account] = &accounts(queue, all)[..] else { panic!("one resource") };
        (account.nominal, account.used, account.borrowed, account.lent, account.may_use)
    }

    #[test]
    fn a_queue_alone_has_its_nominal_quota() {
        let alone = queue("a", None, json!({"nominal": 8}), "6");
        assert_eq!(numbers(&alone, std::slice::from_ref(&alone)), (8, 6, 0, 0, 8));
        let said = accounts(&alone, &[])[0].lacks("a", 4);
        assert_eq!(said, "queue a uses 6 of 8 GPUs, needs 4");
    }

    #[test]
    fn what_one_borrows_another_has_lent() {
        let all = [
            queue("a", Some("c"), json!({"nominal": 8}), "11"),
            queue("b", Some("c"), json!({"nominal": 8, "lend": 4}), "2"),
            queue("other", Some("d"), json!({"nominal": 100}), "0"),
        ];
        // Queue b never lends 4 of its 8 GPUs, and has lent 3 of the other 4.
        assert_eq!(numbers(&all[0], &all), (8, 11, 3, 0, 12));
        assert_eq!(numbers(&all[1], &all), (8, 2, 0, 3, 5));
        let said = |at: usize| accounts(&all[at], &all)[0].lacks(["a", "b"][at], 4);
        assert_eq!(said(0), "queue a uses 11 GPUs, 3 of them borrowed, needs 4");
        assert_eq!(said(1), "queue b uses 2 of 8 GPUs and has lent 3, needs 4");
    }

    #[test]
    fn borrowing_ends_at_its_limit() {
        let all = [
            queue("a", Some("c"), json!({"nominal": 8, "borrow": 2}), "8"),
            queue("b", Some("c"), json!({"nominal": 8}), "0"),
        ];
        assert_eq!(numbers(&all[0], &all), (8, 8, 0, 0, 10));
        assert_eq!(accounts(&all[0], &all)[0].lacks("a", 4), "queue a uses 8 of 8 GPUs and may borrow 2 now, needs 4");
    }

    #[test]
    fn queues_below_one_queue_lend_to_each_other_and_together_lend_no_more_than_it_may() {
        let below = |name: &str, parent: Option<&str>, quota: Value, used: &str| {
            let mut queue = queue(name, None, quota, used);
            queue.spec.parent = parent.map(str::to_owned);
            queue
        };
        let all = [
            below("company", None, json!({"nominal": 0}), "0"),
            below("lab", Some("company"), json!({"nominal": 2, "borrow": 3, "lend": 4}), "0"),
            below("vision", Some("lab"), json!({"nominal": 4}), "9"),
            below("speech", Some("lab"), json!({"nominal": 4, "lend": 1}), "1"),
            below("sales", Some("company"), json!({"nominal": 6}), "0"),
        ];
        // The lab has 2 + 4 + 1 that its queues share, of which it lends 4, and borrows up to 3 more.
        assert_eq!(numbers(&all[2], &all), (4, 9, 5, 0, 10));
        // Of its own 4, the queue speech keeps 3, and 1 is left of what the lab may borrow.
        assert_eq!(numbers(&all[3], &all), (4, 1, 0, 0, 4));
        assert_eq!(numbers(&all[4], &all), (6, 0, 0, 2, 4));
    }

    #[test]
    fn a_flavor_has_an_account_of_its_own() {
        let mut alone = queue("a", None, json!({"nominal": 8}), "6");
        let quota = json!([{"name": "h100", "quota": {GPU: {"nominal": 4}}}]);
        alone.spec.flavors = serde_json::from_value(quota).unwrap();
        let usage = json!({"h100": {GPU: {"used": "3", "borrowed": "0"}}});
        alone.status.as_mut().unwrap().flavors = serde_json::from_value(usage).unwrap();
        let accounts = accounts(&alone, &[]);
        let [all, of_flavor] = &accounts[..] else { panic!("{accounts:?}") };
        assert_eq!((all.used, all.may_use, of_flavor.used, of_flavor.may_use), (6, 8, 3, 4));
        assert_eq!(of_flavor.lacks("a", 2), "queue a uses 3 of 4 GPUs on h100, needs 2");
    }

    #[test]
    fn odd_numbers_are_no_panic() {
        let most = u64::MAX.to_string();
        let all = [
            queue("a", Some("c"), json!({"nominal": most}), &most),
            queue("b", Some("c"), json!({"nominal": most}), "-4"),
            queue("c", Some("c"), json!({"nominal": 1}), "much"),
        ];
        assert_eq!(numbers(&all[1], &all).1, 0);
        assert_eq!(numbers(&all[2], &all).1, 0);
        let refused = queue("d", None, json!({"nominal": "-1"}), "0");
        assert_eq!(accounts(&refused, &all), []);
    }
}
