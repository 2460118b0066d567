//! The status of a TrainingJob, which the controller writes.

#![expect(unreachable_pub, reason = "the derive of schemas copies each public struct into a function")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sweep::SweepStatus;

/// The state of a TrainingJob.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The phase of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The pods of the job, by role.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub roles: Vec<RoleStatus>,
    /// The pods that were replaced, by cause. Only `crashed` counts against `spec.restart.maxCrashes`.
    #[serde(default, skip_serializing_if = "Restarts::is_empty")]
    pub restarts: Restarts,
    /// The number that the first of the pods that decide the job's success wrote to its termination message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The trials, if the job is a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<SweepStatus>,
    /// Why the job waits, in a sentence with numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// When the pods were first created since the job was last suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// When the job succeeded or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Time>,
    /// Texts for the columns of `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<ShownJob>,
    /// The cluster in which the job is, if `spec.clusters` names others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Internal state from which the controller continues after a restart. Other programs must not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// `Valid`, `QuotaReserved`, `DataWarm` and `Placed`, and of a job that has ended `Complete` or `Failed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

/// The version of the form of [`TrainingJobStatus::record`]. Raise it with a phase or a stage that earlier versions
/// cannot read.
const RECORD_VERSION: u32 = 0;

/// True if a newer version of the controller has written a [`TrainingJobStatus::record`]. This version cannot know what
/// the job's pods did.
pub fn is_newer_record(record: &str) -> bool {
    #[derive(Deserialize)]
    struct Versioned {
        #[serde(default)]
        version: u32,
    }
    serde_json::from_str::<Versioned>(record).is_ok_and(|record| record.version > RECORD_VERSION)
}

/// The phase of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// The job waits for quota, and has no pods.
    #[default]
    Queued,
    /// The job has quota, and waits for its data.
    DataWarming,
    /// The job's pods are being placed and started.
    Starting,
    /// All required pods run.
    Running,
    /// Some of the job's pods end, and the others continue.
    Shrinking,
    /// More pods join the running ones.
    Growing,
    /// A pod was lost and is being replaced.
    Recovering,
    /// The job has no pods until it is resumed.
    Suspended,
    /// The job has succeeded.
    Succeeded,
    /// The job has failed.
    Failed,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 10] = [
        Self::Queued,
        Self::DataWarming,
        Self::Starting,
        Self::Running,
        Self::Shrinking,
        Self::Growing,
        Self::Recovering,
        Self::Suspended,
        Self::Succeeded,
        Self::Failed,
    ];

    /// True if the phase is final.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// True if the job should have pods.
    pub const fn has_pods(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Shrinking | Self::Growing | Self::Recovering)
    }

    /// True if pods may have to be created.
    pub const fn is_making(self) -> bool {
        self.has_pods() && !matches!(self, Self::Running)
    }
}

/// The pods of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleStatus {
    /// The name of the role.
    pub name: String,
    /// The pods that the role should have now.
    pub desired: u32,
    /// The pods that exist and have not ended.
    pub active: u32,
    /// The pods that are ready.
    pub ready: u32,
    /// The indexes that have succeeded.
    pub done: u32,
}

/// The pods of a job that were replaced, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restarts {
    /// Pods whose program ended with an error.
    #[serde(default)]
    pub crashed: u32,
    /// Pods that were preempted by another job.
    #[serde(default)]
    pub preempted: u32,
    /// Pods that were evicted or deleted.
    #[serde(default)]
    pub evicted: u32,
    /// Pods whose node was lost.
    #[serde(default)]
    pub node_lost: u32,
    /// Pods with a failed device.
    #[serde(default)]
    pub device_fault: u32,
}

impl Restarts {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The sum of all causes.
    pub fn total(&self) -> u32 {
        [self.crashed, self.preempted, self.evicted, self.node_lost, self.device_fault]
            .into_iter()
            .fold(0, u32::saturating_add)
    }
}

/// The cluster in which a job is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// The Cluster; empty while none is chosen.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// When it was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Since when the cluster has not answered. The status is as it was then, and the job may have gone on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_since: Option<Time>,
    /// The clusters that the job has left and that may still have it. It is deleted there once they answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub left: Vec<String>,
    /// The terms of the choice, the best cluster first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub terms: Vec<ClusterTerm>,
}

/// The most entries in [`Placement::terms`] and [`Placement::left`].
pub const TERMS_MAX: usize = 20;

/// The terms by which a cluster was compared with others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterTerm {
    /// The Cluster.
    pub cluster: String,
    /// True if all required pods of the job fit there at that time.
    pub fits: bool,
    /// The bytes of the job's datasets that are cached there.
    pub held_bytes: u64,
    /// The bytes that must be brought there.
    pub missing_bytes: u64,
    /// The cost of a byte.
    pub cost: u32,
    /// The weight of the cluster.
    pub weight: u32,
    /// Why the cluster cannot be chosen.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Texts for the columns of `kubectl get`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShownJob {
    /// The column READY: ready of desired, such as `3/4`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ready: String,
    /// The column DATA, such as `62%`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub data: String,
    /// The column RESTARTS: the sum of `status.restarts`.
    #[serde(default)]
    pub restarts: u32,
    /// The column WHY: one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}
