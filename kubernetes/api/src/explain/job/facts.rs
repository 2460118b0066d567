//! Facts about a job as text: its pods, its data, its position in the queue, and the job that ends next.

use k8s_openapi::jiff::Timestamp;
use larder_dataset::size::show_bytes;

use super::words::part;
use crate::names::{HERE, KUEUE_QUEUE_LABEL};
use crate::quantity::words::number;
use crate::queue::Queue;
use crate::queue::account::{Account, accounts};
use crate::queue::flavor::split;
use crate::queue::line::{Priorities, ending, holds, needs, waiting};
use crate::training_job::conditions::{JobConditionKind, JobReason};
use crate::training_job::{ClusterTerm, RoleStatus, TrainingJob, TrainingJobStatus};

/// The objects around a job. Parts that the reader may not see are empty.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// The queues.
    pub queues: Vec<Queue>,
    /// The other jobs.
    pub jobs: Vec<TrainingJob>,
    /// The priorities of jobs.
    pub priorities: Priorities,
    /// The current time.
    pub now: Timestamp,
}

/// "1 pod", "2 pods".
fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn key(job: &TrainingJob) -> String {
    let [namespace, name] = [&job.metadata.namespace, &job.metadata.name].map(|part| part.as_deref().unwrap_or("?"));
    format!("{namespace}/{name}")
}

fn is_same(one: &TrainingJob, other: &TrainingJob) -> bool {
    (&one.metadata.namespace, &one.metadata.name) == (&other.metadata.namespace, &other.metadata.name)
}

/// The queue that decides about a job.
fn queue(job: &TrainingJob) -> Option<&str> {
    job.spec.queue.as_deref().filter(|_| !is_of_kueue(job))
}

/// Whether Kueue decides about a job.
pub(super) fn is_of_kueue(job: &TrainingJob) -> bool {
    job.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(KUEUE_QUEUE_LABEL))
}

/// The pods that are ready.
pub(super) fn ready(status: &TrainingJobStatus) -> String {
    let sum = |of: fn(&RoleStatus) -> u32| status.roles.iter().map(|role| u64::from(of(role))).sum();
    let (ready, desired, done): (u64, u64, u64) =
        (sum(|role| role.ready), sum(|role| role.desired), sum(|role| role.done));
    let done = if done == 0 { String::new() } else { format!(", {done} done") };
    let are = if desired == 1 { "is" } else { "are" };
    format!("{ready} of {} {are} ready{done}", count(desired, "pod"))
}

/// That the job runs with fewer pods than requested, and when it grows unless `said` mentions it.
pub(super) fn fewer(job: &TrainingJob, status: &TrainingJobStatus, said: &str) -> String {
    let fewer = job.spec.roles.iter().filter_map(|role| {
        let desired = status.roles.iter().find(|status| status.name == role.name)?.desired;
        (desired < role.replicas).then(|| format!("{desired} of {} {}", role.replicas, role.name))
    });
    let fewer: Vec<String> = fewer.collect();
    if fewer.is_empty() {
        return String::new();
    }
    let grows = match (said.contains("grows again"), is_of_kueue(job)) {
        (true, _) => "",
        (false, true) => "; with Kueue the job grows again only after a suspension",
        (false, false) => ", and grows once room has stayed free",
    };
    format!("it has fewer pods than it asks for ({}){grows}", fewer.join(", "))
}

/// The pods that were replaced, by cause.
pub(super) fn replaced(status: &TrainingJobStatus) -> String {
    let restarts = &status.restarts;
    let causes = [
        (restarts.crashed, "crashed"),
        (restarts.preempted, "preempted"),
        (restarts.evicted, "evicted"),
        (restarts.node_lost, "with a lost node"),
        (restarts.device_fault, "with a faulty device"),
    ];
    let causes: Vec<String> =
        causes.iter().filter(|(pods, _)| *pods > 0).map(|(pods, cause)| format!("{pods} {cause}")).collect();
    if causes.is_empty() {
        return String::new();
    }
    format!("lost so far: {} ({})", count(restarts.total().into(), "pod"), causes.join(", "))
}

/// The pods of a suspended job that are still terminating.
pub(super) fn still_ending(status: &TrainingJobStatus) -> String {
    match status.roles.iter().map(|role| u64::from(role.active)).sum() {
        0_u64 => "it has no pods".to_owned(),
        1 => "1 of its pods is still terminating".to_owned(),
        active => format!("{active} of its pods are still terminating"),
    }
}

/// How long the job took.
pub(super) fn took(status: &TrainingJobStatus) -> String {
    match (&status.started, &status.finished) {
        (Some(started), Some(finished)) => {
            let seconds = finished.0.duration_since(started.0).as_secs().max(0);
            let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
            format!("it finished after {hours} h {minutes:02} min {seconds:02} s")
        }
        _ => "it has finished".to_owned(),
    }
}

/// How much of the job's data is cached, unless `said` mentions it.
pub(super) fn data(status: &TrainingJobStatus, said: &str) -> String {
    let cold = JobConditionKind::DataWarm.find(&status.conditions).filter(|warm| warm.status == "False");
    let Some(cold) = cold.filter(|_| !said.contains("data")) else { return String::new() };
    let message = part(&cold.message);
    let shown = status.shown.as_ref().map(|shown| shown.data.trim_end_matches('%').trim()).unwrap_or_default();
    if cold.reason == JobReason::Warming.as_str() && !message.is_empty() {
        let about = if message.starts_with("data") { "" } else { "data: " };
        format!("{about}{message}")
    } else if shown.is_empty() {
        String::new()
    } else {
        format!("data {shown} % cached")
    }
}

/// The resource that the job's queue lacks.
pub(super) fn lacks(job: &TrainingJob, around: &Around) -> Option<String> {
    let name = queue(job)?;
    let queue = around.queues.iter().find(|queue| queue.metadata.name.as_deref() == Some(name))?;
    let needs = needs(job);
    let accounts = accounts(queue, &around.queues);
    let lacks = |account: &Account| {
        let needs = *needs.get(split(&account.resource).0)?;
        (account.used.saturating_add(needs) > account.may_use).then(|| account.lacks(name, needs))
    };
    // The job needs quota of one flavor.
    let is_enough = |account: &Account| {
        let (resource, flavor) = split(&account.resource);
        let is_other = |other: &Account| matches!(split(&other.resource), (same, Some(_)) if same == resource);
        flavor.is_some() && accounts.iter().any(|other| is_other(other) && lacks(other).is_none())
    };
    let short = accounts.iter().filter(|account| !is_enough(account)).find_map(lacks);
    Some(short.unwrap_or_else(|| format!("queue {name} has quota for it, and larder-controller has not decided yet")))
}

/// The job of the same queue that will return a needed resource first, unless `said` names one.
pub(super) fn next_to_end(job: &TrainingJob, around: &Around, said: &str) -> String {
    let (Some(queue), false) = (queue(job), said.contains("next to end")) else { return String::new() };
    let needs = needs(job);
    let gives =
        ending(&around.jobs, queue).into_iter().filter(|(_, other)| !is_same(job, other)).find_map(|(ends, other)| {
            let holds = holds(other);
            let (resource, _) =
                needs.iter().find(|(resource, _)| holds.get(*resource).is_some_and(|held| *held > 0))?;
            Some((ends, key(other), number(resource, holds[resource])))
        });
    let Some((ends, other, amount)) = gives else { return String::new() };
    format!("next to end: {other} ({amount}), by {} at its deadline", hour(ends, around.now))
}

/// How many jobs of the same queue are before this job, unless `said` mentions them.
pub(super) fn place(job: &TrainingJob, around: &Around, said: &str) -> String {
    let (Some(queue), false) = (queue(job), said.contains("behind")) else { return String::new() };
    let line = waiting(&around.jobs, queue, &around.priorities);
    let before = line.iter().position(|other| is_same(job, other)).unwrap_or(0);
    match line.first().filter(|_| before > 0) {
        None => String::new(),
        Some(first) if before == 1 => format!("before it in the queue: {}", key(first)),
        Some(first) => format!("before it in the queue: {before} jobs, the first is {}", key(first)),
    }
}

/// A time such as `14:10 UTC`, with the date if it is on another day.
fn hour(time: Timestamp, now: Timestamp) -> String {
    let (time, now) = (time.to_string(), now.to_string());
    let cut = |text: &str, range: std::ops::Range<usize>| text.get(range).unwrap_or_default().to_owned();
    let date = if cut(&time, 0..10) == cut(&now, 0..10) { String::new() } else { cut(&time, 0..10) + " " };
    format!("{date}{} UTC", cut(&time, 11..16))
}

/// The cluster in which a job is, with the terms of the choice; empty for a job that had none.
pub(super) fn cluster(status: &TrainingJobStatus) -> String {
    let Some(placement) = status.placement.as_ref().filter(|placement| !placement.cluster.is_empty()) else {
        return String::new();
    };
    let price = |term: &ClusterTerm| {
        let weight = if term.weight > 1 { format!(" and weight {}", term.weight) } else { String::new() };
        format!("at cost {}{weight}", term.cost)
    };
    let own = placement.terms.iter().find(|term| term.cluster == placement.cluster);
    let own = own
        .map(|term| format!(", where {} of its data must be brought {}", show_bytes(term.missing_bytes), price(term)));
    let others = placement.terms.iter().filter(|term| term.cluster != placement.cluster).map(|term| {
        let said = if term.why.is_empty() {
            format!("{} {}", show_bytes(term.missing_bytes), price(term))
        } else {
            part(&term.why).to_owned()
        };
        format!("; {}: {said}", part(&term.cluster))
    });
    let place = if placement.cluster == HERE { "in this cluster" } else { "in cluster " };
    let name = if placement.cluster == HERE { "" } else { part(&placement.cluster) };
    format!("it is {place}{name}{}{}", own.unwrap_or_default(), others.collect::<String>())
}
