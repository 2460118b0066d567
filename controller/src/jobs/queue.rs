//! Which jobs run: quotas, order, preemption and growth.
//!
//! [`decide`] considers all queues and jobs together and returns a [`Verdict`] for every job. `quota` is the quota
//! ledger, `room` combines quota and nodes, `order` keeps the waiting jobs of each queue in order, `victims` selects
//! the pods to preempt, and `pass` runs the steps:
//!
//! 1. Jobs of drained queues stop. Elastic jobs whose spec requests fewer pods than they have give up the excess. Where
//!    quotas were lowered, jobs give back what exceeds them.
//! 2. Jobs of queues with a reservation, for which other jobs were preempted, start if their room is free; otherwise the
//!    room stays reserved. Then pods that have lost their nodes get other nodes.
//! 3. The queues take turns. A queue comes first if its next job is overdue, then if the job does not borrow, then if
//!    the queue's dominant share divided by its weight is small, those of the queues above it being compared first.
//!    Within a queue, higher priority comes first, then age. The first job that finds no room is the queue's *head*:
//!    other jobs are preempted if that gives it room. Later jobs that request less of every resource may overtake the
//!    head, for at most 30 minutes. After that, room is reserved for the head as it becomes free. The first job that
//!    needs other flavors than the head becomes a head as well. Jobs without a queue come after all queues, also those
//!    with a reservation. They wait for no other job: each starts when it fits. While it waits for its data, no nodes
//!    are reserved for it.
//! 4. Elastic jobs are offered the remaining room, unless a job of their queue waits for room.
//!
//! Pods are preempted in this order: first the pods of elastic jobs above the minimum, from the lowest priority up, and
//! in each job from the highest index down, but never index 0 and never below the role's `min`; then whole jobs. A job
//! of the same queue is preempted only if its priority is lower; with an equal one, only its pods above the minimum
//! are. A job of another queue in the cohort or tree is preempted if it borrows or has a lower priority, provided that
//! the preempting job stays within its queue's nominal quota. If it does not, both conditions must hold. In a tree,
//! this is seen from the level at which the two queues differ. The queue of the preempting job may forbid each of these
//! ([`Queue::preemption`]). A job without a queue is preempted first, whatever its priority, by any job that stays
//! within its queue's nominal quota. From jobs that are preempted only because they borrow, the pass takes no more than
//! their queue has borrowed, in whole pods or whole jobs.
//!
//! A job may have several choices of flavors, which are kinds of nodes with quota of their own ([`Job::fallbacks`]).
//! All are tried in order, and then preemption is, in the same order. Amounts on a flavor are resources of their own,
//! with names of their own ([`larder_api::queue::flavor`]).
//!
//! Where an autoscaler adds nodes for pending pods, the first job of a queue that has quota and lacks nodes starts
//! without a plan ([`Job::may_await_nodes`]): its pods are what the autoscaler counts. Only one job of a queue waits
//! like that.
//!
//! To look for room takes time, so a decision does it in vain for a limited number of jobs of each queue, or of each
//! namespace for jobs without a queue. The others have their turn in the next decisions.
//!
//! A job whose data is on the nodes where it would run starts at once when pods end there. So no job is preempted for a
//! job before that. kube-scheduler may nevertheless give the room to pods of others. Then the next preemption for the
//! job waits, longer each time ([`pause_after`]).
//!
//! Invariants: no queue gets more than its nominal quota, plus what it may borrow and other queues lend. No pod is
//! preempted unless the whole gang then has room. Room that was freed for a job is reserved for it, but room for a job
//! without a queue only from others like it.
//!
//! Terminating pods still use quota and nodes, so a job starts only after they are gone. Each decision must see what
//! the jobs took from the previous one ([`Job::granted`]).

mod facts;
mod messages;
mod order;
mod pass;
mod quota;
mod room;
#[cfg(test)]
mod tests;
mod verdict;
mod victims;

use std::borrow::Borrow;
use std::collections::BTreeMap;

pub use facts::{HeldPod, Job, LeftoverPod, Queue, Quota, Reservation, Role, Stop};
pub use verdict::{Lack, Running, Verdict, Waiting};

use crate::jobs::plan::Cluster;
use crate::time::Seconds;
use larder_kube::key::Key;
use pass::Pass;

/// How long no other job is preempted for a job for which others were preempted in vain this many times in a row: a
/// minute, doubled each time, up to about half an hour.
pub fn pause_after(in_vain: u32) -> i64 {
    60 << in_vain.saturating_sub(1).min(5)
}

/// Decides about all jobs. `leftover` are the remaining pods of other jobs, which still use quota. `cluster` contains
/// the nodes with all bound pods, of these jobs and of others. On return, its free resources are what the jobs leave to
/// other pods.
pub fn decide(
    queues: &[Queue],
    jobs: &[impl Borrow<Job>],
    leftover: &[LeftoverPod],
    cluster: &mut Cluster<'_>,
    now: Seconds,
) -> BTreeMap<Key, Verdict> {
    let on_fallback = |job: &Job, roles: &Vec<Role>| Job { roles: roles.clone(), fallbacks: Vec::new(), ..job.clone() };
    let jobs: Vec<&Job> = jobs.iter().map(Borrow::borrow).collect();
    let fallbacks: Vec<Vec<Job>> =
        jobs.iter().map(|job| job.fallbacks.iter().map(|roles| on_fallback(job, roles)).collect()).collect();
    let mut pass = Pass::new(queues, &jobs, &fallbacks, leftover, cluster, now);
    pass.drain();
    pass.fit();
    pass.give_back();
    pass.claims(true);
    pass.replace();
    pass.admit();
    pass.grow();
    cluster.restore(&pass.free_room());
    pass.verdicts()
}
