//! Queues in the form that decisions need, and their status.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use larder_api::quantity::words::number;
use larder_api::queue::checked::CheckedQueue;
use larder_api::queue::flavor::split;
use larder_api::queue::tree::{Place, Tree};
use larder_api::queue::{self, QueueStatus, Usage};
use larder_api::settings::Flavor;

use crate::jobs::condition::{Finding, condition};
use crate::jobs::objects::QueueObject;
use crate::jobs::queue::{Job, LeftoverPod, Queue, Stop};
use crate::time::Seconds;
use larder_kube::pod::amounts::Amounts;

/// The findings of a round about a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The status, without its condition.
    pub status: QueueStatus,
    /// The problem with the place of the queue or with its flavors.
    pub problem: Option<Problem>,
}

/// A problem of a queue whose spec is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its jobs can start nevertheless.
    pub is_open: bool,
    pub reason: &'static str,
    pub message: String,
}

/// The queues in the form that decisions need. A queue whose spec is invalid is treated as a missing queue.
pub fn queues<'a>(objects: impl IntoIterator<Item = &'a QueueObject>) -> Vec<Queue> {
    let valid = |object: &'a QueueObject| Some((object, object.queue.as_ref().ok()?));
    let valid: Vec<(&QueueObject, &CheckedQueue)> = objects.into_iter().filter_map(valid).collect();
    let tree = Tree::new(valid.iter().map(|(object, checked)| Place {
        name: &object.meta.key.name,
        parent: checked.parent.as_deref().unwrap_or_default(),
        cohort: checked.cohort.as_deref().unwrap_or_default(),
    }));
    let queue = |(at, (object, checked)): (usize, &(&QueueObject, &CheckedQueue))| Queue {
        name: object.meta.key.name.clone(),
        quotas: checked.quota.clone(),
        cohort: checked.cohort.clone().unwrap_or_default(),
        parent: checked.parent.clone().unwrap_or_default(),
        weight: checked.weight,
        preemption: checked.preemption,
        obstacle: tree.cycle(at).map(|cycle| cyclic(&object.meta.key.name, &cycle)),
        stop: match checked.stop {
            None => Stop::No,
            Some(queue::Stop::Hold) => Stop::Hold,
            Some(queue::Stop::Drain) => Stop::Drain,
        },
    };
    valid.iter().enumerate().map(queue).collect()
}

fn cyclic(name: &str, cycle: &str) -> String {
    format!("queue {name} is closed: {cycle} (spec.parent); remove spec.parent of one of them")
}

/// The problem of a queue among all queues.
pub fn problem(object: &QueueObject, queue: &Queue, names: &BTreeSet<&str>, flavors: &[Flavor]) -> Option<Problem> {
    let found = |is_open: bool, reason: &'static str, message: String| Some(Problem { is_open, reason, message });
    if let Some(obstacle) = &queue.obstacle {
        return found(false, "ParentCycle", obstacle.clone());
    }
    let listed = object.queue.as_ref().map_or(&[][..], |checked| &checked.flavors);
    let is_known = |name: &&String| flavors.iter().any(|flavor| flavor.name == **name);
    let (known, unknown): (Vec<&String>, Vec<&String>) = listed.iter().partition(is_known);
    if !unknown.is_empty() {
        let names: Vec<&str> = unknown.into_iter().map(String::as_str).collect();
        let message = format!("the LarderSettings have no flavor {}: no job starts on it", names.join(" and no "));
        return found(!known.is_empty(), "FlavorMissing", message);
    }
    let has_parent = queue.parent.is_empty() || names.contains(queue.parent.as_str());
    let message = || format!("there is no queue {} (spec.parent): it neither lends nor borrows", queue.parent);
    if has_parent { None } else { found(true, "ParentMissing", message()) }
}

/// The status of a queue, without its condition.
pub fn status(object: &QueueObject, queue: &Queue, jobs: &[impl Borrow<Job>], leftover: &[LeftoverPod]) -> QueueStatus {
    let mut status = QueueStatus { observed_generation: Some(object.generation), ..QueueStatus::default() };
    // Pods may request thousands of other resources, each of them different ones.
    let mut used: BTreeMap<&str, u64> = queue.quotas.keys().map(|name| (name.as_str(), 0)).collect();
    let mut add = |charges: &Amounts| {
        for (name, used) in &mut used {
            *used = used.saturating_add(charges.get(name));
        }
    };
    for job in jobs.iter().map(Borrow::borrow).filter(|job: &&Job| job.queue == queue.name) {
        if job.is_admitted() {
            status.running += 1;
            add(&job.charges(|at, _| job.granted(at)));
        } else {
            status.waiting += 1;
        }
        add(&job.leaving());
    }
    for pod in leftover.iter().filter(|pod| pod.queue == queue.name) {
        add(&pod.charges());
    }
    for (name, quota) in &queue.quotas {
        let (resource, flavor) = split(name);
        let used = used[name.as_str()];
        let borrowed = used.saturating_sub(quota.nominal);
        let usage = Usage { used: quantity(resource, used), borrowed: quantity(resource, borrowed) };
        let all = match flavor {
            Some(flavor) => status.flavors.entry(flavor.to_owned()).or_default(),
            None => &mut status.usage,
        };
        all.insert(resource.to_owned(), usage);
    }
    let shown = queue.quotas.iter().map(|(resource, quota)| {
        format!("{resource} {}/{}", number(resource, used[resource.as_str()]), number(resource, quota.nominal))
    });
    status.shown = Some(shown.collect::<Vec<_>>().join(", ")).filter(|shown| !shown.is_empty());
    status
}

/// The complete status; `None` if it equals the written one, or if no round has seen this spec yet. Nothing is counted
/// for a queue with an invalid spec.
pub fn to_write(object: &QueueObject, report: Option<&Report>, now: Seconds) -> Option<QueueStatus> {
    let is_current = |report: &&Report| report.status.observed_generation == Some(object.generation);
    let report = match &object.queue {
        Ok(_) => Some(report.filter(is_current)?),
        Err(_) => None,
    };
    let problem = report.and_then(|report| report.problem.as_ref());
    let of_problem =
        |problem: &Problem| Finding { is: problem.is_open, reason: problem.reason, message: problem.message.clone() };
    let finding = match &object.queue {
        Err(error) => Finding { is: false, reason: "InvalidSpec", message: error.to_string() },
        Ok(checked) if checked.stop.is_some() && problem.is_none_or(|problem| problem.is_open) => {
            Finding { is: false, reason: "Stopped", message: "spec.stop is set".to_owned() }
        }
        Ok(_) => problem.map_or(Finding { is: true, reason: "Open", message: String::new() }, of_problem),
    };
    let none = QueueStatus { observed_generation: Some(object.generation), ..QueueStatus::default() };
    let conditions = vec![condition("Active", finding, object.generation, &object.status.conditions, now)];
    let status = QueueStatus { conditions, ..report.map_or(none, |report| report.status.clone()) };
    (status != object.status).then_some(status)
}

/// An amount in the API's form.
pub(crate) fn quantity(resource: &str, amount: u64) -> Quantity {
    Quantity(if resource == "cpu" && !amount.is_multiple_of(1_000) {
        format!("{amount}m")
    } else if resource == "cpu" {
        (amount / 1_000).to_string()
    } else {
        amount.to_string()
    })
}
