//! Reduces the objects that TrainingJobs depend on from their API form to the fields that are kept.

use std::io::Write;

use k8s_openapi::api::scheduling::v1::PriorityClass;
use larder_api::names::MULTIKUEUE;
use larder_api::training_job::checked::{is_others, too_large};
use larder_api::training_job::is_newer_record;
use larder_api::{JobType, Queue, TrainingJob, TrainingJobStatus};
use larder_kube::api::DynamicObject;
use serde::de::IgnoredAny;
use serde_json::{Error, Value, json};
use tracing::warn;

use crate::clusters::objects::home;
use crate::jobs::kueue::names::for_kueue;
use crate::jobs::objects::{ClassObject, JobObject, QueueObject, TypeObject};
use crate::jobs::pod_group::known::{self, KnownGroup};
use crate::jobs::render::validate_as;
use larder_kube::fields::{Parts, controller, meta, readable, whole};
use larder_kube::key::Key;

pub(crate) fn training_job(mut object: DynamicObject) -> Result<Option<JobObject>, Error> {
    let meta = meta(&object);
    let trial_of =
        controller::<TrainingJob>(&object).map(|sweep| (Key::new(&meta.key.namespace, &sweep.name), sweep.uid.clone()));
    let text = |pointer: &str| object.data.pointer(pointer).and_then(Value::as_str);
    let (is_of_newer, managed_by) = (text("/status/record").is_some_and(is_newer_record), text("/spec/managedBy"));
    let (is_of_others, is_of_multikueue) = (is_others(managed_by), managed_by == Some(MULTIKUEUE));
    if is_of_newer && let Some(status) = object.data.get_mut("status") {
        // The rest of its status may have an unknown form, too.
        *status = if is_of_multikueue {
            json!(readable::<TrainingJobStatus>(status).0)
        } else {
            warn!(job = %meta.key, "leave alone a job that a newer version of larder-controller has run");
            Value::Null
        };
    }
    let (home, finalizers) = (home(&object), object.metadata.finalizers.clone().unwrap_or_default());
    let spec = object.data.get("spec").unwrap_or(&Value::Null);
    if let Some(error) = too_large(bytes(spec)) {
        let generation = object.metadata.generation.unwrap_or_default();
        let metadata = object.metadata;
        let (labels, annotations) = for_kueue(is_of_multikueue, metadata.labels, metadata.annotations);
        let status = Parts::<IgnoredAny, TrainingJobStatus>::read(object.data)?.status.unwrap_or_default();
        return Ok(Some(JobObject {
            meta,
            generation,
            job: Err(error),
            is_of_others,
            is_of_multikueue,
            is_of_newer,
            home,
            finalizers,
            labels,
            annotations,
            status,
            trial_spec: None,
            trial_of,
        }));
    }
    let trial_spec = trial_spec(spec);
    let job: TrainingJob = whole(object)?;
    let checked = job.check();
    let generation = job.metadata.generation.unwrap_or_default();
    let (labels, annotations) = for_kueue(is_of_multikueue, job.metadata.labels, job.metadata.annotations);
    let status = job.status.unwrap_or_default();
    Ok(Some(JobObject {
        meta,
        generation,
        job: checked,
        is_of_others,
        is_of_multikueue,
        is_of_newer,
        home,
        finalizers,
        labels,
        annotations,
        status,
        trial_spec,
        trial_of,
    }))
}

/// The spec that all trials of a sweep have; `None` if the job is no sweep. A trial stays until the sweep has counted
/// it, so it has no time of its own.
fn trial_spec(spec: &Value) -> Option<Value> {
    let mut fields =
        spec.as_object().filter(|fields| fields.get("sweep").is_some_and(|sweep| !sweep.is_null()))?.clone();
    for field in ["sweep", "suspend", "ttlAfterFinished"] {
        fields.remove(field);
    }
    Some(Value::Object(fields))
}

/// The length of a value in JSON.
fn bytes(value: &Value) -> usize {
    #[derive(Default)]
    struct Length(usize);
    impl Write for Length {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut length = Length::default();
    serde_json::to_writer(&mut length, value).map_or(usize::MAX, |()| length.0)
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
