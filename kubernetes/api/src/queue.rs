//! The `Queue`: the quota that jobs of some namespaces share, and how queues of a cohort lend and borrow it.

#![expect(unreachable_pub, reason = "the derive of schemas copies each public struct into a function")]

pub mod account;
pub mod checked;
pub mod flavor;
pub mod line;
pub mod tree;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schemas;

/// A queue of TrainingJobs.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "larder.dev",
    version = "v1alpha1",
    kind = "Queue",
    plural = "queues",
    shortname = "tq",
    status = "QueueStatus",
    derive = "PartialEq",
    doc = "A queue of TrainingJobs, and the quota that they share.",
    printcolumn(name = "Cohort", type_ = "string", json_path = ".spec.cohort"),
    printcolumn(name = "Parent", type_ = "string", json_path = ".spec.parent"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waiting"),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.running"),
    printcolumn(
        name = "Used",
        type_ = "string",
        json_path = ".status.shown",
        description = "The usage of the queue's jobs, of its nominal quota"
    ),
    printcolumn(name = "Stop", type_ = "string", json_path = ".spec.stop"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message(
        "metadata.name must consist of at most 63 lower-case letters, digits and hyphens: spec.queue of a TrainingJob is it"
    ),
    validation = Rule::new("!has(self.spec.parent) || self.spec.parent != self.metadata.name")
        .message("spec.parent must be another queue")
)]
#[x_kube(
    validation = Rule::new(
            "has(self.cohort) || has(self.parent) || !has(self.quota) || self.quota.all(name, !has(self.quota[name].borrow) \
             && !has(self.quota[name].lend))"
        )
        .message(
            "spec.cohort or spec.parent is missing: spec.quota has `borrow` or `lend`, and only queues of a cohort or \
             below one queue lend to each other"
        ),
    validation = Rule::new(
            "has(self.cohort) || has(self.parent) || !has(self.flavors) || self.flavors.all(flavor, \
             flavor.quota.all(name, !has(flavor.quota[name].borrow) && !has(flavor.quota[name].lend)))"
        )
        .message(
            "spec.cohort or spec.parent is missing: spec.flavors has `borrow` or `lend`, and only queues of a cohort or \
             below one queue lend to each other"
        ),
    validation = Rule::new("!has(self.cohort) || !has(self.parent)")
        .message("spec.cohort cannot be combined with spec.parent: a queue is in the cohort of the queue above it"),
)]
#[serde(rename_all = "camelCase")]
pub struct QueueSpec {
    /// The namespaces whose jobs may use the queue; `*` for all, none by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 63)))]
    #[x_kube(validation = Rule::new("self.all(name, name == '*' || name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))")
        .message("spec.namespaces must list names of namespaces, or \"*\" for all"))]
    pub namespaces: Vec<String>,
    /// The quota that its jobs share, by resource, such as nvidia.com/gpu. A resource that is not listed is not
    /// limited.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub quota: BTreeMap<String, Quota>,
    /// The flavors of nodes on which its jobs run, the preferred one first. A job has pods on nodes of one flavor, or
    /// of one for each role, and counts against the quota of the flavor and against `quota`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub flavors: Vec<FlavorQuota>,
    /// The cohort. Queues with the same name here lend to each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.cohort must consist of lower-case letters, digits and hyphens"))]
    pub cohort: Option<String>,
    /// The queue above this one. Queues below one queue lend to each other and to it, and `borrow` and `lend` of a
    /// queue are limits of all queues below it together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.parent must be the name of a Queue"))]
    pub parent: Option<String>,
    /// The queue's share of what the cohort lends, relative to other queues; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub weight: Option<u32>,
    /// The priorities that jobs of the queue may name in `spec.priority`, by name. With them, only they decide about
    /// the order of jobs, and no longer the PriorityClasses of pods. A job that names none has the priority 0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub priorities: BTreeMap<String, i32>,
    /// The jobs that jobs of the queue may preempt.
    #[serde(default, skip_serializing_if = "Preemption::is_default")]
    pub preemption: Preemption,
    /// `hold`: no job starts, and running jobs continue. `drain`: running jobs are stopped as well, and wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::stop")]
    pub stop: Option<Stop>,
}

/// The quota of a resource.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("type(self.nominal) == int ? self.nominal >= 0 : !self.nominal.startsWith('-')")
        .message("spec.quota[].nominal must be at least 0"),
    validation = Rule::new(
            "!has(self.borrow) || (type(self.borrow) == int ? self.borrow >= 0 : !self.borrow.startsWith('-'))"
        )
        .message("spec.quota[].borrow must be at least 0"),
    validation = Rule::new(
            "!has(self.lend) || (type(self.lend) == int ? self.lend >= 0 : !self.lend.startsWith('-'))"
        )
        .message("spec.quota[].lend must be at least 0"),
)]
#[serde(rename_all = "camelCase")]
pub struct Quota {
    /// The queue's own amount.
    #[schemars(schema_with = "schemas::amount")]
    pub nominal: Quantity,
    /// The most that the queue borrows from its cohort; all that others lend by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::amount")]
    pub borrow: Option<Quantity>,
    /// The most of its own amount that the queue lends to its cohort; all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::amount")]
    pub lend: Option<Quantity>,
}

/// The quota of a flavor.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("self.quota.size() > 0")
        .message("spec.flavors[].quota must have the resources that the flavor limits, such as nvidia.com/gpu")
)]
#[serde(rename_all = "camelCase")]
pub struct FlavorQuota {
    /// One of the flavors in the LarderSettings.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.flavors[].name must be the name of a flavor in the LarderSettings"))]
    pub name: String,
    /// The quota by resource. Pods that request none of these resources run on nodes of any flavor.
    #[schemars(extend("maxProperties" = 32))]
    pub quota: BTreeMap<String, Quota>,
}

/// The jobs that jobs of a queue may preempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preemption {
    /// Jobs of the same queue: with a `lowerPriority` (default), and of equal ones the pods above their minimum; or
    /// `never`.
    #[serde(default)]
    #[schemars(schema_with = "schemas::never_or_lower")]
    pub within_queue: Preempts,
    /// Jobs of other queues, if the job stays within the nominal quota: `any` (default) that borrow or have a lower
    /// priority, those with a `lowerPriority`, or `never`. Jobs without a queue are included, whatever their priority,
    /// unless it is `never`.
    #[serde(default = "Preempts::any")]
    #[schemars(schema_with = "schemas::preempts")]
    pub reclaim: Preempts,
    /// Jobs of other queues, if the job would borrow: those that borrow and have a `lowerPriority` (default), or
    /// `never`.
    #[serde(default)]
    #[schemars(schema_with = "schemas::never_or_lower")]
    pub while_borrowing: Preempts,
}

impl Default for Preemption {
    fn default() -> Self {
        let lower = Preempts::LowerPriority;
        Self { within_queue: lower, reclaim: Preempts::Any, while_borrowing: lower }
    }
}

impl Preemption {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The jobs that are preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Preempts {
    /// None.
    Never,
    /// Those with a lower priority.
    #[default]
    LowerPriority,
    /// Those of any priority.
    Any,
}

impl Preempts {
    fn any() -> Self {
        Self::Any
    }
}

/// The ways to stop a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stop {
    /// No job starts; running jobs continue.
    Hold,
    /// No job starts, and running jobs are stopped.
    Drain,
}

/// The state of a Queue.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The number of jobs, and of pods of other programs, that wait.
    #[serde(default)]
    pub waiting: u32,
    /// The number of jobs, and of pods of other programs, that have quota.
    #[serde(default)]
    pub running: u32,
    /// The usage of these jobs, by resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub usage: BTreeMap<String, Usage>,
    /// Their usage of each flavor, by flavor and resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub flavors: BTreeMap<String, BTreeMap<String, Usage>>,
    /// The column USED, such as `nvidia.com/gpu 6/8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
    /// `Active`: the queue's jobs can start (reason `Open`, or `ParentMissing` if the queue above does not exist), or
    /// cannot (`Stopped`, `InvalidSpec`, `ParentCycle`, `FlavorMissing`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

/// The usage of a resource by the jobs of a queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// The amount in use.
    #[schemars(schema_with = "schemas::quantity")]
    pub used: Quantity,
    /// The part that is borrowed from other queues of the cohort.
    #[schemars(schema_with = "schemas::quantity")]
    pub borrowed: Quantity,
}
