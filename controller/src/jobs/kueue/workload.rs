//! The Workload of a job, cut to the fields that decisions need. A field that is not there, or not understood, is left out.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use serde::Deserialize;
use serde_json::Value;

use crate::time::Seconds;
use larder_kube::fields::seconds;
use larder_kube::key::Meta;

/// The Workload of a job, or one that has the name of such a Workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobWorkload {
    pub meta: Meta,
    /// The TrainingJob that it belongs to; `None` for somebody else's.
    pub owner: Option<Owner>,
    pub finalizers: Vec<String>,
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
    pub name: String,
    pub uid: String,
}

/// The admission of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Assigned {
    pub(super) name: String,
    /// How many pods; `None`: all that were asked for.
    pub count: Option<u32>,
    /// The flavor of each resource.
    pub flavors: BTreeMap<String, String>,
    /// The topology domains that Kueue has chosen; Kueue assigns one to each pod itself.
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
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Labels of nodes.
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Toleration>,
}

/// A condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    pub reason: String,
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
