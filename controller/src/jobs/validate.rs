//! Whether a job can run: the reasons of its condition `Valid`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use larder_api::job_type::checked::CheckedType;
use larder_api::training_job::checked::{CheckedJob, Queueing};
use larder_api::training_job::conditions::{JobConditionKind, JobReason};

use crate::jobs::cluster_view::{ClusterView, dataset_key};
use crate::jobs::objects::JobObject;
use crate::jobs::refusal::Refusal;
use larder_kube::key::Key;

/// True if the job's status reports its current generation as valid, so no new dry run is needed.
pub fn was_accepted(object: &JobObject) -> bool {
    let valid = JobConditionKind::Valid.find(&object.status.conditions);
    let quota = JobConditionKind::QuotaReserved.find(&object.status.conditions);
    let is_short = quota.is_some_and(|quota| quota.reason == JobReason::ResourceQuotaUsed.as_str());
    let is_valid = |valid: &Condition| valid.status == "True" && valid.observed_generation == Some(object.generation);
    !is_short && valid.is_some_and(is_valid)
}

pub fn spec(object: &JobObject) -> Result<&CheckedJob, Refusal> {
    object.job.as_ref().map_err(|error| Refusal::new(JobReason::InvalidSpec, error))
}

/// The type of a job, if the job's roles match it.
pub fn kind<'a>(view: &ClusterView<'a>, job: &CheckedJob) -> Result<&'a CheckedType, Refusal> {
    let Some(object) = view.jobs.types.get(&Key::cluster(&job.kind)) else {
        return Err(Refusal::new(JobReason::TypeMissing, format!("there is no JobType {}", job.kind)));
    };
    let kind = object
        .kind
        .as_ref()
        .map_err(|error| Refusal::new(JobReason::TypeInvalid, format!("the JobType {}: {error}", job.kind)))?;
    job.fit(kind).map_err(|error| Refusal::new(JobReason::RolesUnfit, error))?;
    Ok(kind)
}

/// Checks that the job's namespace may use its datasets and its queue. The message is the same whether an object does
/// not exist or is not granted.
pub fn grants(view: &ClusterView<'_>, namespace: &str, job: &CheckedJob) -> Result<(), Refusal> {
    for mount in &job.datasets {
        let object = view.datasets.get(&dataset_key(&mount.dataset));
        if !object.is_some_and(|object| object.dataset.spec.is_granted(&object.meta.key.namespace, namespace)) {
            let why =
                format!("the namespace {namespace} may not use the dataset {}, or it does not exist", mount.dataset);
            return Err(Refusal::new(JobReason::DatasetNotGranted, why));
        }
    }
    let Queueing::Queue(name) = &job.queueing else { return Ok(()) };
    let queue = view.jobs.queues.get(&Key::cluster(name)).and_then(|object| object.queue.as_ref().ok());
    if !queue.is_some_and(|queue| queue.is_granted(namespace)) {
        let why = format!("the namespace {namespace} may not use the queue {name}, or it does not exist");
        return Err(Refusal::new(JobReason::QueueNotGranted, why));
    }
    if let (Some(queue), Some(named)) = (queue, &job.priority)
        && !queue.priorities.contains_key(named)
    {
        let names: Vec<&str> = queue.priorities.keys().map(String::as_str).collect();
        let has = if names.is_empty() { "none at all".to_owned() } else { format!("only {}", names.join(", ")) };
        let why = format!("spec.priority: the queue {name} has no priority {named}, and {has}");
        return Err(Refusal::new(JobReason::InvalidSpec, why));
    }
    Ok(())
}
