//! The Workload that a job should have.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use larder_api::names::{JOB_ATTEMPT_LABEL, JOB_INDEX_LABEL, JOB_SERVING_LABEL};
use larder_api::training_job::checked::CheckedRole;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::names::{
    ELASTIC_ANNOTATION, FINALIZER, MAX_SECONDS_LABEL, POD_SETS_MAX, PROVISIONING_PREFIX, SLICE_ANNOTATION,
    TOPOLOGY_REQUESTS, hex, is_elastic, replacement, topology_annotation, workload,
};
use super::priority::{Classes, NoClass, priority};
use crate::jobs::render::{Rendered, metadata};
use crate::kueue::workload::{DIGEST_ANNOTATION, JOB_UID_LABEL, JobWorkload, REPLACES_ANNOTATION};
use crate::write::{Change, Write};
use larder_kube::key::Key;
use larder_kube::kinds::{Kind, KueueKind, KueueVersion};

/// A job that should wait in a queue of Kueue.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    pub rendered: Rendered<'a>,
    pub queue: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    pub annotations: &'a BTreeMap<String, String>,
    /// One pod per role, in the order of the roles, without a place: index 0, attempt 0.
    pub pods: &'a [Pod],
    /// The priority classes of the cluster.
    pub classes: &'a Classes,
    /// The Workload of the elastic job that the new one replaces; `None` for its first Workload.
    pub replaces: Option<&'a JobWorkload>,
}

/// Why a job can have no Workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoWorkload {
    NoType(String),
    /// Kueue accepts no job with this many roles.
    TooManyRoles(usize),
    /// The label with the maximum execution time is not a positive number.
    MaxSeconds(String),
    /// The job names a priority class that does not exist.
    NoClass(NoClass),
}

impl fmt::Display for NoWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoType(kind) => write!(f, "there is no JobType {kind}"),
            Self::TooManyRoles(roles) => {
                write!(f, "Kueue takes jobs of at most {POD_SETS_MAX} roles; this one has {roles}")
            }
            Self::MaxSeconds(text) => write!(f, "the label {MAX_SECONDS_LABEL} is not a number of seconds: {text:?}"),
            Self::NoClass(class) => class.fmt(f),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    key: (String, String),
    metadata: Value,
    spec: Value,
    digest: String,
    version: KueueVersion,
}

impl Wanted {
    /// Builds the Workload of a job.
    pub fn of(asking: &Asking<'_>, version: KueueVersion) -> Result<Self, NoWorkload> {
        let Asking { rendered, labels, .. } = asking;
        let roles = &rendered.job.roles;
        if roles.len() > POD_SETS_MAX {
            return Err(NoWorkload::TooManyRoles(roles.len()));
        }
        let root = workload(rendered.name, rendered.uid);
        let elastic = is_elastic(asking.annotations);
        // Kueue admits no elastic job in part. It starts with its minimum and grows.
        let flexible = if elastic { None } else { flexible(roles) };
        let count = |role: &CheckedRole| {
            if elastic && asking.replaces.is_none() { role.min.max(1).min(role.replicas) } else { role.replicas }
        };
        let pod_sets: Vec<Value> = roles
            .iter()
            .zip(asking.pods)
            .map(|(role, pod)| pod_set(role, count(role), flexible == Some(role.name.as_str()), pod))
            .collect();
        let mut spec = json!({"queueName": asking.queue, "podSets": pod_sets, "maximumExecutionTimeSeconds": null});
        if let Some(text) = labels.get(MAX_SECONDS_LABEL) {
            let seconds = text.parse::<i32>().ok().filter(|seconds| *seconds > 0);
            spec["maximumExecutionTimeSeconds"] = seconds.ok_or_else(|| NoWorkload::MaxSeconds(text.clone()))?.into();
        }
        let priority = priority(labels, asking.pods, asking.classes).map_err(NoWorkload::NoClass)?;
        extend(&mut spec, priority.fields(version));
        let digest = hex(&Sha256::digest(spec.to_string())[..8]);
        let name = asking.replaces.map_or_else(|| root.clone(), |replaced| replacement(&root, &replaced.meta.uid));
        let mut metadata = metadata(rendered, name.clone());
        metadata.labels.get_or_insert_default().insert(JOB_UID_LABEL.to_owned(), rendered.uid.to_owned());
        metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        let parameters = asking.annotations.iter().filter(|(name, _)| name.starts_with(PROVISIONING_PREFIX));
        let annotations = parameters.map(|(name, value)| (name.clone(), value.clone()));
        let mut annotations: BTreeMap<String, String> =
            annotations.chain([(DIGEST_ANNOTATION.to_owned(), digest.clone())]).collect();
        if elastic {
            annotations.insert(ELASTIC_ANNOTATION.to_owned(), "true".to_owned());
            annotations.insert(SLICE_ANNOTATION.to_owned(), root);
        }
        if let Some(replaced) = asking.replaces {
            let Key { namespace, name } = &replaced.meta.key;
            annotations.insert(REPLACES_ANNOTATION.to_owned(), format!("{namespace}/{name}"));
        }
        metadata.annotations = Some(annotations);
        let metadata = serde_json::to_value(metadata).expect("metadata is JSON");
        Ok(Self { key: (rendered.namespace.to_owned(), name), metadata, spec, digest, version })
    }

    /// The write that creates the Workload.
    pub fn create(&self) -> Write {
        let mut spec = self.spec.clone();
        spec.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        self.write(&self.key.1, Change::Create(json!({"metadata": self.metadata, "spec": spec})))
    }

    /// The write that updates a Workload without quota; `None` if it is up to date. With quota, the pods and the queue
    /// of a Workload are fixed. Only Larder's digest is compared, so fields that the API server and Kueue add make no
    /// difference.
    pub fn update(&self, there: &JobWorkload) -> Option<Write> {
        if there.digest == self.digest || there.holding("QuotaReserved").is_some() {
            return None;
        }
        // The resource version makes the write fail if Kueue has reserved quota in the meantime.
        let version = there.meta.version.to_string();
        let mut annotations = self.metadata["annotations"].clone();
        if there.replaces.is_some() && annotations[REPLACES_ANNOTATION].is_null() {
            // After an eviction, nothing is left that it would replace.
            annotations[REPLACES_ANNOTATION] = Value::Null;
        }
        let metadata = json!({"resourceVersion": version, "annotations": annotations});
        Some(self.write(&there.meta.key.name, Change::Merge(json!({"metadata": metadata, "spec": self.spec}))))
    }

    fn write(&self, name: &str, change: Change) -> Write {
        let (namespace, _) = &self.key;
        Write::new(Kind::Kueue(KueueKind::Workload, self.version), namespace, name, change)
    }
}

/// The role that may be admitted partially. Kueue allows one role, so it is the role with the most pods above the
/// minimum.
fn flexible(roles: &[CheckedRole]) -> Option<&str> {
    let surplus = |role: &CheckedRole| role.replicas.saturating_sub(role.min);
    // Of several, the first role.
    let most = roles.iter().rev().max_by_key(|role| surplus(role))?;
    (surplus(most) > 0).then_some(most.name.as_str())
}

fn pod_set(role: &CheckedRole, count: u32, is_flexible: bool, pod: &Pod) -> Value {
    let mut metadata = pod.metadata.clone();
    let labels = metadata.labels.get_or_insert_default();
    labels.retain(|name, _| ![JOB_INDEX_LABEL, JOB_ATTEMPT_LABEL, JOB_SERVING_LABEL].contains(&name.as_str()));
    (metadata.name, metadata.namespace, metadata.owner_references) = (None, None, None);
    let topology = topology(metadata.annotations.as_ref());
    let mut spec = pod.spec.clone();
    if let Some(spec) = &mut spec {
        // These fields differ from pod to pod, and Kueue does not read them.
        spec.hostname = None;
        spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()).for_each(|one| one.env = None);
    }
    let template = PodTemplateSpec { metadata: Some(metadata), spec };
    let mut set = json!({"name": role.name, "count": count, "template": template});
    if is_flexible {
        set["minCount"] = role.min.max(1).into();
    }
    if let Some(topology) = topology {
        set["topologyRequest"] = topology;
    }
    set
}

/// The topology request of a role's pods, from Kueue's own annotations.
fn topology(annotations: Option<&BTreeMap<String, String>>) -> Option<Value> {
    TOPOLOGY_REQUESTS.iter().find_map(|request| {
        let text = annotations?.get(&topology_annotation(request))?;
        Some(if *request == "unconstrained" { json!({*request: text == "true"}) } else { json!({*request: text}) })
    })
}

fn extend(object: &mut Value, fields: Value) {
    if let (Value::Object(object), Value::Object(fields)) = (object, fields) {
        object.extend(fields);
    }
}
