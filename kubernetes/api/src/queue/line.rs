//! The TrainingJobs of a Queue: the waiting jobs in order, and the running jobs by deadline.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use larder_dataset::size::parse_duration;

use crate::names::KUEUE_QUEUE_LABEL;
use crate::quantity::{amount, is_device};
use crate::training_job::conditions::JobConditionKind;
use crate::training_job::{Phase, Role, TrainingJob};

/// The priorities of the PriorityClasses of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Priorities {
    /// The priority of each class, keyed by the name of the class.
    pub classes: BTreeMap<String, i32>,
    /// The priority of pods that name no class.
    pub default: i32,
    /// The priorities that jobs of a queue may name, keyed by the name of the queue. Of queues without any, the classes
    /// of pods decide.
    pub queues: BTreeMap<String, BTreeMap<String, i32>>,
}

impl Priorities {
    /// Each class is given by its name, its value, and whether it is the default for pods that name no class.
    pub fn new(classes: impl IntoIterator<Item = (String, i32, bool)>) -> Self {
        let mut priorities = Self::default();
        for (name, value, is_default) in classes {
            if is_default {
                priorities.default = value;
            }
            priorities.classes.insert(name, value);
        }
        priorities
    }

    /// The priority of a job with these pods: the highest priority of its pods.
    pub fn of<'a>(&self, templates: impl IntoIterator<Item = &'a PodTemplateSpec>) -> i32 {
        let of_pod = |template: &PodTemplateSpec| {
            let class = template.spec.as_ref().and_then(|pod| pod.priority_class_name.as_ref());
            class.and_then(|class| self.classes.get(class)).copied().unwrap_or(self.default)
        };
        templates.into_iter().map(of_pod).max().unwrap_or(self.default)
    }

    /// Adds the priorities that queues give to jobs.
    pub fn with_queues<'a>(mut self, queues: impl IntoIterator<Item = (&'a str, &'a BTreeMap<String, i32>)>) -> Self {
        let queues = queues.into_iter().filter(|(_, priorities)| !priorities.is_empty());
        self.queues.extend(queues.map(|(queue, priorities)| (queue.to_owned(), priorities.clone())));
        self
    }

    /// The priority of a job in `queue` that names the priority `named` and has these pods.
    pub fn in_queue<'a>(
        &self,
        queue: Option<&str>,
        named: Option<&str>,
        templates: impl IntoIterator<Item = &'a PodTemplateSpec>,
    ) -> i32 {
        match queue.and_then(|queue| self.queues.get(queue)) {
            Some(priorities) => named.and_then(|named| priorities.get(named)).copied().unwrap_or(0),
            None => self.of(templates),
        }
    }

    /// The priority of a job.
    pub fn of_job(&self, job: &TrainingJob) -> i32 {
        let templates = job.spec.roles.iter().map(|role| &role.template);
        self.in_queue(job.spec.queue.as_deref(), job.spec.priority.as_deref(), templates)
    }
}

/// The phase of a job, if the controller has set it.
pub fn phase(job: &TrainingJob) -> Option<Phase> {
    job.status.as_ref()?.phase
}

/// True if a job is waiting for quota in `queue`. A job that is invalid, suspended, deleted or run by another
/// controller does not wait.
pub fn is_waiting_in(job: &TrainingJob, queue: &str) -> bool {
    let is_refused = || {
        let conditions = job.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        JobConditionKind::Valid.find(conditions).is_some_and(|valid| valid.status == "False")
    };
    is_in(job, queue) && matches!(phase(job), None | Some(Phase::Queued)) && !job.spec.suspend && !is_refused()
}

/// True if a job has quota in `queue`.
pub fn is_admitted_in(job: &TrainingJob, queue: &str) -> bool {
    is_in(job, queue) && phase(job).is_some_and(|phase| phase.has_pods() || phase == Phase::DataWarming)
}

fn is_in(job: &TrainingJob, queue: &str) -> bool {
    let is_of_kueue = job.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(KUEUE_QUEUE_LABEL));
    let is_queue = job.spec.queue.as_deref() == Some(queue);
    // The trials of a sweep wait in the queue, and not the sweep.
    let has_pods = job.spec.sweep.is_none();
    is_queue && has_pods && !is_of_kueue && !job.is_of_others() && job.metadata.deletion_timestamp.is_none()
}

/// The jobs that wait in `queue`, in order: by priority, then by age.
pub fn waiting<'a>(jobs: &'a [TrainingJob], queue: &str, priorities: &Priorities) -> Vec<&'a TrainingJob> {
    let mut waiting: Vec<&TrainingJob> = jobs.iter().filter(|job| is_waiting_in(job, queue)).collect();
    waiting.sort_by_cached_key(|job| {
        let metadata = &job.metadata;
        let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
        (Reverse(priorities.of_job(job)), created, metadata.namespace.clone(), metadata.name.clone())
    });
    waiting
}

/// The latest time at which a job ends: its deadline. `None` if it has no deadline or has not started.
pub fn ends(job: &TrainingJob) -> Option<Timestamp> {
    let started = job.status.as_ref()?.started.as_ref()?.0;
    let deadline = parse_duration(job.spec.active_deadline.as_deref()?).ok()?;
    started.checked_add(SignedDuration::try_from(deadline).ok()?).ok()
}

/// The jobs that have quota in `queue` and a deadline, the earliest deadline first.
pub fn ending<'a>(jobs: &'a [TrainingJob], queue: &str) -> Vec<(Timestamp, &'a TrainingJob)> {
    let admitted = jobs.iter().filter(|job| is_admitted_in(job, queue));
    let mut ending: Vec<_> = admitted.filter_map(|job| Some((ends(job)?, job))).collect();
    ending.sort_by_key(|(ends, _)| *ends);
    ending
}

/// The fewest devices that a job needs, by resource.
pub fn needs(job: &TrainingJob) -> BTreeMap<String, u64> {
    devices(job, |role| role.min.unwrap_or(role.replicas))
}

/// The devices of the pods that a job should have now, by resource.
pub fn holds(job: &TrainingJob) -> BTreeMap<String, u64> {
    devices(job, |role| {
        let status = job.status.iter().flat_map(|status| &status.roles).find(|status| status.name == role.name);
        status.map_or(role.replicas, |status| status.desired)
    })
}

/// Only devices are counted: a pod may get more CPUs and memory than its template requests, but not more devices.
fn devices(job: &TrainingJob, pods: impl Fn(&Role) -> u32) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::<String, u64>::new();
    for role in &job.spec.roles {
        for (resource, each) in role.template.spec.as_ref().map(devices_of_pod).unwrap_or_default() {
            let all = sum.entry(resource).or_default();
            *all = all.saturating_add(each.saturating_mul(u64::from(pods(role))));
        }
    }
    sum
}

fn devices_of_pod(pod: &PodSpec) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::<String, u64>::new();
    for container in &pod.containers {
        for (resource, amount) in devices_of_container(container) {
            let all = sum.entry(resource).or_default();
            *all = all.saturating_add(amount);
        }
    }
    for container in pod.init_containers.iter().flatten() {
        for (resource, amount) in devices_of_container(container) {
            let all = sum.entry(resource).or_default();
            *all = amount.max(*all);
        }
    }
    sum
}

fn devices_of_container(container: &Container) -> impl Iterator<Item = (String, u64)> {
    let limits = container.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
    let devices = limits.filter(|(resource, _)| is_device(resource));
    devices.filter_map(|(resource, quantity)| {
        let amount = amount(resource, quantity).filter(|amount| *amount > 0)?;
        Some((resource.clone(), amount))
    })
}

#[cfg(test)]
mod tests;
