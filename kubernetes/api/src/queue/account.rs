//! Computes how much of its quota a Queue uses, how much it borrows and lends, and how much it may use now.
//!
//! The inputs are the specs of the queues and the usage in their statuses. A queue lends at most `lend` of its nominal
//! quota and keeps the rest for itself. The amounts that the queues of a cohort lend are the cohort's pool.

use serde::Serialize;

use super::Queue;
use super::checked::{CheckedQueue, CheckedQuota};
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

/// The accounts of a queue, one per resource. `all` are all queues of the cluster, including this one. A queue with an
/// invalid spec has no accounts.
pub fn accounts(queue: &Queue, all: &[Queue]) -> Vec<Account> {
    let Ok(checked) = queue.spec.check() else { return Vec::new() };
    let of_cohort: Vec<(&Queue, CheckedQueue)> = all
        .iter()
        .filter(|other| checked.cohort.is_some() && other.spec.cohort == checked.cohort)
        .filter_map(|other| Some((other, other.spec.check().ok()?)))
        .collect();
    let account = |(resource, quota): (&String, &CheckedQuota)| {
        let used = used(queue, resource);
        let lines = || of_cohort.iter().filter_map(|(other, spec)| Some((*other, spec.quota.get(resource)?)));
        let (mut lent, mut pooled) = (0_u64, 0_u64);
        for (other, quota) in lines() {
            lent = lent.saturating_add(lends(quota));
            pooled = pooled.saturating_add(self::used(other, resource).saturating_sub(quota.nominal - lends(quota)));
        }
        let (own, most) = match &checked.cohort {
            Some(_) => (quota.nominal - lends(quota), quota.nominal.saturating_add(quota.borrow.unwrap_or(u64::MAX))),
            None => (quota.nominal, quota.nominal),
        };
        let may_use = most.min(own.max(used).saturating_add(lent.saturating_sub(pooled)));
        Account {
            resource: resource.clone(),
            nominal: quota.nominal,
            used,
            borrowed: used.saturating_sub(quota.nominal),
            lent: quota.nominal.saturating_sub(may_use.max(used)),
            may_use,
        }
    };
    checked.quota.iter().map(account).collect()
}

fn lends(quota: &CheckedQuota) -> u64 {
    quota.lend.unwrap_or(u64::MAX).min(quota.nominal)
}

fn used(queue: &Queue, resource: &str) -> u64 {
    let usage = queue.status.as_ref().and_then(|status| status.usage.get(resource));
    usage.and_then(|usage| amount(resource, &usage.used)).unwrap_or(0)
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
