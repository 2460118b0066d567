//! Reduces the objects that TrainingJobs depend on from their API form to the fields that are kept.

use k8s_openapi::api::scheduling::v1::PriorityClass;
use larder_api::{JobType, Queue, TrainingJob};
use larder_kube::api::DynamicObject;
use serde_json::Error;

use crate::jobs::kueue::names::for_kueue;
use crate::jobs::objects::{ClassObject, JobObject, QueueObject, TypeObject};
use crate::jobs::pod_group::known::{self, KnownGroup};
use crate::jobs::render::validate_as;
use larder_kube::fields::{meta, whole};

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

/// Reads a PodGroup. Groups without a job label are skipped.
pub(crate) fn pod_group(object: DynamicObject) -> Result<Option<KnownGroup>, Error> {
    Ok(known::known(meta(&object), &whole(object)?))
}
