//! From the objects that training jobs depend on, as the API serves them, to the few fields that are kept.

use crate::time::Seconds;
use larder_api::names::{JOB_LABEL, JOB_QUEUE_LABEL, JOB_SERVING_LABEL};
use larder_api::{JobType, Queue, TrainingJob};
use larder_kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::Error;

use crate::jobs::kueue::names::for_kueue;
use crate::jobs::machine::pod::{Devices, PodStage};
use crate::jobs::objects::{ClassObject, JobObject, JobPod, ObjectOfJobs, QueueObject, TypeObject};
use crate::jobs::pod_group::known::known;
use crate::jobs::render::validate_as;
use larder_kube::fields::{ConditionFields, fields, has_condition, label, meta, seconds, whole};
use larder_kube::key::Key;
use larder_kube::kinds::Kind;
use larder_kube::pod::requests::PodResources;

/// Reads an object; `None` if it is of no interest.
pub fn object(kind: Kind, object: DynamicObject) -> Result<Option<ObjectOfJobs>, Error> {
    let meta = meta(&object);
    let generation = object.metadata.generation.unwrap_or_default();
    Ok(match kind {
        Kind::TrainingJob => {
            let job: TrainingJob = whole(object)?;
            let (checked, is_of_others) = (job.check(), job.is_of_others());
            let (labels, annotations) = for_kueue(job.metadata.labels, job.metadata.annotations);
            let status = job.status.unwrap_or_default();
            let object = JobObject { meta, generation, job: checked, is_of_others, labels, annotations, status };
            Some(ObjectOfJobs::Job(Box::new(object)))
        }
        Kind::JobType => {
            let of_type: JobType = whole(object)?;
            let kind = validate_as(&meta.key.name, &of_type.spec);
            let conditions = of_type.status.unwrap_or_default().conditions;
            Some(ObjectOfJobs::Type(Box::new(TypeObject { meta, generation, kind, conditions })))
        }
        Kind::JobQueue => {
            let queue: Queue = whole(object)?;
            let (checked, status) = (queue.spec.check(), queue.status.unwrap_or_default());
            Some(ObjectOfJobs::Queue(Box::new(QueueObject { meta, generation, queue: checked, status })))
        }
        Kind::PriorityClass => {
            #[derive(Default, Deserialize)]
            #[serde(default, rename_all = "camelCase")]
            struct Fields {
                value: i32,
                global_default: bool,
            }
            let Fields { value, global_default } = fields(object.data)?;
            Some(ObjectOfJobs::Class(ClassObject { meta, value, is_default: global_default }))
        }
        Kind::PodGroup => known(meta, &whole(object)?).map(ObjectOfJobs::Group),
        _ => None,
    })
}

/// What the names of resources that larder-devices offers by default begin with.
const LARDERS: &str = "larder.dev/";

/// The part of a pod that its TrainingJob looks at; `None` if it is of none.
pub fn pod(object: &DynamicObject, resources: &PodResources) -> Result<Option<JobPod>, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Fields {
        spec: Spec,
        status: Status,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        node_name: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Status {
        phase: String,
        reason: String,
        conditions: Vec<ConditionFields>,
        container_statuses: Vec<ContainerFields>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct ContainerFields {
        allocated_resources_status: Vec<ResourceFields>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ResourceFields {
        name: String,
        resources: Vec<DeviceFields>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct DeviceFields {
        health: String,
    }
    let Some(job) = label(object, JOB_LABEL) else { return Ok(None) };
    let owners = object.metadata.owner_references.iter().flatten();
    let Some(owner) = owners.into_iter().find(|owner| owner.kind == Kind::TrainingJob.name() && owner.name == job)
    else {
        return Ok(None);
    };
    let Fields { spec, status } = Fields::deserialize(&object.data)?;
    let stage = match status.phase.as_str() {
        "Succeeded" => PodStage::Succeeded,
        "Failed" => PodStage::Failed,
        "Running" if has_condition(&status.conditions, "Ready") => PodStage::Ready,
        _ if spec.node_name.is_empty() => PodStage::Pending,
        _ => PodStage::Bound,
    };
    let disruption = status.conditions.iter().find(|there| there.kind == "DisruptionTarget" && there.status == "True");
    let scheduled = |is: &str| {
        let is_so = |there: &&ConditionFields| there.kind == "PodScheduled" && there.status == is;
        status.conditions.iter().find(is_so)
    };
    let made_at = || object.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
    let reported = status.container_statuses.iter().flat_map(|container| &container.allocated_resources_status);
    let reported: Vec<&ResourceFields> = reported.filter(|status| !status.resources.is_empty()).collect();
    let is_ill = |status: &&&ResourceFields| status.resources.iter().any(|device| device.health == "Unhealthy");
    let ill: Vec<bool> = reported.iter().filter(is_ill).map(|status| status.name.starts_with(LARDERS)).collect();
    let devices = match (&reported[..], &ill[..]) {
        ([], _) if resources.has_devices() => Devices::Unreported,
        ([], _) => Devices::None,
        (_, []) => Devices::Well,
        (_, ours) if ours.iter().all(|is_ours| *is_ours) => Devices::UnhealthyToLarder,
        _ => Devices::Unhealthy,
    };
    Ok(Some(JobPod {
        job: Key::new(object.metadata.namespace.as_deref().unwrap_or_default(), &job),
        uid: owner.uid.clone(),
        queue: label(object, JOB_QUEUE_LABEL).unwrap_or_default(),
        stage,
        bound_at: Seconds(scheduled("True").map_or_else(made_at, |there| seconds(&there.last_transition_time))),
        leaving: object.metadata.deletion_timestamp.as_ref().map(|time| Seconds(time.0.as_second())),
        unscheduled: scheduled("False").map(|there| there.message.clone()).unwrap_or_default(),
        disruption: disruption.map(|there| there.reason.clone()).unwrap_or_default(),
        devices,
        never_ran: status.container_statuses.is_empty(),
        serves: label(object, JOB_SERVING_LABEL).is_some(),
        reason: status.reason,
    }))
}
