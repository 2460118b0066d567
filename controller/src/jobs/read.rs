//! From the objects that TrainingJobs depend on, as the API serves them, to the few fields that are kept.

use crate::time::Seconds;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, ResourceStatus};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use larder_api::names::{JOB_LABEL, JOB_QUEUE_LABEL, JOB_SERVING_LABEL};
use larder_api::{JobType, Queue, TrainingJob};
use larder_kube::api::DynamicObject;
use serde_json::Error;

use crate::jobs::kueue::names::for_kueue;
use crate::jobs::machine::pod::{Devices, PodStage};
use crate::jobs::objects::{ClassObject, JobObject, JobPod, QueueObject, TypeObject};
use crate::jobs::pod_group::known::{self, KnownGroup};
use crate::jobs::render::validate_as;
use larder_kube::fields::{label, meta, second_of, whole};
use larder_kube::key::Key;
use larder_kube::kinds::Kind;
use larder_kube::pod::requests::has_devices;
use larder_kube::pod::{condition, node, phase};

pub(crate) fn training_job(object: DynamicObject) -> Result<Option<JobObject>, Error> {
    let meta = meta(&object);
    let job: TrainingJob = whole(object)?;
    let (checked, is_of_others) = (job.check(), job.is_of_others());
    let generation = job.metadata.generation.unwrap_or_default();
    let (labels, annotations) = for_kueue(job.metadata.labels, job.metadata.annotations);
    let status = job.status.unwrap_or_default();
    Ok(Some(JobObject { meta, generation, job: checked, is_of_others, labels, annotations, status }))
}

pub(crate) fn job_type(object: DynamicObject) -> Result<Option<TypeObject>, Error> {
    let meta = meta(&object);
    let of_type: JobType = whole(object)?;
    let generation = of_type.metadata.generation.unwrap_or_default();
    let kind = validate_as(&meta.key.name, &of_type.spec);
    let conditions = of_type.status.unwrap_or_default().conditions;
    Ok(Some(TypeObject { meta, generation, kind, conditions }))
}

pub(crate) fn queue(object: DynamicObject) -> Result<Option<QueueObject>, Error> {
    let meta = meta(&object);
    let queue: Queue = whole(object)?;
    let generation = queue.metadata.generation.unwrap_or_default();
    let (checked, status) = (queue.spec.check(), queue.status.unwrap_or_default());
    Ok(Some(QueueObject { meta, generation, queue: checked, status }))
}

pub(crate) fn priority_class(object: DynamicObject) -> Result<Option<ClassObject>, Error> {
    let meta = meta(&object);
    let PriorityClass { value, global_default, .. } = whole(object)?;
    Ok(Some(ClassObject { meta, value: value.unwrap_or_default(), is_default: global_default.unwrap_or_default() }))
}

/// A PodGroup without a job's label is of no interest.
pub(crate) fn pod_group(object: DynamicObject) -> Result<Option<KnownGroup>, Error> {
    Ok(known::known(meta(&object), &whole(object)?))
}

/// The prefix of the names of resources that larder-devices offers by default.
const LARDERS: &str = "larder.dev/";

/// The part of a pod that its TrainingJob looks at; `None` if it is of none.
pub(crate) fn pod(pod: &Pod) -> Option<JobPod> {
    let job = label(pod, JOB_LABEL)?;
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.kind == Kind::TrainingJob.name() && owner.name == job)?;
    let stage = match phase(pod) {
        "Succeeded" => PodStage::Succeeded,
        "Failed" => PodStage::Failed,
        "Running" if condition(pod, "Ready", "True").is_some() => PodStage::Ready,
        _ if node(pod).is_empty() => PodStage::Pending,
        _ => PodStage::Bound,
    };
    let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let bound = condition(pod, "PodScheduled", "True");
    let bound_at = bound.map_or(pod.metadata.creation_timestamp.as_ref(), |there| there.last_transition_time.as_ref());
    let message = |there: &PodCondition| there.message.clone().unwrap_or_default();
    let reason = |there: &PodCondition| there.reason.clone().unwrap_or_default();
    Some(JobPod {
        job: Key::new(pod.metadata.namespace.as_deref().unwrap_or_default(), job),
        uid: owner.uid.clone(),
        queue: label(pod, JOB_QUEUE_LABEL).unwrap_or_default().to_owned(),
        stage,
        bound_at: Seconds(second_of(bound_at)),
        leaving: pod.metadata.deletion_timestamp.as_ref().map(|time| Seconds(time.0.as_second())),
        unscheduled: condition(pod, "PodScheduled", "False").map(message).unwrap_or_default(),
        disruption: condition(pod, "DisruptionTarget", "True").map(reason).unwrap_or_default(),
        devices: devices(pod, containers.clone()),
        never_ran: containers.count() == 0,
        serves: label(pod, JOB_SERVING_LABEL).is_some(),
        reason: pod.status.as_ref().and_then(|status| status.reason.clone()).unwrap_or_default(),
    })
}

/// The health of a pod's devices, as the kubelet reports it for each container and resource.
fn devices<'p>(pod: &Pod, containers: impl Iterator<Item = &'p ContainerStatus>) -> Devices {
    let reported = containers.flat_map(|container| container.allocated_resources_status.iter().flatten());
    let mut reported =
        reported.filter(|of| of.resources.as_ref().is_some_and(|devices| !devices.is_empty())).peekable();
    if reported.peek().is_none() {
        let has_devices = pod.spec.as_ref().is_some_and(has_devices);
        return if has_devices { Devices::Unreported } else { Devices::None };
    }
    let is_unhealthy = |of: &&ResourceStatus| {
        of.resources.iter().flatten().any(|device| device.health.as_deref() == Some("Unhealthy"))
    };
    let unhealthy: Vec<bool> = reported.filter(is_unhealthy).map(|of| of.name.starts_with(LARDERS)).collect();
    match &unhealthy[..] {
        [] => Devices::Well,
        are_larders if are_larders.iter().all(|is_larders| *is_larders) => Devices::UnhealthyToLarder,
        _ => Devices::Unhealthy,
    }
}
