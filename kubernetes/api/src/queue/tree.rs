//! The tree of queues, and how much of one resource each of them may use.
//!
//! A queue has two nodes: its *jobs*, and above them its *group*, which is the queue with all queues below it. Groups
//! are below the group of the queue's parent, or below a cohort. A group keeps the part of its capacity that it does
//! not lend. The rest is part of the capacity of the node above, and usage beyond the kept part is usage of that node.
//! No node ever lends more than it may, and a tree never uses more than the sum of its nominal quotas.

use std::collections::{BTreeMap, BTreeSet};

use super::checked::CheckedQuota;

/// Shares are fixed-point numbers with this many fractional bits.
const WHOLE_BITS: u32 = 32;

/// The place of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place<'a> {
    /// The name of the queue.
    pub name: &'a str,
    /// The queue above it; empty for none.
    pub parent: &'a str,
    /// Its cohort, which is above it; empty for none. It counts only without a parent.
    pub cohort: &'a str,
}

/// Queues and cohorts, each with the node above it.
///
/// The jobs of the queue at position `i` of `n` queues are the node `i`, and its group is the node `n + i`.
#[derive(Clone, Debug, Default)]
pub struct Tree<'a> {
    queues: BTreeMap<&'a str, usize>,
    names: Vec<&'a str>,
    above: Vec<Option<usize>>,
    /// All nodes, each before the one above it.
    upwards: Vec<usize>,
    /// The queues that are above themselves.
    cyclic: BTreeSet<usize>,
    /// The positions of the queues above.
    parents: Vec<Option<usize>>,
    /// The queues that have others below them.
    with_others: BTreeSet<usize>,
}

impl<'a> Tree<'a> {
    /// A parent that does not exist counts as none. Queues that are above themselves have no parent.
    pub fn new(places: impl IntoIterator<Item = Place<'a>>) -> Self {
        let places: Vec<Place<'a>> = places.into_iter().collect();
        let count = places.len();
        let queues: BTreeMap<&str, usize> = places.iter().enumerate().map(|(at, place)| (place.name, at)).collect();
        let parents: Vec<Option<usize>> = places.iter().map(|place| queues.get(place.parent).copied()).collect();
        let cyclic = cycles(&parents);
        let cohorts: BTreeSet<&str> = places.iter().map(|place| place.cohort).filter(|name| !name.is_empty()).collect();
        let cohorts: BTreeMap<&str, usize> = cohorts.into_iter().zip(2 * count..).collect();
        let mut above: Vec<Option<usize>> = (0..count).map(|queue| Some(count + queue)).collect();
        above.extend(places.iter().enumerate().map(|(queue, place)| match parents[queue] {
            Some(_) if cyclic.contains(&queue) => None,
            Some(parent) => Some(count + parent),
            None => cohorts.get(place.cohort).copied(),
        }));
        above.resize(2 * count + cohorts.len(), None);
        let depth = |mut node: usize| {
            let mut depth = 0_usize;
            while let Some(next) = above[node] {
                (node, depth) = (next, depth + 1);
            }
            depth
        };
        let mut upwards: Vec<usize> = (0..above.len()).collect();
        upwards.sort_by_cached_key(|node| std::cmp::Reverse(depth(*node)));
        let names = places.iter().map(|place| place.name).collect();
        let with_others = parents.iter().copied().flatten().collect();
        Self { queues, names, above, upwards, cyclic, parents, with_others }
    }

    /// The position of a queue.
    pub fn find(&self, queue: &str) -> Option<usize> {
        self.queues.get(queue).copied()
    }

    /// The nodes from the jobs of a queue upwards.
    pub fn path(&self, queue: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(queue), move |node| self.above[*node])
    }

    /// The queue that a group belongs to; `None` for a cohort.
    fn queue_of(&self, node: usize) -> Option<usize> {
        (node < 2 * self.names.len()).then(|| node % self.names.len())
    }

    /// The nodes in which two queues differ, right below the lowest node that is above both; `None` if there is no such
    /// node.
    pub fn apart(&self, one: usize, other: usize) -> Option<(usize, usize)> {
        let of_other: Vec<usize> = self.path(other).collect();
        let mut below = one;
        for node in self.path(one) {
            if let Some(at) = of_other.iter().position(|there| *there == node) {
                return Some((below, of_other[at.checked_sub(1)?]));
            }
            below = node;
        }
        None
    }

    /// The queues that are above themselves and above this queue, or are this queue: `a is below b, and b below a`.
    pub fn cycle(&self, queue: usize) -> Option<String> {
        let first =
            self.path(queue).filter_map(|node| self.queue_of(node)).find(|there| self.cyclic.contains(there))?;
        let mut around = vec![self.names[first]];
        let mut next = self.parents[first]?;
        while next != first {
            around.push(self.names[next]);
            next = self.parents[next]?;
        }
        around.push(self.names[first]);
        let steps: Vec<String> = around.windows(2).map(|pair| format!("{} is below {}", pair[0], pair[1])).collect();
        Some(steps.join(", "))
    }
}

/// The positions that are on a cycle.
fn cycles(parents: &[Option<usize>]) -> BTreeSet<usize> {
    let mut cyclic = BTreeSet::new();
    // The walk, counted from 1, that has come to each position.
    let mut walked = vec![0; parents.len()];
    for start in 0..parents.len() {
        let walk = start + 1;
        let mut at = Some(start);
        while let Some(here) = at.filter(|here| walked[*here] == 0) {
            walked[here] = walk;
            at = parents[here];
        }
        // It has met itself.
        let mut around = at.filter(|here| walked[*here] == walk);
        while let Some(here) = around.filter(|here| cyclic.insert(*here)) {
            around = parents[here];
        }
    }
    cyclic
}

/// The amounts of one resource at each node of a tree.
#[derive(Clone, Debug, Default)]
pub struct Balances(Vec<Balance>);

#[derive(Clone, Copy, Debug, Default)]
struct Balance {
    /// The sum of the nominal quotas of all queues here.
    nominal: u64,
    /// The amount that the queues here may use without borrowing.
    capacity: u64,
    /// The part of the capacity that is never lent.
    kept: u64,
    /// Including the most that may be borrowed.
    most: u64,
    used: u64,
}

impl Balance {
    /// The usage that counts at the node above.
    fn passed_on(&self) -> u64 {
        self.used.saturating_sub(self.kept)
    }
}

impl Balances {
    /// `quota` is the quota of the queue at a position; `None` if it does not list the resource.
    pub fn new(tree: &Tree<'_>, quota: impl Fn(usize) -> Option<CheckedQuota>) -> Self {
        let mut all = vec![Balance::default(); tree.above.len()];
        for node in tree.upwards.iter().copied() {
            let quota = tree.queue_of(node).and_then(&quota);
            let mut balance = all[node];
            if node < tree.names.len() {
                let nominal = quota.map_or(0, |quota| quota.nominal);
                (balance.nominal, balance.capacity, balance.most) = (nominal, nominal, u64::MAX);
            } else if tree.above[node].is_some() {
                let lend = quota.and_then(|quota| quota.lend).unwrap_or(u64::MAX);
                let borrow = quota.and_then(|quota| quota.borrow).unwrap_or(u64::MAX);
                balance.kept = balance.capacity.saturating_sub(lend);
                balance.most = balance.capacity.saturating_add(borrow);
            } else {
                (balance.kept, balance.most) = (balance.capacity, balance.capacity);
            }
            all[node] = balance;
            if let Some(above) = tree.above[node] {
                let above = &mut all[above];
                above.nominal = above.nominal.saturating_add(balance.nominal);
                above.capacity = above.capacity.saturating_add(balance.capacity - balance.kept);
            }
        }
        Self(all)
    }

    /// Adds an amount to what the jobs of a queue use.
    pub fn add(&mut self, tree: &Tree<'_>, queue: usize, amount: u64) {
        self.change(tree, queue, |balance, amount| balance.used.saturating_add(amount), amount);
    }

    /// Subtracts an amount from what the jobs of a queue use.
    pub fn remove(&mut self, tree: &Tree<'_>, queue: usize, amount: u64) {
        self.change(tree, queue, |balance, amount| balance.used.saturating_sub(amount), amount);
    }

    fn change(&mut self, tree: &Tree<'_>, queue: usize, change: fn(&Balance, u64) -> u64, mut amount: u64) {
        for node in tree.path(queue) {
            let balance = &mut self.0[node];
            let before = balance.passed_on();
            balance.used = change(balance, amount);
            amount = balance.passed_on().abs_diff(before);
            if amount == 0 {
                break;
            }
        }
    }

    /// The amount that a node uses: the jobs of a queue, or what a group or a cohort has to provide for those below.
    pub fn used(&self, node: usize) -> u64 {
        self.0[node].used
    }

    /// The amount that a node may use without borrowing.
    pub fn capacity(&self, node: usize) -> u64 {
        self.0[node].capacity
    }

    /// The usage of a node beyond its capacity.
    pub fn borrowed(&self, node: usize) -> u64 {
        self.0[node].used.saturating_sub(self.0[node].capacity)
    }

    /// The additional amount that a node may use now.
    pub fn available(&self, tree: &Tree<'_>, node: usize) -> u64 {
        let balance = &self.0[node];
        let here = balance.kept.saturating_sub(balance.used);
        let to_borrow = balance.most.saturating_sub(balance.used.max(balance.kept));
        let above = tree.above[node].map_or(0, |above| self.available(tree, above).min(to_borrow));
        here.saturating_add(above)
    }

    /// The most that a node could ever use, even if no other used any.
    pub fn potential(&self, tree: &Tree<'_>, node: usize) -> u64 {
        let balance = &self.0[node];
        let above = tree.above[node].map_or(0, |above| self.potential(tree, above));
        balance.kept.saturating_add(above).min(balance.most)
    }

    /// True if a node on the way up from a queue stays within its capacity when the jobs of the queue use `more`, or
    /// has nothing to provide for that.
    pub fn is_within(&self, tree: &Tree<'_>, queue: usize, node: usize, mut more: u64) -> bool {
        for at in tree.path(queue) {
            let before = self.0[at];
            let after = Balance { used: before.used.saturating_add(more), ..before };
            if more == 0 || at == node {
                return more == 0 || after.used <= after.capacity;
            }
            more = after.passed_on() - before.passed_on();
        }
        true
    }

    /// True if a node uses more than it may, because quotas were lowered or queues have moved.
    fn is_beyond_at(&self, node: usize) -> bool {
        self.0[node].used > self.0[node].most
    }

    /// True if any node on the way up from a queue uses more than it may.
    pub fn is_beyond(&self, tree: &Tree<'_>, queue: usize) -> bool {
        tree.path(queue).any(|node| self.is_beyond_at(node))
    }

    /// As [`Self::is_beyond`], if the queue is among those that have to give back the excess: all nodes below that one
    /// borrow.
    pub fn is_over(&self, tree: &Tree<'_>, queue: usize) -> bool {
        let mut below_borrow = true;
        tree.path(queue).any(|node| {
            let is_over = below_borrow && self.is_beyond_at(node);
            below_borrow &= self.borrowed(node) > 0;
            is_over
        })
    }

    /// The shares of the quota of the whole tree that the groups above a queue use, from the top down, each with its
    /// queue. If there are queues below it, the last share is the one of its own jobs.
    pub fn shares(&self, tree: &Tree<'_>, queue: usize) -> Vec<(Option<usize>, u128)> {
        let mut path: Vec<usize> = tree.path(queue).collect();
        path.reverse();
        let whole = path.first().map_or(0, |root| self.0[*root].nominal);
        let share = |node: &usize| {
            let of_node = tree.queue_of(*node)?;
            let is_group = *node >= tree.names.len();
            if !is_group && !tree.with_others.contains(&of_node) {
                return None;
            }
            let used = u128::from(self.0[*node].used) << WHOLE_BITS;
            let queue = is_group.then_some(of_node);
            Some((queue, used.checked_div(u128::from(whole)).unwrap_or(0)))
        };
        path.iter().filter_map(share).collect()
    }
}

#[cfg(test)]
mod tests;
