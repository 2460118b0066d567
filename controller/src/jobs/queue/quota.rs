//! The quota ledger: what each queue uses, and what it may use.
//!
//! [`Tree`] and [`Balances`] say how queues lend. The ledger has the balances of all resources, and of all resources of
//! flavors. A queue is limited in the resources for which it has quota.

use std::collections::BTreeSet;
use std::rc::Rc;

use larder_api::queue::tree::{Balances, Place, Tree};

use super::facts::Queue;
use larder_kube::pod::amounts::Amounts;

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

/// The limits within which a job of one queue takes from jobs of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Between {
    /// The job stays within the quota of its queue, or of the queues above it that are not above the other one.
    pub(super) is_nominal: bool,
    /// The nodes of the other queue and of the queues above it that are not above the job's.
    pub(super) nodes: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Ledger<'a> {
    queues: &'a [Queue],
    tree: Rc<Tree<'a>>,
    resources: Rc<[&'a str]>,
    /// By queue, the positions of the resources in which it is limited.
    limited: Rc<[Vec<usize>]>,
    /// By resource.
    balances: Vec<Balances>,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(queues: &'a [Queue]) -> Self {
        let place = |queue: &'a Queue| Place { name: &queue.name, parent: &queue.parent, cohort: &queue.cohort };
        let tree = Tree::new(queues.iter().map(place));
        let names: BTreeSet<&str> = queues.iter().flat_map(|queue| queue.quotas.keys()).map(String::as_str).collect();
        let resources: Rc<[&str]> = names.into_iter().collect();
        let limited = |queue: &Queue| {
            (0..resources.len()).filter(|at| queue.quotas.contains_key(resources[*at])).collect::<Vec<usize>>()
        };
        let balances = |resource: &&str| Balances::new(&tree, |queue| queues[queue].quotas.get(*resource).copied());
        Self {
            queues,
            limited: queues.iter().map(limited).collect(),
            balances: resources.iter().map(balances).collect(),
            resources,
            tree: Rc::new(tree),
        }
    }

    pub(super) fn add(&mut self, queue: &str, amounts: &Amounts) {
        let Some(queue) = self.tree.find(queue) else { return };
        for at in &self.limited[queue] {
            self.balances[*at].add(&self.tree, queue, amounts.get(self.resources[*at]));
        }
    }

    pub(super) fn remove(&mut self, queue: &str, amounts: &Amounts) {
        let Some(queue) = self.tree.find(queue) else { return };
        for at in &self.limited[queue] {
            self.balances[*at].remove(&self.tree, queue, amounts.get(self.resources[*at]));
        }
    }

    /// The resources in which a queue is limited, with its position and their balances.
    fn limits(&self, queue: &str) -> impl Iterator<Item = (&'a str, usize, &Balances)> {
        let queue = self.tree.find(queue);
        queue.into_iter().flat_map(move |queue| {
            self.limited[queue].iter().map(move |at| (self.resources[*at], queue, &self.balances[*at]))
        })
    }

    /// The number of additional pods with these requests that fit into a queue's quota.
    pub(super) fn pods_left(&self, queue: &str, requests: &Amounts) -> u32 {
        let left = self.limits(queue).map(|(resource, queue, balances)| {
            let left = balances.available(&self.tree, queue);
            left.checked_div(requests.get(resource)).unwrap_or(u64::MAX)
        });
        u32::try_from(left.min().unwrap_or(u64::MAX)).unwrap_or(u32::MAX)
    }

    /// The first resource of which a queue has too little quota.
    pub(super) fn lack(&self, queue: &str, need: &Amounts) -> Option<Lack> {
        self.limits(queue).find_map(|(resource, queue, balances)| {
            let (needs, left) = (need.get(resource), balances.available(&self.tree, queue));
            let uses = balances.used(queue);
            let lack = || Lack {
                resource: resource.to_owned(),
                needs,
                uses,
                may_use: uses.saturating_add(left),
                nominal: balances.capacity(queue),
            };
            (needs > left).then(lack)
        })
    }

    /// A resource of which a queue could never have enough, even if no other queue used any, and the most that the
    /// queue may use of it.
    pub(super) fn beyond(&self, queue: &str, need: &Amounts) -> Option<(String, u64)> {
        self.limits(queue).find_map(|(resource, queue, balances)| {
            let most = balances.potential(&self.tree, queue);
            (need.get(resource) > most).then(|| (resource.to_owned(), most))
        })
    }

    /// True if a queue's usage plus `more` is within its nominal quota.
    pub(super) fn is_nominal(&self, queue: &str, more: &Amounts) -> bool {
        self.limits(queue)
            .all(|(resource, queue, balances)| balances.is_within(&self.tree, queue, queue, more.get(resource)))
    }

    /// The limits within which a job of the queue `one` that needs `more` takes from the jobs of the queue `other`;
    /// `None` if they lend each other nothing.
    pub(super) fn between(&self, one: &str, other: &str, more: &Amounts) -> Option<Between> {
        let (from, to) = (self.tree.find(one)?, self.tree.find(other)?);
        let (top, top_of_other) = self.tree.apart(from, to)?;
        let is_nominal = self
            .limits(one)
            .all(|(resource, queue, balances)| balances.is_within(&self.tree, queue, top, more.get(resource)));
        let mut nodes: Vec<usize> = self.tree.path(to).take_while(|node| *node != top_of_other).collect();
        nodes.push(top_of_other);
        Some(Between { is_nominal, nodes })
    }

    /// The usage of a node beyond its capacity, for the resources in `of`.
    pub(super) fn borrowed(&self, node: usize, of: &Amounts) -> Amounts {
        let borrowed = self.resources.iter().zip(&self.balances).filter(|(resource, _)| of.get(resource) > 0);
        borrowed.map(|(resource, balances)| (*resource, balances.borrowed(node))).collect()
    }

    /// True if a queue, or any above it, uses more than its total quota.
    pub(super) fn is_beyond(&self, queue: &str) -> bool {
        self.limits(queue).any(|(_, queue, balances)| balances.is_beyond(&self.tree, queue))
    }

    /// True if a queue has to give back quota, because quota was lowered.
    pub(super) fn is_over(&self, queue: &str) -> bool {
        self.limits(queue).any(|(_, queue, balances)| balances.is_over(&self.tree, queue))
    }

    /// The dominant share of a queue, and before it those of the queues above, from the top down. Each is divided by
    /// the weight: it is the largest fraction of the tree's quota that is used, over all resources.
    pub(super) fn share(&self, queue: &str) -> Vec<u128> {
        let mut shares = Vec::new();
        for (_, queue, balances) in self.limits(queue) {
            for (at, (of, share)) in balances.shares(&self.tree, queue).into_iter().enumerate() {
                let weight = of.map_or(1, |of| self.queues[of].weight.max(1));
                shares.resize(shares.len().max(at + 1), 0);
                shares[at] = shares[at].max(share / u128::from(weight));
            }
        }
        // Queues at different heights are equal as long as none of them uses anything.
        while shares.last() == Some(&0) {
            shares.pop();
        }
        shares
    }
}
