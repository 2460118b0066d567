//! Kueue's Workloads, reduced to the fields that decisions need. A missing or unknown field is skipped.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodTemplateSpec, Toleration};
use larder_api::TrainingJob;
use larder_api::names::{
    DATASETS_ANNOTATION, DatasetKey, FIELD_MANAGER, JOB_LABEL, MIN_WARM_ANNOTATION, SYSTEM_NAMESPACE,
    WARM_DEADLINE_ANNOTATION,
};
use larder_kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::{Error, Value};

use crate::kueue::objects::Patience;
use crate::kueue::topology;
use crate::time::Seconds;
use larder_kube::fields::{ConditionFields, annotation, controller, fields, label, meta, readable, seconds};
use larder_kube::key::{Key, Meta};
use larder_kube::pod::amounts::Amounts;
use larder_kube::pod::node_affinity::{Domains, Places};
use larder_kube::pod::requests::requests;
use larder_kube::pod::{DataVolume, data_volumes};
use larder_kube::store::Stored;

/// Annotation of a TrainingJob's Workload: a digest of the spec that Larder wrote. The spec is written again only if
/// the digest changes.
pub(crate) const DIGEST_ANNOTATION: &str = "larder.dev/spec-digest";
/// Annotation of a Workload: the Workload that it replaces, as `NAMESPACE/NAME`. Kueue reads it.
pub(crate) const REPLACES_ANNOTATION: &str = "kueue.x-k8s.io/workload-slice-replacement-for";
/// Label of a Workload: the uid of its job.
pub(crate) const JOB_UID_LABEL: &str = "kueue.x-k8s.io/job-uid";
/// The names of TrainingJobs' Workloads begin with this.
pub(crate) const JOB_PREFIX: &str = "trainingjob-";

/// A queued job that waits, or has waited, for AdmissionChecks, or that is a TrainingJob.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    pub meta: Meta,
    /// When its quota was reserved, in seconds since 1970; `None` without a reservation or after an eviction.
    pub reserved: Option<Seconds>,
    /// The states of all its checks.
    pub checks: Vec<CheckState>,
    /// The clusters that are nominated for it.
    pub nominated: Vec<String>,
    /// MultiKueue has moved it to a cluster.
    pub is_moved: bool,
    /// Its status, unparsed, while clusters may be nominated for it.
    pub status: Option<Box<Value>>,
    pub pod_sets: Vec<PodSet>,
    /// The reduced Workload for its TrainingJob.
    pub of_job: Option<Box<JobWorkload>>,
}

/// The state of an AdmissionCheck.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CheckState {
    /// The name of the AdmissionCheck.
    pub name: String,
    /// `Pending`, `Ready`, `Retry` or `Rejected`.
    pub state: String,
    /// The time of the last transition, in the API's format.
    #[serde(rename = "lastTransitionTime")]
    pub since: String,
    /// The reason that the check waits.
    pub message: String,
    /// Additions of the check to pods.
    pub pod_set_updates: Vec<PodSetUpdate>,
}

/// Additions of a check to the pods of a role.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSetUpdate {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Required node labels.
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Toleration>,
}

/// Identical pods of a Workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSet {
    /// The number of pods.
    pub count: usize,
    /// The claims that they mount.
    pub claims: Vec<String>,
    /// The datasets that their inline volumes and their annotation name, as `NAMESPACE/NAME`.
    pub datasets: Vec<DatasetKey>,
    /// Invalid dataset names.
    pub wrong: Vec<String>,
    /// Why a part of their template, or the topology that Kueue assigned to them, cannot be read.
    pub unread: Option<String>,
    /// The annotations that set how long the pods wait for data.
    pub patience: Patience,
    /// Where they may run, without the constraints of their flavors.
    pub places: Places,
    /// The flavors of their quota.
    pub flavors: Vec<String>,
    /// The requests of one pod.
    pub requests: Amounts,
}

/// The Workload of a job, or another object with the name of such a Workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobWorkload {
    pub meta: Meta,
    /// The TrainingJob that the Workload belongs to; `None` if it belongs to something else.
    pub owner: Option<Owner>,
    /// An object controls the Workload, whether a TrainingJob or another one.
    pub is_controlled: bool,
    pub finalizers: Vec<String>,
    pub generation: i64,
    /// The digest of the spec that Larder wrote last.
    pub digest: String,
    /// The Workload that it replaces, as `NAMESPACE/NAME`.
    pub replaces: Option<String>,
    /// False if a user or Kueue has deactivated the Workload.
    pub active: bool,
    /// The requested pods, by role.
    pub asked: BTreeMap<String, u32>,
    /// The requests of one pod, by role.
    pub requests: BTreeMap<String, Amounts>,
    /// Its conditions, unparsed.
    pub conditions: Vec<Value>,
    /// The ClusterQueue that admitted it; empty for none.
    pub cluster_queue: String,
    /// The admission, by role.
    pub assigned: BTreeMap<String, Assigned>,
    /// The states of its admission checks.
    pub checks: Vec<CheckState>,
    /// The pods that no longer need their quota, by role.
    pub reclaimable: BTreeMap<String, u32>,
    /// The Workload is not admitted again before this time.
    pub requeue_at: Option<Seconds>,
    /// How long it was admitted in total before the current admission, in seconds.
    pub past_seconds: i64,
}

/// The TrainingJob that a Workload belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub name: String,
    pub uid: String,
}

/// The admission of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Assigned {
    name: String,
    /// The number of admitted pods; `None`: all requested pods.
    pub count: Option<u32>,
    /// The flavor of each resource.
    pub flavors: BTreeMap<String, String>,
    /// The topology domains that Kueue has chosen. Kueue also assigns each pod to one of them.
    pub topology_assignment: Option<Value>,
    /// Set while Kueue has not chosen the domains yet.
    delayed_topology_request: Option<String>,
}

impl Assigned {
    /// True if Kueue chooses the nodes.
    pub fn is_placed_by_kueue(&self) -> bool {
        self.topology_assignment.is_some() || self.delayed_topology_request.is_some()
    }
}

impl JobWorkload {
    /// True if the Workload belongs to the job with this uid.
    pub fn is_of(&self, uid: &str) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.uid == uid)
    }

    /// The condition of a type.
    pub fn condition(&self, kind: &str) -> Option<ConditionFields> {
        condition(&self.conditions, kind)
    }

    /// The condition of a type, if it is true.
    pub fn holding(&self, kind: &str) -> Option<ConditionFields> {
        holding(&self.conditions, kind)
    }
}

/// The condition of a type. Conditions that cannot be read are skipped.
fn condition(conditions: &[Value], kind: &str) -> Option<ConditionFields> {
    let all = conditions.iter().filter_map(|condition| ConditionFields::deserialize(condition).ok());
    all.into_iter().find(|condition| condition.kind == kind)
}

fn holding(conditions: &[Value], kind: &str) -> Option<ConditionFields> {
    condition(conditions, kind).filter(|condition| condition.status == "True")
}

/// When a condition last changed its status.
pub fn since(condition: &ConditionFields) -> Seconds {
    Seconds(seconds(&condition.last_transition_time))
}

impl Stored for Workload {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    /// Claims and datasets, as for pods.
    fn belongs_to(&self) -> Vec<Key> {
        let namespace = &self.meta.key.namespace;
        let claims = self.pod_sets.iter().flat_map(|set| &set.claims).map(|claim| Key::new(namespace, claim));
        let datasets = self.pod_sets.iter().flat_map(|set| &set.datasets);
        claims.chain(datasets.map(|dataset| Key::new(&dataset.namespace, &dataset.name))).collect()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields {
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    pod_sets: Vec<PodSetFields>,
    active: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodSetFields {
    name: String,
    count: u32,
    template: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    conditions: Vec<Value>,
    admission: Admission,
    admission_checks: Vec<CheckState>,
    nominated_cluster_names: Vec<String>,
    cluster_name: Option<String>,
    reclaimable_pods: Vec<Reclaimable>,
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
#[serde(default)]
struct Reclaimable {
    name: String,
    count: u32,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Requeue {
    requeue_at: Option<String>,
}

/// The TrainingJob that owns a Workload. If nothing owns it any more, the job that its labels name: the Workload holds
/// quota although its job may be gone (`kubectl delete --cascade=orphan`).
fn owner(object: &DynamicObject) -> Option<Owner> {
    if let Some(owner) = controller::<TrainingJob>(object) {
        return Some(Owner { name: owner.name.clone(), uid: owner.uid.clone() });
    }
    if is_controlled(object) || label(object, "app.kubernetes.io/managed-by") != Some(FIELD_MANAGER) {
        return None;
    }
    Some(Owner { name: label(object, JOB_LABEL)?.to_owned(), uid: label(object, JOB_UID_LABEL)?.to_owned() })
}

fn is_controlled(object: &DynamicObject) -> bool {
    object.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true))
}

/// True for the status of a Workload that has quota, waits for checks, and is in no other cluster.
fn may_be_dispatched(status: &Value) -> bool {
    !status["admission"].is_null() && !status["admissionChecks"].is_null() && status["clusterName"].is_null()
}

/// Reads a Workload. Skips Workloads without checks and finished Workloads, unless they belong to TrainingJobs.
pub(crate) fn workload(object: DynamicObject) -> Result<Option<Workload>, Error> {
    let meta = meta(&object);
    let (owner, is_controlled) = (owner(&object), is_controlled(&object));
    let is_of_job = owner.is_some() || meta.key.name.starts_with(JOB_PREFIX);
    let digest = annotation(&object, DIGEST_ANNOTATION).unwrap_or_default().to_owned();
    let replaces = annotation(&object, REPLACES_ANNOTATION).map(str::to_owned);
    let unparsed = object.data.get("status").filter(|status| may_be_dispatched(status)).cloned();
    let Fields { spec, status } = fields(object.data)?;
    let is_finished = holding(&status.conditions, "Finished").is_some();
    if !is_of_job && (status.admission_checks.is_empty() || is_finished) {
        return Ok(None);
    }
    let has_left = is_finished || holding(&status.conditions, "Evicted").is_some() || spec.active == Some(false);
    let reserved = holding(&status.conditions, "QuotaReserved").filter(|_| !has_left && !meta.deleting);
    let Admission { cluster_queue, pod_set_assignments } = status.admission;
    let assigned: BTreeMap<String, Assigned> =
        pod_set_assignments.into_iter().map(|assigned| (assigned.name.clone(), assigned)).collect();
    let pod_set = |set: &PodSetFields| pod_set(&meta.key.namespace, set, assigned.get(&set.name));
    let pod_sets: Vec<PodSet> = spec.pod_sets.iter().map(pod_set).collect();
    let of_job = is_of_job.then(|| JobWorkload {
        meta: meta.clone(),
        owner,
        is_controlled,
        finalizers: object.metadata.finalizers.unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or_default(),
        digest,
        replaces,
        active: spec.active != Some(false),
        asked: spec.pod_sets.iter().map(|set| (set.name.clone(), set.count)).collect(),
        requests: spec
            .pod_sets
            .iter()
            .zip(&pod_sets)
            .map(|(set, of)| (set.name.clone(), of.requests.clone()))
            .collect(),
        conditions: status.conditions.clone(),
        cluster_queue,
        assigned: assigned.clone(),
        checks: status.admission_checks.clone(),
        reclaimable: status.reclaimable_pods.into_iter().map(|pods| (pods.name, pods.count)).collect(),
        requeue_at: status.requeue_state.requeue_at.as_deref().map(seconds).map(Seconds),
        past_seconds: status
            .accumulated_past_exexcution_time_seconds
            .max(status.accumulated_past_execution_time_seconds),
    });
    Ok(Some(Workload {
        reserved: reserved.as_ref().map(since),
        checks: status.admission_checks,
        nominated: status.nominated_cluster_names,
        is_moved: status.cluster_name.is_some_and(|cluster| !cluster.is_empty()),
        status: unparsed.map(Box::new),
        pod_sets,
        of_job: of_job.map(Box::new),
        meta,
    }))
}

fn pod_set(namespace: &str, set: &PodSetFields, assigned: Option<&Assigned>) -> PodSet {
    let (template, error): (Option<PodTemplateSpec>, _) = readable(&set.template);
    let template = template.unwrap_or_default();
    let mut annotations = template.metadata.and_then(|metadata| metadata.annotations).unwrap_or_default();
    let spec = template.spec.unwrap_or_default();
    // Without pods there are no domains.
    let with_pods = assigned.filter(|assigned| assigned.count != Some(0));
    let assignment = with_pods.and_then(|assigned| assigned.topology_assignment.as_ref());
    // The nodes of a topology that cannot be read are unknown, so none is warmed.
    let (domains, odd_topology) = match assignment.map(topology::domains).transpose() {
        Ok(domains) => (domains, None),
        Err(error) => (Some(Domains::default()), Some(error)),
    };
    let mut found = PodSet {
        // With partial admission, fewer pods are admitted than requested.
        count: assigned.and_then(|assigned| assigned.count).unwrap_or(set.count) as usize,
        patience: Patience {
            min_warm: annotations.remove(MIN_WARM_ANNOTATION),
            deadline: annotations.remove(WARM_DEADLINE_ANNOTATION),
        },
        places: Places { domains, ..Places::of(&spec) },
        flavors: assigned.map(|assigned| assigned.flavors.values().cloned().collect()).unwrap_or_default(),
        requests: requests(&spec),
        unread: error.map(|error| format!("the template of the pod set {:?}: {error}", set.name)).or_else(|| {
            Some(format!("the topology that Kueue assigned to the pod set {:?}: {}", set.name, odd_topology?))
        }),
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
