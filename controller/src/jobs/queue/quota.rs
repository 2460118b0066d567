//! The quota ledger: what each queue uses, and what it may use.
//!
//! A queue lends at most `lend` of its nominal quota. The rest is its own. The lendable parts of all queues form the
//! cohort's pool, and usage beyond a queue's own part comes from the pool. A queue therefore never loses more than it
//! lends, and the cohort never uses more than the sum of its nominal quotas.

use std::collections::BTreeMap;

use super::facts::Queue;
use larder_kube::pod::amounts::Amounts;

/// Shares are fixed-point numbers with this many fractional bits.
const WHOLE_BITS: u32 = 32;

/// Why a queue's quota is not enough, for one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lack {
    pub(super) resource: String,
    pub(super) needs: u64,
    pub(super) uses: u64,
    /// The most that the queue may use, including what it can borrow now.
    pub(super) may_use: u64,
    /// The most that the queue may use without borrowing.
    pub(super) nominal: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger<'a> {
    accounts: BTreeMap<&'a str, Account<'a>>,
    /// By cohort and resource.
    pools: BTreeMap<&'a str, BTreeMap<&'a str, Pool>>,
}

#[derive(Clone, Debug)]
struct Account<'a> {
    queue: &'a Queue,
    balances: Vec<Balance<'a>>,
}

#[derive(Clone, Debug)]
struct Balance<'a> {
    resource: &'a str,
    nominal: u64,
    /// Including what it may borrow.
    most: u64,
    /// The quota that the queue never lends.
    own: u64,
    used: u64,
}

#[derive(Clone, Debug, Default)]
struct Pool {
    nominal: u64,
    lent: u64,
    used: u64,
}

impl Balance<'_> {
    /// The usage that comes from the pool.
    fn pooled(&self) -> u64 {
        self.used.saturating_sub(self.own)
    }
}

impl<'a> Ledger<'a> {
    pub(super) fn new(queues: &'a [Queue]) -> Self {
        let mut ledger = Self::default();
        for queue in queues {
            let has_cohort = !queue.cohort.is_empty();
            let balance = |(resource, quota): (&'a String, &super::facts::Quota)| {
                let lend = if has_cohort { quota.lend.unwrap_or(u64::MAX).min(quota.nominal) } else { 0 };
                let borrow = if has_cohort { quota.borrow.unwrap_or(u64::MAX) } else { 0 };
                Balance {
                    resource,
                    nominal: quota.nominal,
                    most: quota.nominal.saturating_add(borrow),
                    own: quota.nominal - lend,
                    used: 0,
                }
            };
            let balances: Vec<Balance<'a>> = queue.quotas.iter().map(balance).collect();
            if has_cohort {
                let pools = ledger.pools.entry(&queue.cohort).or_default();
                for balance in &balances {
                    let pool = pools.entry(balance.resource).or_default();
                    pool.nominal = pool.nominal.saturating_add(balance.nominal);
                    pool.lent = pool.lent.saturating_add(balance.nominal - balance.own);
                }
            }
            ledger.accounts.insert(&queue.name, Account { queue, balances });
        }
        ledger
    }

    pub(super) fn add(&mut self, queue: &str, amounts: &Amounts) {
        self.change(queue, amounts, u64::saturating_add);
    }

    pub(super) fn remove(&mut self, queue: &str, amounts: &Amounts) {
        self.change(queue, amounts, u64::saturating_sub);
    }

    fn change(&mut self, queue: &str, amounts: &Amounts, change: fn(u64, u64) -> u64) {
        let Some(account) = self.accounts.get_mut(queue) else { return };
        let mut pools = self.pools.get_mut(account.queue.cohort.as_str());
        for balance in &mut account.balances {
            let before = balance.pooled();
            balance.used = change(balance.used, amounts.get(balance.resource));
            if let Some(pool) = pools.as_mut().and_then(|pools| pools.get_mut(balance.resource)) {
                pool.used = pool.used - before + balance.pooled();
            }
        }
    }

    fn balances(&self, queue: &str) -> &[Balance<'a>] {
        self.accounts.get(queue).map_or(&[], |account| &account.balances)
    }

    fn pool(&self, queue: &str, resource: &str) -> Option<&Pool> {
        self.pools.get(self.accounts.get(queue)?.queue.cohort.as_str())?.get(resource)
    }

    /// The amount of a resource that a queue may use now, including what it can borrow.
    fn may_use(&self, queue: &str, balance: &Balance<'_>) -> u64 {
        let left = self.pool(queue, balance.resource).map_or(0, |pool| pool.lent.saturating_sub(pool.used));
        balance.most.min(balance.own.max(balance.used).saturating_add(left))
    }

    /// The number of additional pods with these requests that fit into a queue's quota.
    pub(super) fn pods_left(&self, queue: &str, requests: &Amounts) -> u32 {
        let left = |balance: &Balance<'_>| {
            let left = self.may_use(queue, balance).saturating_sub(balance.used);
            left.checked_div(requests.get(balance.resource)).unwrap_or(u64::MAX)
        };
        let least = self.balances(queue).iter().map(left).min().unwrap_or(u64::MAX);
        u32::try_from(least).unwrap_or(u32::MAX)
    }

    /// The first resource of which a queue has too little quota.
    pub(super) fn lack(&self, queue: &str, need: &Amounts) -> Option<Lack> {
        self.balances(queue).iter().find_map(|balance| {
            let (needs, may_use) = (need.get(balance.resource), self.may_use(queue, balance));
            let lack = Lack {
                resource: balance.resource.to_owned(),
                needs,
                uses: balance.used,
                may_use,
                nominal: balance.nominal,
            };
            (needs > 0 && balance.used.saturating_add(needs) > may_use).then_some(lack)
        })
    }

    /// A resource of which a queue could never have enough, even if no other queue used any, and the most that the
    /// queue may use of it.
    pub(super) fn beyond(&self, queue: &str, need: &Amounts) -> Option<(String, u64)> {
        self.balances(queue).iter().find_map(|balance| {
            let lent = self.pool(queue, balance.resource).map_or(0, |pool| pool.lent);
            let most = balance.most.min(balance.own.saturating_add(lent));
            (need.get(balance.resource) > most).then(|| (balance.resource.to_owned(), most))
        })
    }

    /// True if a queue's usage plus `more` is within its nominal quota.
    pub(super) fn is_nominal(&self, queue: &str, more: &Amounts) -> bool {
        self.balances(queue).iter().all(|balance| {
            let more = more.get(balance.resource);
            more == 0 || balance.used.saturating_add(more) <= balance.nominal
        })
    }

    /// A queue's usage beyond its nominal quota, for the resources in `of`.
    pub(super) fn borrowed(&self, queue: &str, of: &Amounts) -> Amounts {
        let balances = self.balances(queue).iter().filter(|balance| of.get(balance.resource) > 0);
        balances.map(|balance| (balance.resource, balance.used.saturating_sub(balance.nominal))).collect()
    }

    /// True if a queue or its cohort uses more than its total quota.
    pub(super) fn is_beyond(&self, queue: &str) -> bool {
        self.balances(queue).iter().any(|balance| {
            let pool_is_over = self.pool(queue, balance.resource).is_some_and(|pool| pool.used > pool.lent);
            balance.used > balance.most || pool_is_over
        })
    }

    /// True if a queue uses more than its quota allows, because the quota was lowered.
    pub(super) fn is_over(&self, queue: &str) -> bool {
        self.balances(queue).iter().any(|balance| {
            let pool_is_over = self.pool(queue, balance.resource).is_some_and(|pool| pool.used > pool.lent);
            balance.used > balance.most || pool_is_over && balance.used > balance.nominal
        })
    }

    /// A queue's dominant share, divided by its weight: the largest fraction of its cohort's quota that it uses, over
    /// all resources.
    pub(super) fn share(&self, queue: &str) -> u128 {
        let share = |balance: &Balance<'_>| {
            let whole = self.pool(queue, balance.resource).map_or(balance.nominal, |pool| pool.nominal);
            (u128::from(balance.used) << WHOLE_BITS).checked_div(u128::from(whole)).unwrap_or(0)
        };
        let weight = self.accounts.get(queue).map_or(1, |account| account.queue.weight.max(1));
        self.balances(queue).iter().map(share).max().unwrap_or(0) / u128::from(weight)
    }
}
