//! Preemption: takes pods from other jobs so that a job has room.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use larder_api::queue::{Preemption, Preempts};

use super::super::facts::Job;
use super::super::messages;
use super::super::quota::Between;
use super::super::verdict::{Clearing, Lack, Verdict, Waiting};
use super::super::victims::Cut;
use super::{Pass, flavors_of};
use larder_kube::pod::amounts::Amounts;

/// The part of a running job that another job may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Take {
    /// Its pods above the minimum, and then all of it.
    Whole,
    /// Its pods above the minimum.
    Surplus,
    /// As [`Self::Whole`], but only while its queue, and those above it, use borrowed quota.
    Borrowed,
}

impl<'a> Pass<'a> {
    /// Preempts other jobs for a job, on the first of these choices of flavors on which that gives it room, if its data
    /// is there.
    pub(super) fn make_room(&mut self, at: usize, choices: &[&'a Job]) -> Clearing {
        for choice in choices {
            match self.make_room_as(at, choice) {
                Clearing::InVain => {}
                clearing => return clearing,
            }
        }
        Clearing::InVain
    }

    fn make_room_as(&mut self, at: usize, job: &Job) -> Clearing {
        let floor = job.floor();
        let cuts = self.cuts_for(job, &floor);
        let Some(kept) = self.fewest(&cuts, |room| room.find_floor(job).is_ok()) else { return Clearing::InVain };
        if job.is_cold {
            let nodes = self.without(&kept, |room| room.find_floor(job).map(|fit| room.names(&fit.placement)));
            return nodes.map_or(Clearing::InVain, Clearing::Cold);
        }
        self.cut(kept, |victim, pods| messages::is_preempted_for(victim, job, pods));
        let Ok(fit) = self.soon.find_floor(job) else { return Clearing::InVain };
        self.reserve(job, &fit.placement);
        let nodes = self.soon.names(&fit.placement);
        let ends = |(before, verdict): (&&Job, &Option<Verdict>)| -> usize {
            let kept = |role| match verdict {
                Some(Verdict::Run(running)) => running.granted[role],
                Some(Verdict::Stop { .. }) => 0,
                _ => u32::MAX,
            };
            before.pods.iter().filter(|pod| !pod.leaving && pod.index >= kept(pod.role)).count()
        };
        let ending = self.leaving + self.jobs.iter().zip(&self.verdicts).map(ends).sum::<usize>();
        self.wait(
            at,
            Waiting {
                lacks: Lack::Nodes,
                why: messages::clearing(ending),
                claims: true,
                flavors: flavors_of(job),
                warm: true,
                nodes,
                ..Waiting::default()
            },
        );
        Clearing::Begun
    }

    /// The parts of other jobs that may be taken for a job, in order.
    fn cuts_for(&self, job: &Job, floor: &Amounts) -> Vec<Cut> {
        let ledger = &self.soon.ledger;
        let rules = self.queues.get(job.queue.as_str()).map(|queue| queue.preemption).unwrap_or_default();
        let is_nominal = ledger.is_nominal(&job.queue, floor);
        let mut around: BTreeMap<&str, Option<Between>> = BTreeMap::new();
        let mut victims: Vec<(usize, Take)> = Vec::new();
        for at in self.running() {
            let other = self.jobs[at];
            let between = around.entry(&other.queue).or_insert_with(|| ledger.between(&job.queue, &other.queue, floor));
            let take = if other.queue == job.queue {
                takes_within(rules, job, other)
            } else if other.queue.is_empty() {
                (is_nominal && rules.reclaim != Preempts::Never).then_some(Take::Whole)
            } else {
                between.as_ref().and_then(|between| takes_of_other(rules, job, other, between.is_nominal))
            };
            victims.extend(take.map(|take| (at, take)));
        }
        victims.sort_by_key(|(at, take)| {
            let victim = self.jobs[*at];
            let is_first = *take == Take::Borrowed;
            (!victim.queue.is_empty(), victim.priority, !is_first, Reverse((victim.created, &victim.key)))
        });
        // The nodes of which a victim's queue may only lose what they have borrowed.
        let borrowing = |at: usize, take: Take| -> &[usize] {
            let between = around.get(self.jobs[at].queue.as_str()).and_then(Option::as_ref);
            between.filter(|_| take == Take::Borrowed).map_or(&[], |between| between.nodes.as_slice())
        };
        let mut excess: BTreeMap<usize, Amounts> = BTreeMap::new();
        for (at, take) in &victims {
            for node in borrowing(*at, *take) {
                excess.entry(*node).or_insert_with(|| ledger.borrowed(*node, floor));
            }
        }
        let mut cuts = Vec::new();
        for (at, take) in &victims {
            for mut cut in self.surpluses(*at) {
                let nodes = borrowing(*at, *take);
                if let (false, Some(role)) = (nodes.is_empty(), cut.role) {
                    let charges = self.jobs[*at].roles[role].charges();
                    let pods = nodes.iter().map(|node| pods_in(&excess[node], &charges)).min();
                    cut.most = cut.most.min(pods.unwrap_or(0));
                    less(&mut excess, nodes, &charges.times(u64::from(cut.most)));
                }
                cuts.push(cut);
            }
        }
        for (at, take) in &victims {
            let nodes = borrowing(*at, *take);
            if *take == Take::Surplus || nodes.iter().any(|node| excess[node].is_empty()) {
                continue;
            }
            less(&mut excess, nodes, &self.jobs[*at].floor());
            cuts.push(Cut { job: *at, role: None, most: 1 });
        }
        cuts.retain(|cut| cut.most > 0);
        cuts
    }
}

/// The part that a job may take of another job of its queue. Of equals in a queue it takes what they have beyond their
/// minimum: none of them keeps the others from starting. Jobs without a queue are in none together.
fn takes_within(rules: Preemption, job: &Job, other: &Job) -> Option<Take> {
    if rules.within_queue == Preempts::Never {
        return None;
    }
    match other.priority.cmp(&job.priority) {
        Ordering::Less => Some(Take::Whole),
        Ordering::Equal if job.is_queued() => Some(Take::Surplus),
        Ordering::Equal | Ordering::Greater => None,
    }
}

/// The part that a job may take of a job of another queue with which its own shares quota. `is_nominal`: it stays
/// within the quota of its queue, or of those above it that are not above the other.
fn takes_of_other(rules: Preemption, job: &Job, other: &Job, is_nominal: bool) -> Option<Take> {
    let is_lower = other.priority < job.priority;
    match (is_nominal, rules.reclaim, rules.while_borrowing) {
        (true, Preempts::Never, _) | (false, _, Preempts::Never) => None,
        (true, _, _) if is_lower => Some(Take::Whole),
        (true, Preempts::Any, _) => Some(Take::Borrowed),
        (false, _, _) if is_lower => Some(Take::Borrowed),
        (true, Preempts::LowerPriority, _) | (false, _, _) => None,
    }
}

/// The number of pods with these requests that cover the borrowed amounts.
fn pods_in(excess: &Amounts, requests: &Amounts) -> u32 {
    let pods = |(resource, amount): (&str, u64)| amount.div_ceil(requests.get(resource).max(1));
    let of_use = excess.iter().filter(|(resource, _)| requests.get(resource) > 0);
    u32::try_from(of_use.map(pods).max().unwrap_or(0)).unwrap_or(u32::MAX)
}

/// Subtracts amounts from those of these nodes, down to zero.
fn less(excess: &mut BTreeMap<usize, Amounts>, nodes: &[usize], by: &Amounts) {
    for node in nodes {
        if let Some(amounts) = excess.get_mut(node) {
            let left = amounts.iter().map(|(resource, amount)| (resource, amount.saturating_sub(by.get(resource))));
            *amounts = left.collect();
        }
    }
}
