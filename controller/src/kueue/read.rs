//! From Kueue's objects to the few fields that are kept. A field that is not understood is left out: an object of a
//! newer version must not stop a queue.

use std::collections::BTreeMap;

use crate::time::Seconds;
use k8s_openapi::api::core::v1::{PodTemplateSpec, Toleration};
use larder_api::names::{
    ADMISSION_CONTROLLER, DATASETS_ANNOTATION, DatasetKey, MIN_WARM_ANNOTATION, SYSTEM_NAMESPACE,
    WARM_DEADLINE_ANNOTATION,
};
use larder_kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::{Error, Value};

use crate::jobs::kueue::read as job_workload;
use crate::kueue::objects::{Check, CheckState, Class, Flavor, Patience, PodSet, Workload};
use larder_kube::fields::{ConditionFields, annotation, fields, has_condition, meta, seconds};
use larder_kube::pod::node_affinity::Places;
use larder_kube::pod::{DataVolume, data_volumes};

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WorkloadFields {
    spec: WorkloadSpec,
    status: WorkloadStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WorkloadSpec {
    pod_sets: Vec<PodSetFields>,
    active: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodSetFields {
    name: String,
    count: usize,
    template: PodTemplateSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WorkloadStatus {
    conditions: Vec<ConditionFields>,
    admission_checks: Vec<CheckFields>,
    admission: AdmissionFields,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CheckFields {
    name: String,
    state: String,
    last_transition_time: String,
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AdmissionFields {
    pod_set_assignments: Vec<AssignmentFields>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AssignmentFields {
    name: String,
    flavors: BTreeMap<String, String>,
    count: Option<usize>,
    topology_assignment: Value,
}

/// Workloads without checks, and finished ones, are of no interest, unless they are those of TrainingJobs.
pub(crate) fn workload(object: DynamicObject) -> Result<Option<Workload>, Error> {
    let meta = meta(&object);
    let of_job = job_workload::workload(&object)?.map(Box::new);
    let WorkloadFields { spec, status } = fields(object.data)?;
    let find = |kind: &str| status.conditions.iter().find(|there| there.kind == kind && there.status == "True");
    let is_finished = find("Finished").is_some();
    if of_job.is_none() && (status.admission_checks.is_empty() || is_finished) {
        return Ok(None);
    }
    let leaves = is_finished || find("Evicted").is_some() || spec.active == Some(false) || meta.deleting;
    let reserved = find("QuotaReserved").filter(|_| !leaves);
    let reserved = reserved.map(|reserved| Seconds(seconds(&reserved.last_transition_time)));
    let checks = status.admission_checks.into_iter().map(|check| CheckState {
        name: check.name,
        state: check.state,
        since: check.last_transition_time,
        message: check.message,
    });
    let mut assignments: BTreeMap<String, AssignmentFields> =
        status.admission.pod_set_assignments.into_iter().map(|there| (there.name.clone(), there)).collect();
    let pod_sets = spec.pod_sets.into_iter().map(|set| {
        let assignment = assignments.remove(&set.name).unwrap_or_default();
        pod_set(&meta.key.namespace, set, assignment)
    });
    Ok(Some(Workload { reserved, checks: checks.collect(), pod_sets: pod_sets.collect(), meta, of_job }))
}

fn pod_set(namespace: &str, set: PodSetFields, assignment: AssignmentFields) -> PodSet {
    let mut annotations = set.template.metadata.and_then(|metadata| metadata.annotations).unwrap_or_default();
    let spec = set.template.spec.unwrap_or_default();
    let mut found = PodSet {
        // With partial admission there are fewer than asked for.
        count: assignment.count.unwrap_or(set.count),
        patience: Patience {
            min_warm: annotations.remove(MIN_WARM_ANNOTATION),
            deadline: annotations.remove(WARM_DEADLINE_ANNOTATION),
        },
        places: Places { domains: domains(&assignment.topology_assignment), ..Places::of(&spec) },
        flavors: assignment.flavors.into_values().collect(),
        ..PodSet::default()
    };
    found.flavors.sort();
    found.flavors.dedup();
    for volume in data_volumes(&spec) {
        match volume {
            DataVolume::Claim(claim) => found.claims.push(claim.to_owned()),
            DataVolume::Inline(dataset) => add(&mut found, SYSTEM_NAMESPACE, dataset),
        }
    }
    let named = annotations.remove(DATASETS_ANNOTATION).unwrap_or_default();
    for name in named.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        add(&mut found, namespace, name);
    }
    found
}

fn add(set: &mut PodSet, namespace: &str, name: &str) {
    match DatasetKey::within(namespace, name) {
        Ok(dataset) => set.datasets.push(dataset),
        Err(_) => set.wrong.push(name.chars().take(64).collect()),
    }
}

/// The labels of each domain that Kueue assigned.
fn domains(assignment: &Value) -> Vec<BTreeMap<String, String>> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Assignment {
        levels: Vec<String>,
        domains: Vec<Domain>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Domain {
        values: Vec<String>,
    }
    let Ok(Assignment { levels, domains }) = Assignment::deserialize(assignment) else { return Vec::new() };
    domains.into_iter().map(|domain| levels.iter().cloned().zip(domain.values).collect()).collect()
}

/// Only those of Larder's.
pub(crate) fn check(object: DynamicObject) -> Result<Option<Check>, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Fields {
        spec: Spec,
        status: Status,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        controller_name: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        conditions: Vec<ConditionFields>,
    }
    let meta = meta(&object);
    let generation = object.metadata.generation.unwrap_or_default();
    let patience = Patience {
        min_warm: annotation(&object, MIN_WARM_ANNOTATION).map(str::to_owned),
        deadline: annotation(&object, WARM_DEADLINE_ANNOTATION).map(str::to_owned),
    };
    let Fields { spec, status } = fields(object.data)?;
    if spec.controller_name != ADMISSION_CONTROLLER {
        return Ok(None);
    }
    let active = has_condition(&status.conditions, "Active");
    Ok(Some(Check { meta, generation, active, patience }))
}

pub(crate) fn flavor(object: DynamicObject) -> Result<Option<Flavor>, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Fields {
        spec: Spec,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Spec {
        node_labels: BTreeMap<String, String>,
        tolerations: Vec<Toleration>,
    }
    let meta = meta(&object);
    let Fields { spec } = fields(object.data)?;
    Ok(Some(Flavor { meta, labels: spec.node_labels, tolerations: spec.tolerations }))
}

pub(crate) fn class(object: DynamicObject) -> Result<Option<Class>, Error> {
    let meta = meta(&object);
    let value = object.data.get("value").and_then(Value::as_i64).and_then(|value| i32::try_from(value).ok());
    Ok(Some(Class { meta, value: value.unwrap_or_default() }))
}
