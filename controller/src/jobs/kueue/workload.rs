//! The Workload of a job, cut to the fields that decisions need. A field that is not there, or not understood, is left out.

use crate::time::Seconds;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use larder_api::TrainingJob;
use larder_kube::Resource;
use larder_kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::{Error, Value};

use super::names::{DIGEST_ANNOTATION, is_of_job};
use larder_kube::fields::{annotation, fields, meta, seconds};
use larder_kube::key::Meta;

/// The Workload of a job, or one that has the name of such a Workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobWorkload {
    /// Its name and version.
    pub meta: Meta,
    /// The TrainingJob that it belongs to; `None` for somebody else's.
    pub owner: Option<Owner>,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// Its generation.
    pub generation: i64,
    /// The digest of the spec that Larder wrote last.
    pub digest: String,
    /// False if somebody has deactivated it, or Kueue has.
    pub active: bool,
    /// The pods that are asked for, by role.
    pub asked: BTreeMap<String, u32>,
    /// Its conditions, as they are written.
    pub conditions: Vec<Value>,
    /// The ClusterQueue that has admitted it; empty for none.
    pub cluster_queue: String,
    /// What was admitted, by role.
    pub assigned: BTreeMap<String, Assigned>,
    /// The states of its checks.
    pub checks: Vec<CheckState>,
    /// The pods that no longer need their quota, by role.
    pub reclaimable: BTreeMap<String, u32>,
    /// It is not admitted again before.
    pub requeue_at: Option<Seconds>,
    /// How long it was admitted before the last admission.
    pub past_seconds: i64,
}

/// The TrainingJob of a Workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// The admission of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Assigned {
    name: String,
    /// How many pods; `None`: all that were asked for.
    pub count: Option<u32>,
    /// The flavor of each resource.
    pub flavors: BTreeMap<String, String>,
    /// The topology domains that Kueue has chosen; Kueue itself tells each pod its own.
    pub topology_assignment: Option<Value>,
    /// Kueue has yet to choose them.
    delayed_topology_request: Option<String>,
}

impl Assigned {
    /// True if Kueue chooses the nodes.
    pub fn is_placed_by_kueue(&self) -> bool {
        self.topology_assignment.is_some() || self.delayed_topology_request.is_some()
    }
}

/// The state of a check.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CheckState {
    /// The AdmissionCheck.
    pub name: String,
    /// `Pending`, `Ready`, `Retry` or `Rejected`.
    pub state: String,
    /// What it waits for.
    pub message: String,
    /// What it adds to pods.
    pub pod_set_updates: Vec<PodSetUpdate>,
}

/// What a check adds to the pods of a role.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSetUpdate {
    /// The role.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Labels of nodes.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
}

/// A condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    last_transition_time: String,
}

impl Condition {
    /// True if it holds.
    pub fn holds(&self) -> bool {
        self.status == "True"
    }

    /// Since when it is as it is, in seconds since 1970.
    pub fn since(&self) -> Seconds {
        Seconds(seconds(&self.last_transition_time))
    }

    /// The same, as it is written.
    pub(super) fn since_text(&self) -> &str {
        &self.last_transition_time
    }

    pub(super) fn status(&self) -> &str {
        &self.status
    }
}

impl JobWorkload {
    /// True if it belongs to the job with this uid.
    pub fn is_of(&self, uid: &str) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.uid == uid)
    }

    /// The condition of a type.
    pub fn condition(&self, kind: &str) -> Option<Condition> {
        let all = self.conditions.iter().filter_map(|condition| Condition::deserialize(condition).ok());
        all.into_iter().find(|condition| condition.kind == kind)
    }

    /// The condition of a type, if it holds.
    pub fn holding(&self, kind: &str) -> Option<Condition> {
        self.condition(kind).filter(Condition::holds)
    }
}

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
    let digest = annotation(object, DIGEST_ANNOTATION).unwrap_or_default();
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
