//! Queues in the form that decisions need, and their status.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use larder_api::quantity::words::number;
use larder_api::queue::{self, QueueStatus, Usage};

use crate::jobs::condition::{Finding, condition};
use crate::jobs::objects::QueueObject;
use crate::jobs::queue::{Job, LeftoverPod, Queue, Quota, Stop};
use crate::time::Seconds;
use larder_kube::pod::amounts::Amounts;

/// Converts a queue; `None` if its spec is invalid, which is treated as a missing queue.
pub fn queue(object: &QueueObject) -> Option<Queue> {
    let checked = object.queue.as_ref().ok()?;
    let quota = |(resource, quota): (&String, &queue::checked::CheckedQuota)| {
        (resource.clone(), Quota { nominal: quota.nominal, borrow: quota.borrow, lend: quota.lend })
    };
    Some(Queue {
        name: object.meta.key.name.clone(),
        quotas: checked.quota.iter().map(quota).collect(),
        cohort: checked.cohort.clone().unwrap_or_default(),
        weight: checked.weight,
        stop: match checked.stop {
            None => Stop::No,
            Some(queue::Stop::Hold) => Stop::Hold,
            Some(queue::Stop::Drain) => Stop::Drain,
        },
    })
}

/// The status of a queue, without its condition.
pub fn status(object: &QueueObject, queue: &Queue, jobs: &[Job], leftover: &[LeftoverPod]) -> QueueStatus {
    let mut status = QueueStatus { observed_generation: Some(object.generation), ..QueueStatus::default() };
    let mut used = Amounts::default();
    for job in jobs.iter().filter(|job| job.queue == queue.name) {
        if job.is_admitted() {
            status.running += 1;
            used.add(&job.requests(|at, _| job.granted(at)), 1);
        } else {
            status.waiting += 1;
        }
        used.add(&job.leaving(), 1);
    }
    for pod in leftover.iter().filter(|pod| pod.queue == queue.name) {
        used.add(&pod.requests, 1);
    }
    let usage = |(resource, quota): (&String, &Quota)| {
        let used = used.get(resource);
        let borrowed = used.saturating_sub(quota.nominal);
        (resource.clone(), Usage { used: quantity(resource, used), borrowed: quantity(resource, borrowed) })
    };
    status.usage = queue.quotas.iter().map(usage).collect::<BTreeMap<_, _>>();
    let shown = queue.quotas.iter().map(|(resource, quota)| {
        format!("{resource} {}/{}", number(resource, used.get(resource)), number(resource, quota.nominal))
    });
    status.shown = Some(shown.collect::<Vec<_>>().join(", ")).filter(|shown| !shown.is_empty());
    status
}

/// The complete status; `None` if it equals the written one. Nothing is counted for a queue with an invalid spec.
pub fn to_write(object: &QueueObject, counted: Option<&QueueStatus>, now: Seconds) -> Option<QueueStatus> {
    let finding = match &object.queue {
        Err(error) => Finding { is: false, reason: "InvalidSpec", message: error.to_string() },
        Ok(checked) if checked.stop.is_some() => {
            Finding { is: false, reason: "Stopped", message: "spec.stop is set".to_owned() }
        }
        Ok(_) => Finding { is: true, reason: "Open", message: String::new() },
    };
    let none = QueueStatus { observed_generation: Some(object.generation), ..QueueStatus::default() };
    let conditions = vec![condition("Active", finding, object.generation, &object.status.conditions, now)];
    let status = QueueStatus { conditions, ..counted.cloned().unwrap_or(none) };
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
