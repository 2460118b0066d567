//! One pass over all queues and jobs.
//!
//! A pass keeps two views of the free room. In `now`, terminating pods still occupy their room; jobs start there. In
//! `soon`, those pods are gone and reservations are subtracted; whether preemption would help is decided there. `now`
//! never has more free room than `soon`.

mod preempt;
mod replace;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Job, LeftoverPod, Queue, Reservation, Role, Stop};
use super::messages;
use super::order::{PASSING_SECONDS, WaitingLines, is_apart, is_overdue, is_small, order};
use super::quota::Ledger;
use super::room::{Fit, Refusal, Room, charges_of};
use super::verdict::{Clearing, Lack, Running, Verdict, Waiting};
use super::victims::{Cut, Kept, fewest, surplus};
use crate::jobs::plan::{Cluster, Mark, Placement, Shortage};
use crate::time::Seconds;
use larder_kube::key::Key;

/// How many waiting jobs of each queue get their data warmed ahead.
const WARMED_AHEAD: usize = 2;

/// Data is not warmed for a job that starts later than this.
const SHORT_PAUSE_SECONDS: i64 = 60;

/// The limit of cached gangs that found no place.
const REMEMBERED: usize = 64;

/// How often a pass looks for room in vain: for the jobs of one line, for all jobs, and then for those of each further
/// line.
const VAIN_OF_LINE: usize = 32;
const VAIN_OF_ALL: usize = 256;
const VAIN_AFTER_ALL: usize = 4;

/// The line of a job: see [`Job::line`].
type Line<'a> = (&'a str, &'a str);

pub(super) struct Pass<'a> {
    queues: BTreeMap<&'a str, &'a Queue>,
    /// A queue is below another one.
    has_tree: bool,
    jobs: &'a [&'a Job],
    /// Per job, the same job on its other flavors.
    fallbacks: &'a [Vec<Job>],
    leftover: &'a [LeftoverPod],
    time: Seconds,
    now: Room<'a>,
    soon: Room<'a>,
    /// Jobs that have room and a deadline, sorted by deadline.
    ending: Vec<&'a Job>,
    /// The number of terminating pods.
    leaving: usize,
    /// Per job. `None`: the job waits, or no room is reserved for it, and it is not decided yet.
    verdicts: Vec<Option<Verdict>>,
    /// Jobs that found no place on the nodes. A job that requests at least as much finds none either.
    refused: Vec<(&'a Job, Shortage)>,
    /// Roles that found no nodes to grow. One with such pods finds none either.
    pub(super) not_grown: Vec<&'a Role>,
    /// The lines whose head has found no room.
    with_head: Vec<Line<'a>>,
    /// The lines in which jobs were passed over by the last decision. Only these have their turn.
    passed_over: BTreeSet<Line<'a>>,
    /// The lines in which a job waits for nodes that an autoscaler adds.
    awaiting: BTreeSet<Line<'a>>,
    /// How many searches for room were in vain, by line.
    vain_searches: BTreeMap<Line<'a>, usize>,
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        queues: &'a [Queue],
        jobs: &'a [&'a Job],
        fallbacks: &'a [Vec<Job>],
        leftover: &'a [LeftoverPod],
        cluster: &Cluster<'a>,
        time: Seconds,
    ) -> Self {
        let mut now = Room { ledger: Ledger::new(queues), cluster: cluster.clone() };
        for job in jobs {
            now.ledger.add(&job.queue, &job.charges(|at, _| job.granted(at)));
            let is_held = job.reservation == Reservation::Held;
            for pod in job.pods.iter().filter(|pod| is_held && !pod.bound && !pod.leaving) {
                if let Some(node) = now.cluster.find(&pod.node) {
                    now.cluster.take(node, &job.roles[pod.role].requests, 1);
                }
            }
        }
        let mut soon = now.clone();
        for pod in leftover {
            now.ledger.add(&pod.queue, &pod.charges());
        }
        for pod in leftover.iter().filter(|pod| !pod.stays) {
            if let Some(node) = soon.cluster.find(&pod.node) {
                soon.cluster.give(node, &pod.requests, 1);
            }
        }
        for job in jobs {
            now.ledger.add(&job.queue, &job.leaving());
            for pod in job.pods.iter().filter(|pod| pod.bound && pod.leaving) {
                if let Some(node) = soon.cluster.find(&pod.node) {
                    soon.cluster.give(node, &job.roles[pod.role].requests, 1);
                }
            }
        }
        let verdict = |job: &Job| (job.is_admitted() && job.reservation == Reservation::Held).then(|| goes_on(job));
        let mut ending: Vec<&Job> =
            jobs.iter().copied().filter(|job| job.is_admitted() && job.ends.is_some()).collect();
        ending.sort_by_key(|job| (job.ends, &job.key));
        let leaving = jobs.iter().flat_map(|job| &job.pods).filter(|pod| pod.leaving).count();
        Self {
            queues: queues.iter().map(|queue| (queue.name.as_str(), queue)).collect(),
            has_tree: queues.iter().any(|queue| !queue.parent.is_empty()),
            jobs,
            fallbacks,
            leftover,
            time,
            now,
            soon,
            ending,
            leaving: leaving + leftover.iter().filter(|pod| !pod.stays).count(),
            verdicts: jobs.iter().copied().map(verdict).collect(),
            refused: Vec::new(),
            not_grown: Vec::new(),
            with_head: Vec::new(),
            passed_over: jobs.iter().filter(|job| job.is_passed_over).map(|job| job.line()).collect(),
            awaiting: jobs.iter().filter(|job| job.awaits_nodes).map(|job| job.line()).collect(),
            vain_searches: BTreeMap::new(),
        }
    }

    /// A job on each of its flavors, the preferred one first.
    fn choices(&self, job: usize) -> Vec<&'a Job> {
        std::iter::once(self.jobs[job]).chain(&self.fallbacks[job]).collect()
    }

    /// The pods of each role that a running job keeps, as decided so far.
    fn granted(&self, job: usize) -> Vec<u32> {
        match &self.verdicts[job] {
            Some(Verdict::Run(running)) => running.granted.clone(),
            _ => vec![0; self.jobs[job].roles.len()],
        }
    }

    /// The jobs that keep running, as decided so far.
    fn running(&self) -> impl Iterator<Item = usize> {
        let runs = |job: &usize| matches!(self.verdicts[*job], Some(Verdict::Run(_)));
        (0..self.jobs.len()).filter(runs)
    }

    /// Takes from jobs the pods that they do not keep.
    fn cut(&mut self, kept: Kept, why: impl Fn(&Job, u32) -> String) {
        for (job, kept) in kept {
            let before = self.granted(job);
            self.soon.give(self.jobs[job], &before, &kept);
            let why = why(self.jobs[job], before.iter().sum::<u32>() - kept.iter().sum::<u32>());
            self.verdicts[job] = Some(if kept.iter().all(|pods| *pods == 0) {
                Verdict::Stop { why }
            } else {
                Verdict::Run(Running { may_grow_to: kept.clone(), granted: kept, why, plan: None })
            });
        }
    }

    pub(super) fn drain(&mut self) {
        let drained = |job: &usize| self.stop_of(*job) == Some(Stop::Drain);
        let stopping: Vec<usize> = self.running().filter(drained).collect();
        for job in stopping {
            let kept = vec![0; self.jobs[job].roles.len()];
            let why = messages::stopped(&self.jobs[job].queue);
            self.cut(Kept::from([(job, kept)]), |_, _| why.clone());
        }
    }

    /// Takes from elastic jobs the pods that their spec no longer requests.
    pub(super) fn fit(&mut self) {
        let jobs = self.jobs;
        for at in self.running().collect::<Vec<_>>() {
            let granted = self.granted(at);
            let kept = |(role, granted): (&Role, &u32)| role.asks_for(*granted);
            let kept: Vec<u32> = jobs[at].roles.iter().zip(&granted).map(kept).collect();
            if kept != granted {
                self.cut(Kept::from([(at, kept)]), |_, pods| messages::asks_for_fewer(pods));
            }
        }
    }

    fn queue_of(&self, job: usize) -> Option<&'a Queue> {
        self.queues.get(self.jobs[job].queue.as_str()).copied()
    }

    fn stop_of(&self, job: usize) -> Option<Stop> {
        self.queue_of(job).map(|queue| queue.stop)
    }

    /// Makes jobs of queues that exceed their quota, because it was lowered, give back the excess. Within a cohort, the
    /// queue with the largest share comes first. Quota that orphaned pods use cannot be taken back, so their usage is
    /// added only afterwards: no job starts in their place, and no job is preempted because of them.
    pub(super) fn give_back(&mut self) {
        let mut names: Vec<&'a str> = self.queues.keys().copied().collect();
        names.sort_by_cached_key(|name| Reverse(self.soon.ledger.share(name)));
        for queue in names {
            if !self.soon.ledger.is_over(queue) {
                continue;
            }
            let mut losers: Vec<usize> = self.running().filter(|job| self.jobs[*job].queue == queue).collect();
            losers.sort_by_key(|job| Reverse(order(self.jobs[*job])));
            let surpluses = losers.iter().flat_map(|job| self.surpluses(*job));
            let whole = losers.iter().map(|job| Cut { job: *job, role: None, most: 1 });
            let cuts: Vec<Cut> = surpluses.chain(whole).collect();
            // If stopping all of them is not enough, other queues of the cohort exceed their quota as well and come
            // next.
            let all = || losers.iter().map(|job| (*job, vec![0; self.jobs[*job].roles.len()])).collect();
            let kept = self.fewest(&cuts, |room| !room.ledger.is_over(queue)).unwrap_or_else(all);
            self.cut(kept, |_, pods| messages::over(queue, pods));
        }
        for pod in self.leftover.iter().filter(|pod| pod.stays) {
            self.soon.ledger.add(&pod.queue, &pod.charges());
        }
    }

    fn surpluses(&self, job: usize) -> Vec<Cut> {
        let granted = self.granted(job);
        let cut = |(role, granted): (usize, &u32)| Cut {
            job,
            role: Some(role),
            most: surplus(self.jobs[job], role, *granted),
        };
        granted.iter().enumerate().map(cut).filter(|cut| cut.most > 0).collect()
    }

    /// The fewest of these cuts that are enough, in the room that will be free without them.
    fn fewest(&mut self, cuts: &[Cut], is_enough: impl FnMut(&mut Room<'a>) -> bool) -> Option<Kept> {
        let granted: Kept = cuts.iter().map(|cut| (cut.job, self.granted(cut.job))).collect();
        let (jobs, free) = (self.jobs, self.soon.cluster.mark());
        let keep = |room: &mut Room<'a>, job: usize, before: &[u32], now: &[u32]| room.keep(jobs[job], before, now);
        let kept = fewest(cuts, &granted, &mut self.soon, keep, is_enough);
        self.soon.cluster.restore(&free);
        kept
    }

    /// Evaluates `look` on the room that will be free once jobs have lost the pods that they do not keep.
    fn without<T>(&mut self, kept: &Kept, look: impl FnOnce(&mut Room<'a>) -> T) -> T {
        let free = self.soon.cluster.mark();
        let mut lost = Vec::with_capacity(kept.len());
        for (job, kept) in kept {
            let granted = self.granted(*job);
            let job = self.jobs[*job];
            self.soon.give(job, &granted, kept);
            lost.push((job, job.charges(|at, _| granted[at] - kept[at])));
        }
        let answer = look(&mut self.soon);
        for (job, amounts) in lost {
            self.soon.ledger.add(&job.queue, &amounts);
        }
        self.soon.cluster.restore(&free);
        answer
    }

    /// Handles jobs with a reservation: those in queues, or those without a queue.
    pub(super) fn claims(&mut self, are_queued: bool) {
        let jobs = self.jobs;
        let may = |job: &usize| {
            let asks = jobs[*job].claims && jobs[*job].shortage.is_none() && jobs[*job].is_queued() == are_queued;
            self.verdicts[*job].is_none() && asks && self.is_open(*job)
        };
        let mut claiming: Vec<usize> = (0..jobs.len()).filter(may).collect();
        claiming.sort_by_key(|job| order(jobs[*job]));
        for job in claiming {
            // Only the job's minimum: the rest may be reserved for the next job.
            let mut choices = self.choices(job);
            if choices.iter().any(|choice| flavors_of(choice) == jobs[job].claimed) {
                choices.retain(|choice| flavors_of(choice) == jobs[job].claimed);
            }
            if let Some((choice, fit)) = first_fit(&mut self.now, &choices) {
                self.start(job, choice, fit);
            } else if let Some((choice, fit)) = first_fit(&mut self.soon, &choices) {
                self.hold(job, choice, &fit.placement);
            }
        }
    }

    fn is_open(&self, job: usize) -> bool {
        let is_open = |queue: &Queue| queue.stop == Stop::No && queue.obstacle.is_none();
        self.jobs[job].queue.is_empty() || self.queue_of(job).is_some_and(is_open)
    }

    /// Starts a job on one of its choices of flavors.
    fn start(&mut self, job: usize, choice: &Job, fit: Fit) {
        let Fit { granted, placement } = fit;
        self.now.take(choice, &placement);
        self.soon.take(choice, &placement);
        let name = |node| self.now.cluster.name(node).to_owned();
        let nodes = placement.roles.into_iter().map(|nodes| nodes.into_iter().map(name).collect()).collect();
        self.verdicts[job] = Some(Verdict::Start { granted, nodes, flavors: flavors_of(choice) });
    }

    fn may_await_nodes(&self, job: usize) -> bool {
        self.jobs[job].may_await_nodes && !self.awaiting.contains(&self.jobs[job].line())
    }

    /// Starts the minimum of a job without nodes, so that an autoscaler adds some.
    fn await_nodes(&mut self, job: usize) {
        let choices = self.choices(job);
        let has_quota = |choice: &&&Job| self.now.ledger.lack(&choice.queue, &choice.floor()).is_none();
        let choice = choices.iter().find(has_quota).copied().unwrap_or(self.jobs[job]);
        self.awaiting.insert(choice.line());
        self.now.ledger.add(&choice.queue, &choice.floor());
        self.soon.ledger.add(&choice.queue, &choice.floor());
        let granted = choice.roles.iter().map(|role| role.min).collect();
        self.verdicts[job] = Some(Verdict::Start { granted, nodes: Vec::new(), flavors: flavors_of(choice) });
    }

    /// Reserves room that will be free soon.
    fn hold(&mut self, job: usize, choice: &Job, placement: &Placement) {
        self.reserve(choice, placement);
        self.wait(
            job,
            Waiting {
                lacks: Lack::Nodes,
                why: messages::clearing(self.leaving),
                claims: true,
                flavors: flavors_of(choice),
                warm: true,
                nodes: self.soon.names(placement),
                ..Waiting::default()
            },
        );
    }

    /// Reserves a placement: no other job gets its room.
    fn reserve(&mut self, job: &Job, placement: &Placement) {
        self.soon.take(job, placement);
        self.now.ledger.add(&job.queue, &charges_of(job, placement));
        self.now.cluster.keep_free(&self.soon.cluster.mark());
    }

    fn wait(&mut self, job: usize, waiting: Waiting) {
        self.verdicts[job] = Some(Verdict::Wait(waiting));
    }

    /// Decides about the jobs that wait, and about those whose nodes are not reserved. Jobs without a queue come last.
    pub(super) fn admit(&mut self) {
        self.serve(true);
        self.claims(false);
        self.confirm(Reservation::Due);
        self.serve(false);
        self.confirm(Reservation::Released);
    }

    /// Decides about the waiting jobs in queues, or about those without a queue.
    fn serve(&mut self, are_queued: bool) {
        let jobs = self.jobs;
        let waits = |job: &usize| {
            let is_held = jobs[*job].reservation == Reservation::Held;
            self.verdicts[*job].is_none() && is_held && jobs[*job].is_queued() == are_queued
        };
        let mut lines = WaitingLines::new(jobs, (0..jobs.len()).filter(waits), self.time);
        lines.rank_all(&self.now.ledger);
        while let Some((line, job)) = lines.next() {
            self.consider(job, &mut lines.line(line).heads);
            // In a tree, the queues around see the usage as well.
            if self.has_tree && matches!(self.verdicts[job], Some(Verdict::Start { .. })) {
                lines.rank_all(&self.now.ledger);
            } else {
                lines.rank(line, &self.now.ledger);
            }
        }
        self.with_head.extend(lines.with_head());
    }

    /// Decides about the jobs of this reservation. Each goes on if its nodes are still free; only one that is due takes
    /// them.
    fn confirm(&mut self, reservation: Reservation) {
        let jobs = self.jobs;
        let mut unreserved: Vec<usize> = (0..jobs.len()).filter(|job| jobs[*job].reservation == reservation).collect();
        unreserved.sort_by_key(|job| order(jobs[*job]));
        for at in unreserved {
            let (job, free) = (jobs[at], self.now.cluster.mark());
            let fits = self.now.take_planned(job);
            if fits && reservation == Reservation::Due {
                self.soon.take_planned(job);
            } else {
                self.now.cluster.restore(&free);
            }
            self.verdicts[at] =
                Some(if fits { goes_on(job) } else { Verdict::Stop { why: messages::ROOM_TAKEN.to_owned() } });
        }
    }

    /// Decides about one job, which waits behind one of `heads` or becomes one itself.
    fn consider(&mut self, at: usize, heads: &mut Vec<usize>) {
        let job = self.jobs[at];
        let waits = |lacks: Lack, why: String| Waiting { lacks, why, ..Waiting::default() };
        if self.stop_of(at).is_none() && !job.queue.is_empty() {
            return self.wait(at, waits(Lack::Queue, messages::no_queue(&job.queue)));
        }
        if !self.is_open(at) {
            let obstacle = self.queue_of(at).and_then(|queue| queue.obstacle.clone());
            let why = obstacle.unwrap_or_else(|| messages::stopped(&job.queue));
            return self.wait(at, waits(Lack::Queue, why));
        }
        if let Some(why) = &job.unsuited {
            return self.wait(at, waits(Lack::Quota, why.clone()));
        }
        if let Some(until) = job.not_before.filter(|until| *until > self.time) {
            let warm = until - self.time <= SHORT_PAUSE_SECONDS;
            return self.wait(at, Waiting { warm, ..waits(Lack::Pause, messages::held_back(until)) });
        }
        // Other jobs overtake it, and it keeps its place in the queue. The wait may be long, so its data is not warmed
        // either.
        if let Some(why) = &job.shortage {
            return self.wait(at, waits(Lack::Namespace, why.clone()));
        }
        let mut choices = self.choices(at);
        let beyond = |choice: &Job| self.now.ledger.beyond(&choice.queue, &choice.floor());
        choices.retain(|choice| beyond(choice).is_none());
        if choices.is_empty()
            && let Some((resource, most)) = beyond(job)
        {
            return self.wait(at, waits(Lack::Quota, messages::beyond(job, &resource, most)));
        }
        let mut is_head = heads.is_empty();
        if let (Some(first), false) = (heads.first().copied(), job.queue.is_empty()) {
            let is_free = |choice: &&Job| heads.iter().all(|head| self.is_apart(choice, *head));
            is_head = choices.iter().any(is_free);
            let passes = |choice: &&Job| heads.iter().all(|head| self.passes(choice, *head));
            if is_head {
                choices.retain(is_free)
            } else {
                choices.retain(passes)
            }
            if choices.is_empty() {
                let head = heads.iter().copied().find(|head| !self.passes(job, *head)).unwrap_or(first);
                let head = self.jobs[head];
                let why = messages::behind(job, head, self.time, is_overdue(head, self.time));
                return self.wait(at, Waiting { warm: true, ..waits(Lack::Turn, why) });
            }
        }
        // A job that could never run is no head, so a line may have any number of them before its first.
        let is_next = is_head && (job.head_since.is_some() || !self.vain_searches.contains_key(&job.line()));
        if !is_next && let Some(is_passed_over) = self.leaves_out(at, &choices) {
            let waiting = waits(Lack::Nodes, messages::untried());
            return self.wait(at, Waiting { warm: !is_head, is_untried: true, is_passed_over, ..waiting });
        }
        match self.find(&choices) {
            Ok((choice, fit)) => self.start(at, choice, fit),
            Err(Refusal::Nodes(shortage)) if shortage.is_for_ever() => {
                if is_head && self.may_await_nodes(at) {
                    return self.await_nodes(at);
                }
                self.wait(at, waits(Lack::Cluster, shortage.to_string()))
            }
            Err(refusal) => {
                let why = messages::refused(job, &refusal, &self.ending);
                let lacks = match refusal {
                    Refusal::Quota(_) => Lack::Quota,
                    Refusal::Nodes(_) => Lack::Nodes,
                };
                // Other jobs were preempted for it before, and its pods were not bound, or pods of others took the
                // room. Preempting again immediately would be pointless.
                let in_vain = job.claims;
                let is_due = !in_vain
                    && job.not_before.is_none_or(|until| self.time - until >= PASSING_SECONDS)
                    && job.preempts_after.is_none_or(|until| self.time >= until);
                let clearing = if is_head && is_due { self.make_room(at, &choices) } else { Clearing::InVain };
                let (why, nodes) = match clearing {
                    Clearing::Begun => return,
                    Clearing::Cold(nodes) => (messages::is_cold(&why), nodes),
                    Clearing::InVain if is_head && lacks == Lack::Nodes && self.may_await_nodes(at) => {
                        return self.await_nodes(at);
                    }
                    Clearing::InVain => (why, Vec::new()),
                };
                // A job that requests nothing keeps no other from anything.
                let is_head = is_head && !job.contended(self.queue_of(at)).is_empty();
                if is_head {
                    heads.push(at);
                    let holds = !job.queue.is_empty() && is_overdue(job, self.time);
                    if holds && matches!(refusal, Refusal::Nodes(_)) {
                        let part = self.now.find_part(choices[0]);
                        self.reserve(choices[0], &part);
                    }
                }
                let is_head = is_head && !job.queue.is_empty();
                self.wait(at, Waiting { lacks, why, is_head, warm: true, nodes, in_vain, ..Waiting::default() });
            }
        }
    }

    /// True if a job on these flavors competes with a head for nothing.
    fn is_apart(&self, choice: &Job, head: usize) -> bool {
        let queue = self.queue_of(head);
        is_apart(&choice.contended(queue), &self.jobs[head].contended(queue))
    }

    /// True if a job on these flavors may overtake a head.
    fn passes(&self, choice: &Job, head: usize) -> bool {
        let (queue, head) = (self.queue_of(head), self.jobs[head]);
        let (asks, of_head) = (choice.contended(queue), head.contended(queue));
        is_apart(&asks, &of_head) || !is_overdue(head, self.time) && is_small(&asks, &of_head)
    }

    /// Whether no room is looked for now, because that takes time and other jobs of the line have their turn. The value
    /// is true if the job has its turn in one of the next decisions.
    fn leaves_out(&self, at: usize, choices: &[&Job]) -> Option<bool> {
        let job = self.jobs[at];
        let needs_search = |choice: &&Job| {
            self.now.ledger.lack(&choice.queue, &choice.floor()).is_none() && self.known(choice).is_none()
        };
        if !choices.iter().any(needs_search) {
            return None;
        }
        let all: usize = self.vain_searches.values().sum();
        let limit = if all < VAIN_OF_ALL { VAIN_OF_LINE } else { VAIN_AFTER_ALL };
        let has_had_turn = self.passed_over.contains(&job.line()) && !job.is_passed_over && job.lacks_nodes;
        let is_spent = self.vain_searches.get(&job.line()).is_some_and(|searches| *searches >= limit);
        (has_had_turn || is_spent).then_some(!has_had_turn)
    }

    /// Why a job finds no place on the nodes, if a job that requests no more has found none.
    fn known(&self, job: &Job) -> Option<&Shortage> {
        let known = self.refused.iter().find(|(other, _)| asks_as_much(job, other));
        known.map(|(_, shortage)| shortage)
    }

    /// Finds room for a job on the first of these choices that has any. Otherwise returns the first refusal, but rather
    /// one of a choice that may have room later.
    fn find(&mut self, choices: &[&'a Job]) -> Result<(&'a Job, Fit), Refusal> {
        let mut refusal = match self.find_as(choices[0]) {
            Ok(fit) => return Ok((choices[0], fit)),
            Err(refusal) => refusal,
        };
        for choice in choices.iter().copied().skip(1) {
            match self.find_as(choice) {
                Ok(fit) => return Ok((choice, fit)),
                Err(next) if matches!(&refusal, Refusal::Nodes(why) if why.is_for_ever()) => refusal = next,
                Err(_) => {}
            }
        }
        Err(refusal)
    }

    /// Finds room for a job on one of its choices. Skips the search if a job that requests no more has found none.
    fn find_as(&mut self, job: &'a Job) -> Result<Fit, Refusal> {
        if let Some(shortage) = self.known(job)
            && self.now.ledger.lack(&job.queue, &job.floor()).is_none()
        {
            return Err(Refusal::Nodes(shortage.clone()));
        }
        let found = self.now.find(job);
        if let Err(Refusal::Nodes(shortage)) = &found {
            *self.vain_searches.entry(job.line()).or_default() += 1;
            if self.refused.len() < REMEMBERED {
                self.refused.push((job, shortage.clone()));
            }
        }
        found
    }

    /// Offers the remaining room to elastic jobs.
    pub(super) fn grow(&mut self) {
        let mut elastic: Vec<usize> = self.running().filter(|job| self.may_grow(*job)).collect();
        let ledger = &self.now.ledger;
        let key = |job: &Job| (job.queue.is_empty(), ledger.share(&job.queue));
        elastic.sort_by_cached_key(|job| (key(self.jobs[*job]), order(self.jobs[*job])));
        for at in elastic {
            let job = self.jobs[at];
            let grows = growing_role(job);
            if grows.is_some_and(|role| self.not_grown.iter().any(|other| are_alike(role, other))) {
                continue;
            }
            let granted = self.granted(at);
            let more = self.now.find_more(job, &granted);
            let is_in_vain = !more.roles.is_empty() && more.roles.iter().all(Vec::is_empty);
            if is_in_vain && self.not_grown.len() < REMEMBERED {
                self.not_grown.extend(grows);
            }
            self.now.take(job, &more);
            self.soon.take(job, &more);
            if let Some(Verdict::Run(running)) = &mut self.verdicts[at] {
                for (most, nodes) in running.may_grow_to.iter_mut().zip(&more.roles) {
                    *most += nodes.len() as u32;
                }
            }
        }
    }

    fn may_grow(&self, at: usize) -> bool {
        let (job, granted) = (self.jobs[at], self.granted(at));
        let may_grow = |role: &Role, granted: u32| !role.is_fixed && granted > 0 && granted < role.max;
        let is_elastic = job.roles.iter().zip(&granted).any(|(role, granted)| may_grow(role, *granted));
        let is_cut = (0..granted.len()).any(|role| granted[role] < job.granted(role));
        let is_held = job.reservation == Reservation::Held;
        is_elastic && is_held && !is_cut && self.is_open(at) && !self.with_head.contains(&job.line())
    }

    /// The room that is free now and not reserved.
    pub(super) fn free_room(&self) -> Mark {
        self.now.cluster.mark()
    }

    /// Returns all verdicts, and marks the next waiting jobs of each queue for data warming.
    pub(super) fn verdicts(self) -> BTreeMap<Key, Verdict> {
        let Self { jobs, mut verdicts, .. } = self;
        let mut by_order: Vec<usize> = (0..jobs.len()).collect();
        by_order.sort_by_key(|job| order(jobs[*job]));
        let mut warmed: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for job in by_order {
            if let Some(Verdict::Wait(waiting)) = &mut verdicts[job]
                && waiting.warm
            {
                let warmed = warmed.entry(jobs[job].line()).or_default();
                waiting.warm = *warmed < WARMED_AHEAD;
                *warmed += 1;
            }
        }
        let decided = jobs.iter().zip(verdicts);
        decided.filter_map(|(job, verdict)| Some((job.key.clone(), verdict?))).collect()
    }
}

/// The first of these choices with room for its minimum.
fn first_fit<'j>(room: &mut Room<'_>, choices: &[&'j Job]) -> Option<(&'j Job, Fit)> {
    choices.iter().find_map(|choice| Some((*choice, room.find_floor(choice).ok()?)))
}

/// The flavor of each role.
pub(super) fn flavors_of(job: &Job) -> Vec<String> {
    job.roles.iter().map(|role| role.flavor.clone()).collect()
}

/// The verdict that a job keeps all that it was granted.
fn goes_on(job: &Job) -> Verdict {
    let granted: Vec<u32> = (0..job.roles.len()).map(|role| job.granted(role)).collect();
    Verdict::Run(Running { may_grow_to: granted.clone(), granted, ..Running::default() })
}

/// The role by which a job grows, if there is only one, and nothing but room keeps its pods off nodes.
fn growing_role(job: &Job) -> Option<&Role> {
    let mut elastic = job.roles.iter().filter(|role| !role.is_fixed);
    let role = elastic.next().filter(|role| !role.apart && job.refused_by.is_empty())?;
    elastic.next().is_none().then_some(role)
}

fn are_alike(role: &Role, other: &Role) -> bool {
    role.requests == other.requests && role.places == other.places
}

/// True if a job cannot be placed wherever `other` cannot.
fn asks_as_much(job: &Job, other: &Job) -> bool {
    let as_much = job
        .roles
        .iter()
        .zip(&other.roles)
        .all(|(role, other)| are_alike(role, other) && role.min >= other.min && (role.apart || !other.apart));
    as_much && job.roles.len() == other.roles.len()
}
