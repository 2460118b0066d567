//! Reads the Workload of a job as the API sends it.

use larder_api::TrainingJob;
use larder_kube::Resource;
use larder_kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::{Error, Value};

use super::names::{DIGEST_ANNOTATION, is_of_job};
use super::workload::{Assigned, CheckState, JobWorkload, Owner};
use crate::time::Seconds;
use larder_kube::fields::{annotation, fields, meta, seconds};

/// Reads a Workload; `None` if no TrainingJob has anything to do with it.
pub fn workload(object: &DynamicObject) -> Result<Option<JobWorkload>, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Fields {
        spec: Spec,
        status: Status,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        pod_sets: Vec<Pods>,
        active: Option<bool>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Pods {
        name: String,
        count: u32,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Status {
        conditions: Vec<Value>,
        admission: Admission,
        admission_checks: Vec<CheckState>,
        reclaimable_pods: Vec<Pods>,
        requeue_state: Requeue,
        accumulated_past_exexcution_time_seconds: i64,
        accumulated_past_execution_time_seconds: i64,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Admission {
        cluster_queue: String,
        pod_set_assignments: Vec<Assigned>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Requeue {
        requeue_at: Option<String>,
    }
    let meta = meta(object);
    let owner = owner(object);
    if owner.is_none() && !is_of_job(&meta.key.name) {
        return Ok(None);
    }
    let digest = annotation(object, DIGEST_ANNOTATION).unwrap_or_default().to_owned();
    let finalizers = object.metadata.finalizers.clone().unwrap_or_default();
    let generation = object.metadata.generation.unwrap_or_default();
    let Fields { spec, status } = fields(object.data.clone())?;
    let counts = |pods: Vec<Pods>| pods.into_iter().map(|pods| (pods.name, pods.count)).collect();
    let Admission { cluster_queue, pod_set_assignments } = status.admission;
    Ok(Some(JobWorkload {
        meta,
        owner,
        finalizers,
        generation,
        digest,
        active: spec.active != Some(false),
        asked: counts(spec.pod_sets),
        conditions: status.conditions,
        cluster_queue,
        assigned: pod_set_assignments.into_iter().map(|assigned| (assigned.name.clone(), assigned)).collect(),
        checks: status.admission_checks,
        reclaimable: counts(status.reclaimable_pods),
        requeue_at: status.requeue_state.requeue_at.as_deref().map(seconds).map(Seconds),
        past_seconds: status
            .accumulated_past_exexcution_time_seconds
            .max(status.accumulated_past_execution_time_seconds),
    }))
}

fn owner(object: &DynamicObject) -> Option<Owner> {
    let owners = object.metadata.owner_references.iter().flatten();
    let is_job = |api_version: &str, kind: &str| {
        api_version.split('/').next() == Some(&*TrainingJob::group(&())) && kind == TrainingJob::kind(&())
    };
    let mut jobs = owners.filter(|owner| owner.controller == Some(true) && is_job(&owner.api_version, &owner.kind));
    jobs.next().map(|owner| Owner { name: owner.name.clone(), uid: owner.uid.clone() })
}
