//! Preemption: takes pods from other jobs so that a job has room.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::super::facts::Job;
use super::super::messages;
use super::super::verdict::{Clearing, Lack, Verdict, Waiting};
use super::super::victims::Cut;
use super::Pass;
use larder_kube::pod::amounts::Amounts;

impl Pass<'_> {
    /// Preempts other jobs for a job, if that gives it room and its data is there.
    pub(super) fn make_room(&mut self, at: usize) -> Clearing {
        let job = &self.jobs[at];
        let floor = job.floor();
        let cuts = self.cuts_for(at, &floor);
        let Some(kept) = self.fewest(&cuts, |pass, kept| pass.without(kept, |room| room.find_floor(job).is_ok()))
        else {
            return Clearing::InVain;
        };
        if job.is_cold {
            let nodes = self.without(&kept, |room| room.find_floor(job).map(|fit| room.names(&fit.placement)));
            return nodes.map_or(Clearing::InVain, Clearing::Cold);
        }
        self.cut(kept, |victim, pods| messages::is_preempted_for(victim, job, pods));
        let Ok(fit) = self.soon.find_floor(job) else { return Clearing::InVain };
        self.reserve(at, &fit.placement);
        let nodes = self.soon.names(&fit.placement);
        let ends = |(before, verdict): (&Job, &Option<Verdict>)| -> usize {
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
                warm: true,
                nodes,
                ..Waiting::default()
            },
        );
        Clearing::Begun
    }

    /// The parts of other jobs that may be taken for a job, in order.
    fn cuts_for(&self, at: usize, floor: &Amounts) -> Vec<Cut> {
        let (job, ledger) = (&self.jobs[at], &self.soon.ledger);
        let is_nominal = ledger.is_nominal(&job.queue, floor);
        let cohort = self.queues.get(job.queue.as_str()).map_or("", |queue| &queue.cohort);
        let mut excess: BTreeMap<&str, Amounts> = BTreeMap::new();
        // The jobs that may lose pods, and whether they may lose only what their queue has borrowed.
        let mut victims: Vec<(usize, bool)> = Vec::new();
        for at in self.running() {
            let other = &self.jobs[at];
            let is_lower = other.priority < job.priority;
            let is_outside = other.queue.is_empty() && !job.queue.is_empty();
            let is_same = other.queue == job.queue;
            let is_near = !is_same
                && !cohort.is_empty()
                && self.queues.get(other.queue.as_str()).is_some_and(|queue| queue.cohort == cohort);
            if is_outside && is_nominal || is_lower && (is_same || is_near && is_nominal) {
                victims.push((at, false));
            } else if is_near && (is_nominal || is_lower) {
                excess.entry(&other.queue).or_insert_with(|| ledger.borrowed(&other.queue, floor));
                victims.push((at, true));
            }
        }
        victims.sort_by_key(|(at, borrows)| {
            let victim = &self.jobs[*at];
            (!victim.queue.is_empty(), victim.priority, !borrows, Reverse((victim.created, &victim.key)))
        });
        let mut cuts = Vec::new();
        for &(at, borrows) in &victims {
            for mut cut in self.surpluses(at) {
                if borrows && let (Some(excess), Some(role)) = (excess.get_mut(self.jobs[at].queue.as_str()), cut.role)
                {
                    let requests = &self.jobs[at].roles[role].requests;
                    cut.most = cut.most.min(pods_in(excess, requests));
                    less(excess, &requests.times(u64::from(cut.most)));
                }
                cuts.push(cut);
            }
        }
        for &(at, borrows) in &victims {
            if borrows && let Some(excess) = excess.get_mut(self.jobs[at].queue.as_str()) {
                if excess.is_empty() {
                    continue;
                }
                less(excess, &self.jobs[at].floor());
            }
            cuts.push(Cut { job: at, role: None, most: 1 });
        }
        cuts.retain(|cut| cut.most > 0);
        cuts
    }
}

/// The number of pods with these requests that cover the borrowed amounts.
fn pods_in(excess: &Amounts, requests: &Amounts) -> u32 {
    let pods = |(resource, amount): (&str, u64)| amount.div_ceil(requests.get(resource).max(1));
    let of_use = excess.iter().filter(|(resource, _)| requests.get(resource) > 0);
    u32::try_from(of_use.map(pods).max().unwrap_or(0)).unwrap_or(u32::MAX)
}

/// Subtracts amounts, down to zero.
fn less(amounts: &mut Amounts, by: &Amounts) {
    *amounts = amounts.iter().map(|(resource, amount)| (resource, amount.saturating_sub(by.get(resource)))).collect();
}
