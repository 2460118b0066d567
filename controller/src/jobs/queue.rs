//! Which jobs run: quotas, order, preemption and growth.
//!
//! [`decide`] looks at all queues and jobs at once and has a [`Verdict`] for every job. `quota` is the ledger of quotas, `room` is quota
//! and nodes together, `order` has the jobs that wait in theirs, `victims` finds those that give way, and `pass` goes
//! through it all:
//!
//! 1. Jobs of drained queues stop. Elastic jobs that ask for fewer pods than they have lose the rest. Where quotas were lowered, jobs give back what is too much.
//! 2. Jobs for which others end start if their room is free; else it is held for them. Then pods that have lost their nodes get
//!    others.
//! 3. The queues take turns: first those whose next job has waited too long, then those where it does not borrow, then those with the smallest dominant share for their
//!    weight. In a queue the higher priority comes first, then the older job. The first that finds no room is the queue's
//!    *head*: others end for it if that gives it room. Later jobs that ask for less of everything may pass it, for 30 minutes at
//!    most; then what it needs is held for it as it becomes free. Jobs without a queue wait for no other: each starts when it fits.
//! 4. Elastic jobs are offered what is left, unless a job of their queue waits for room.
//!
//! Others give way in this order: the surplus of elastic jobs, from the lowest priority up, of each job the highest indexes,
//! never index 0 and never below the role's `min`; then whole jobs. Those of the same queue must have a lower priority. Those of
//! other queues in the cohort must borrow or have a lower priority if the job stays within its queue's nominal quota, and both
//! if it does not. Of those that are taken for borrowing alone, so much goes as their queue has borrowed, in whole pods or jobs.
//!
//! Invariants: no queue gets more than its nominal quota, what it may borrow and what the others lend; no pod gives way unless
//! the whole gang then has room; room that was freed for a job is nobody else's.
//!
//! Pods that end still use quota and nodes, so a job starts once they are gone. Each decision must know what the jobs took of
//! the one before ([`Job::granted`]).

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

use std::collections::BTreeMap;

pub use facts::{HeldPod, Job, LeftoverPod, Queue, Quota, Role, Stop};
pub use verdict::{Lack, Running, Verdict, Waiting};

use crate::jobs::plan::Cluster;
use crate::time::Seconds;
use larder_kube::key::Key;
use pass::Pass;

/// Decides about all jobs. `leftover` are pods of others that still use quota; `cluster` has the nodes with the pods that are bound
/// there, of these jobs and of others; then, what the jobs leave for others. `now` is in seconds since 1970.
pub fn decide(
    queues: &[Queue],
    jobs: &[Job],
    leftover: &[LeftoverPod],
    cluster: &mut Cluster<'_>,
    now: Seconds,
) -> BTreeMap<Key, Verdict> {
    let mut pass = Pass::new(queues, jobs, leftover, cluster, now);
    pass.drain();
    pass.fit();
    pass.give_back();
    pass.claims();
    pass.replace();
    pass.admit();
    pass.grow();
    cluster.restore(&pass.free_room());
    pass.verdicts()
}
