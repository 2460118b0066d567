//! From Kueue's objects to the few fields that are kept. A field that is not understood is left out: an object of a
//! newer version must not stop a queue.

use std::collections::BTreeMap;

use crate::time::Seconds;
use larder_api::names::{
    ADMISSION_CONTROLLER, CSI_DRIVER, DATASETS_ANNOTATION, DatasetKey, MIN_WARM_ANNOTATION, SYSTEM_NAMESPACE,
    WARM_DEADLINE_ANNOTATION,
};
use larder_kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::{Error, Value};

use crate::jobs::kueue::read as job_workload;
use crate::kueue::objects::{Check, CheckState, Class, Flavor, KueueObject, Patience, PodSet, Workload};
use larder_kube::fields::{ConditionFields, annotation, fields, has_condition, meta, seconds};
use larder_kube::kinds::KueueKind;
use larder_kube::pod::node_affinity::{Places, Term, Toleration};

/// Reads an object; `None` if it is of no interest.
pub fn object(kind: KueueKind, object: DynamicObject) -> Result<Option<KueueObject>, Error> {
    Ok(match kind {
        KueueKind::Workload => workload(object)?.map(Box::new).map(KueueObject::Workload),
        KueueKind::AdmissionCheck => check(object)?.map(KueueObject::Check),
        KueueKind::ResourceFlavor => Some(KueueObject::Flavor(flavor(object)?)),
        KueueKind::PriorityClass => Some(KueueObject::Class(class(&object))),
    })
}

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
    template: TemplateFields,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TemplateFields {
    metadata: TemplateMetadata,
    spec: PodFields,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TemplateMetadata {
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodFields {
    volumes: Vec<Value>,
    node_selector: BTreeMap<String, String>,
    affinity: Value,
    tolerations: Vec<Toleration>,
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
fn workload(object: DynamicObject) -> Result<Option<Workload>, Error> {
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
    let PodFields { volumes, node_selector, affinity, tolerations } = set.template.spec;
    let mut annotations = set.template.metadata.annotations;
    let terms = affinity.pointer("/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
    let terms: Vec<Term> = terms.and_then(|terms| Vec::deserialize(terms).ok()).unwrap_or_default();
    let mut found = PodSet {
        // With partial admission there are fewer than asked for.
        count: assignment.count.unwrap_or(set.count),
        patience: Patience {
            min_warm: annotations.remove(MIN_WARM_ANNOTATION),
            deadline: annotations.remove(WARM_DEADLINE_ANNOTATION),
        },
        places: Places { labels: node_selector, terms, domains: domains(&assignment.topology_assignment), tolerations },
        flavors: assignment.flavors.into_values().collect(),
        ..PodSet::default()
    };
    found.flavors.sort();
    found.flavors.dedup();
    let text = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    for volume in &volumes {
        found.claims.extend(text(volume, "/persistentVolumeClaim/claimName"));
        if text(volume, "/csi/driver").as_deref() == Some(CSI_DRIVER) {
            let dataset = text(volume, "/csi/volumeAttributes/dataset");
            dataset.iter().for_each(|dataset| add(&mut found, SYSTEM_NAMESPACE, dataset));
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
fn check(object: DynamicObject) -> Result<Option<Check>, Error> {
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
        min_warm: annotation(&object, MIN_WARM_ANNOTATION),
        deadline: annotation(&object, WARM_DEADLINE_ANNOTATION),
    };
    let Fields { spec, status } = fields(object.data)?;
    if spec.controller_name != ADMISSION_CONTROLLER {
        return Ok(None);
    }
    let active = has_condition(&status.conditions, "Active");
    Ok(Some(Check { meta, generation, active, patience }))
}

fn flavor(object: DynamicObject) -> Result<Flavor, Error> {
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
    Ok(Flavor { meta, labels: spec.node_labels, tolerations: spec.tolerations })
}

fn class(object: &DynamicObject) -> Class {
    let meta = meta(object);
    let value = object.data.get("value").and_then(Value::as_i64).and_then(|value| i32::try_from(value).ok());
    Class { meta, value: value.unwrap_or_default() }
}
