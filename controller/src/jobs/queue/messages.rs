//! Why a job waits, shrinks or stops: one sentence each, with numbers.

use crate::time::Seconds;
use larder_api::quantity::words::{number, show, show_part};

use super::facts::Job;
use super::quota::Lack;
use super::room::Refusal;
use larder_kube::fields::hour;

/// Why there is no room, and which job ends next. `ending` are the jobs that have room and a deadline, sorted by
/// deadline.
pub(super) fn refused(job: &Job, refusal: &Refusal, ending: &[&Job]) -> String {
    match refusal {
        Refusal::Quota(lack) => {
            let next = next_to_end(job, ending, |other| other.queue == job.queue, &lack.resource);
            format!("{}{next}", short_of(&job.queue, lack))
        }
        Refusal::Nodes(shortage) => {
            let resource = job.roles.iter().find(|role| role.name == shortage.role).and_then(|role| {
                role.requests.iter().max_by_key(|(resource, _)| (resource.contains('/'), *resource == "cpu"))
            });
            let next = resource.map(|(resource, _)| next_to_end(job, ending, |_| true, resource)).unwrap_or_default();
            format!("{shortage}{next}")
        }
    }
}

fn short_of(queue: &str, lack: &Lack) -> String {
    let Lack { resource, needs, uses, may_use, nominal } = lack;
    let needs = number(resource, *needs);
    if uses > nominal {
        let borrowed = number(resource, uses - nominal);
        let may_use = number(resource, (*may_use).max(*uses));
        let uses = show(resource, *uses);
        format!("queue {queue} uses {uses}, {borrowed} of them borrowed, and may use {may_use} now; needs {needs}")
    } else if may_use < nominal {
        let uses = show_part(resource, *uses, *nominal);
        format!(
            "queue {queue} uses {uses} and has lent {} of the rest; needs {needs}",
            number(resource, nominal - may_use)
        )
    } else if may_use > nominal {
        let uses = show_part(resource, *uses, *nominal);
        format!("queue {queue} uses {uses} and may borrow {} now; needs {needs}", number(resource, may_use - nominal))
    } else {
        format!("queue {queue} uses {}, needs {needs}", show_part(resource, *uses, *nominal))
    }
}

/// The next job whose end frees some of a resource.
fn next_to_end(reader: &Job, ending: &[&Job], among: impl Fn(&Job) -> bool, resource: &str) -> String {
    let mut gives = ending.iter().filter(|job| among(job)).filter_map(|job| {
        let amount = job.charges(|at, _| job.granted(at)).get(resource);
        (amount > 0).then_some((job.ends?, name_for(reader, job), amount))
    });
    gives.next().map_or_else(String::new, |(ends, name, amount)| {
        let amount = number(resource, amount);
        format!("; next to end: {name} ({amount}), by {} at its deadline", hour(ends.0))
    })
}

pub(super) fn no_queue(queue: &str) -> String {
    format!("there is no queue {queue}")
}

pub(super) fn stopped(queue: &str) -> String {
    format!("queue {queue} is stopped (spec.stop)")
}

/// The job had room before, and its pods were not bound.
pub(super) fn held_back(until: Seconds) -> String {
    format!("it is retried at {}", hour(until.0))
}

/// The job requests more than its queue can ever have.
pub(super) fn beyond(job: &Job, resource: &str, most: u64) -> String {
    let needs = show(resource, job.floor().get(resource));
    format!("needs {needs}, but queue {} can never use more than {}", job.queue, number(resource, most))
}

/// The job waits behind the head of its queue. `waited`: the head has waited too long for any job to overtake it.
pub(super) fn behind(job: &Job, head: &Job, now: Seconds, waited: bool) -> String {
    let minutes = head.head_since.map_or(0, |since| (now - since) / 60);
    let head = name_for(job, head);
    if waited {
        format!("waits behind {head}, which has found no room for {minutes} min: no job may overtake it any more")
    } else {
        format!("waits behind {head}, which came first; only jobs that request less of every resource may overtake it")
    }
}

/// The name of a job in a message to the readers of another one. Those of another namespace learn no names.
fn name_for(reader: &Job, job: &Job) -> String {
    match reader.key.namespace == job.key.namespace {
        true => job.key.to_string(),
        false => "a job of another namespace".to_owned(),
    }
}

/// No room was looked for yet.
pub(super) fn untried() -> String {
    "other jobs come first: room is looked for in turn".to_owned()
}

/// Other jobs would be preempted for the job if its data were on its nodes.
pub(super) fn is_cold(why: &str) -> String {
    format!("{why}; its data is fetched to the nodes where it would run before other jobs are preempted for it")
}

/// Other jobs are being preempted for the job.
pub(super) fn clearing(ending: usize) -> String {
    match ending {
        0 => "room is reserved for it".to_owned(),
        1 => "room is reserved for it; 1 pod is still terminating".to_owned(),
        ending => format!("room is reserved for it; {ending} pods are still terminating"),
    }
}

/// The job loses some or all of its pods to another job.
pub(super) fn is_preempted_for(job: &Job, to: &Job, pods: u32) -> String {
    let (needs, s) = (name_for(job, to), if pods == 1 { "" } else { "s" });
    format!("{needs} of queue {} with priority {} needs the room of {pods} pod{s}", to.queue, to.priority)
}

/// The job has no queue and its nodes were not reserved.
pub(super) const ROOM_TAKEN: &str =
    "other jobs took the room of its nodes while it waited for its data: a job without a queue reserves none";

/// The job loses pods because a quota was lowered.
pub(super) fn over(queue: &str, pods: u32) -> String {
    format!("queue {queue} is over its quota; {pods} pod{} must end", if pods == 1 { "" } else { "s" })
}

/// The job loses pods because its spec requests fewer.
pub(super) fn asks_for_fewer(pods: u32) -> String {
    format!("its spec now asks for {pods} pod{} fewer", if pods == 1 { "" } else { "s" })
}
