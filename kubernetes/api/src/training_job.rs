//! The `TrainingJob`, which a user applies for a job of any framework.
//!
//! Values are stored as text; [`checked`] parses them. Each rule's message names its field by the full path. A rule
//! about several fields is attached to the struct that has them. `spec.roles` is a list keyed by name, so that the
//! rules about changes compare a role with its own old value.

#![expect(unreachable_pub, reason = "the derive of schemas copies each public struct into a function")]

pub mod checked;
pub mod conditions;
mod status;
mod sweep;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::job_type::RestartScope;
use crate::schemas;
pub use status::{
    ClusterTerm, Phase, Placement, Restarts, RoleStatus, ShownJob, TERMS_MAX, TrainingJobStatus, is_newer_record,
};
pub use sweep::{
    BestTrial, Choices, Distribution, Goal, Objective, Parameter, RandomSearch, Scale, Sweep, SweepStatus,
};

/// The desired state of a job.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "larder.dev",
    version = "v1alpha1",
    kind = "TrainingJob",
    plural = "trainingjobs",
    shortname = "tj",
    namespaced,
    status = "TrainingJobStatus",
    derive = "PartialEq",
    doc = "A job of pods in roles, started together where their data is, in the environment that its JobType describes.",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Queue", type_ = "string", json_path = ".spec.queue"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.shown.ready",
        description = "Ready pods, of the desired pods"
    ),
    printcolumn(
        name = "Data",
        type_ = "string",
        json_path = ".status.shown.data",
        description = "The part of the job's datasets that is cached on its nodes, or on the nodes planned for it"
    ),
    printcolumn(
        name = "Restarts",
        type_ = "integer",
        json_path = ".status.shown.restarts",
        description = "Pods that were replaced, for any cause"
    ),
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = ".status.placement.cluster",
        description = "The cluster in which the job is, if spec.clusters names others",
        priority = 1
    ),
    printcolumn(
        name = "Why",
        type_ = "string",
        json_path = ".status.shown.why",
        description = "Why the job waits, or how it ended"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    // The job's Service has this name.
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')").message(
        "metadata.name must begin with a letter, consist of lower-case letters, digits and hyphens, and have at most 63 \
         characters: the job's service and the host names of its pods are made of it"
    )
)]
#[x_kube(
    validation = Rule::new(
            "self.roles.map(role, role.name) == oldSelf.roles.map(role, role.name)"
        )
        .message("spec.roles cannot get or lose a role, and not change their order; delete the TrainingJob and apply another"),
    validation = Rule::new(
            "has(self.queue) == has(oldSelf.queue) && (!has(self.queue) || self.queue == oldSelf.queue)"
        )
        .message("spec.queue cannot be changed; delete the TrainingJob and apply another"),
    validation = Rule::new(
            "has(self.managedBy) == has(oldSelf.managedBy) && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)"
        )
        .message("spec.managedBy cannot be changed"),
    validation = Rule::new(
            "has(self.datasets) == has(oldSelf.datasets) && (!has(self.datasets) || self.datasets == oldSelf.datasets)"
        )
        .message("spec.datasets cannot be changed; delete the TrainingJob and apply another"),
    validation = Rule::new("has(self.sweep) == has(oldSelf.sweep)")
        .message("spec.sweep cannot be added or removed; delete the TrainingJob and apply another"),
    validation = Rule::new("!has(self.sweep) || !has(self.parameters)")
        .message("spec.parameters cannot be combined with spec.sweep, which sets those of its trials"),
    validation = Rule::new(
            "has(self.parameters) == has(oldSelf.parameters) \
             && (!has(self.parameters) || self.parameters == oldSelf.parameters)"
        )
        .message("spec.parameters cannot be changed; delete the TrainingJob and apply another"),
    validation = Rule::new("!has(self.datasets) || self.datasets.filter(one, has(one.split) && one.split).size() <= 1")
        .message("spec.datasets[].split can be true for one dataset"),
    // The shares of pods that run would not change.
    validation = Rule::new(
            "!has(self.datasets) || !self.datasets.exists(one, has(one.split) && one.split) \
             || self.roles.map(role, role.replicas) == oldSelf.roles.map(role, role.replicas)"
        )
        .message("spec.roles[].replicas cannot be changed with a split dataset; delete the TrainingJob and apply another"),
    validation = Rule::new("has(self.gang) == has(oldSelf.gang) && (!has(self.gang) || self.gang == oldSelf.gang)")
        .message("spec.gang cannot be changed; delete the TrainingJob and apply another"),
    validation = Rule::new(
            "!has(self.restart) || !has(self.restart.rules) || self.restart.rules.all(rule, !has(rule.roles) \
             || rule.roles.all(name, self.roles.exists(role, role.name == name)))"
        )
        .message("spec.restart.rules[].roles must list names of spec.roles"),
    validation = Rule::new(
            "self.roles.all(role, !has(role.startsAfter) || role.startsAfter.all(one, one.role != role.name \
             && self.roles.exists(other, other.name == one.role)))"
        )
        .message("spec.roles[].startsAfter[].role must be the name of another role of the job"),
    validation = Rule::new(
            "has(self.clusters) == has(oldSelf.clusters) && (!has(self.clusters) || self.clusters == oldSelf.clusters)"
        )
        .message("spec.clusters cannot be changed; delete the TrainingJob and apply another"),
    validation = Rule::new("has(self.failover) == has(oldSelf.failover) && (!has(self.failover) || self.failover == oldSelf.failover)")
        .message("spec.failover cannot be changed; delete the TrainingJob and apply another"),
    validation = Rule::new("!has(self.failover) || has(self.clusters)")
        .message("spec.failover requires spec.clusters: a job that is here has no link to lose"),
    validation = Rule::new("!has(self.clusters) || !has(self.managedBy)")
        .message("spec.clusters cannot be combined with spec.managedBy: one of them moves the job"),
    validation = Rule::new(
            "!has(self.datasets) \
             || self.datasets.all(one, self.datasets.exists_one(other, other.mountPath == one.mountPath))"
        )
        .message("spec.datasets[].mountPath must be different for each dataset"),
)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobSpec {
    /// The JobType, which says what environment the pods get and when the job is done.
    #[serde(rename = "type")]
    #[schemars(length(max = 63))]
    #[x_kube(
        validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
            .message("spec.type must be the name of a JobType"),
        validation = Rule::new("self == oldSelf")
            .message("spec.type cannot be changed; delete the TrainingJob and apply another"),
    )]
    pub type_: String,
    /// The pods of the job, by role.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub roles: Vec<Role>,
    /// The datasets that the pods read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub datasets: Vec<MountedDataset>,
    /// Variables of every container. They take the place of the JobType's variables of the same names. A variable that
    /// the template of a role sets keeps its value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub parameters: Vec<Parameter>,
    /// Set if the job is a sweep: a number of trials of this job with other parameters. The sweep itself has no pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<Sweep>,
    /// The Queue in which the job waits; by default the Queue that the annotation `larder.dev/default-queue` of its
    /// namespace names. A job without one comes after all queues and may be preempted by their jobs. The administrator
    /// decides whether there may be such jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.queue must be the name of a Queue"))]
    pub queue: Option<String>,
    /// One of the priorities of the queue. In a queue that has some, a job without it has the priority 0. In other
    /// queues, the PriorityClasses of the pods decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.priority must be the name of a priority of the Queue"))]
    pub priority: Option<String>,
    /// How the pods are started together.
    #[serde(default, skip_serializing_if = "Gang::is_empty")]
    pub gang: Gang,
    /// Recovery from the loss of a pod.
    #[serde(default, skip_serializing_if = "Restart::is_empty")]
    pub restart: Restart,
    /// True to end the pods. The job then waits until this is false again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// The job fails when it has run for this long, such as 12h or 7d.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,6}(s|m|h|d)$') && self.matches('[1-9]')")
        .message("spec.activeDeadline must be a time in s, m, h or d, such as 12h or 7d"))]
    pub active_deadline: Option<String>,
    /// The job is deleted this long after it has ended, such as 24h; `0s` means immediately. Without it, the job stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,6}(s|m|h|d)$')")
        .message("spec.ttlAfterFinished must be a time in s, m, h or d, such as 0s, 24h or 7d"))]
    pub ttl_after_finished: Option<String>,
    /// The pods that stay once the job is done: `ended` (default), those that ended on their own, for their logs; `all`;
    /// or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::keep_pods")]
    pub keep_pods: Option<KeepPods>,
    /// Another controller that runs the job. Larder leaves such a job alone, but for the Workload of one that MultiKueue
    /// moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9._-]+$')")
        .message("spec.managedBy must be the name of a controller with its domain, such as kueue.x-k8s.io/multikueue"))]
    pub managed_by: Option<String>,
    /// The clusters that the job may run in: names of Clusters, of which `here` is this one, or `any` alone; `here` by
    /// default. It runs in one of them: where its pods fit now, and the fewest bytes must be brought. Its namespace, its
    /// JobType, its datasets and its queue have the same names there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20), inner(length(max = 63)))]
    #[x_kube(
        validation = Rule::new("self.all(name, name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))")
            .message("spec.clusters must list names of Clusters, or \"any\" alone"),
        validation = Rule::new("!self.exists(name, name == 'any') || self.size() == 1")
            .message("spec.clusters must list names of Clusters, or \"any\" alone"),
    )]
    pub clusters: Vec<String>,
    /// The job starts in another cluster when its own has not answered for this long, at least 2m and twice the grace
    /// period of its pods and a minute. Its own cluster ends its pods before that. Without it, the job stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new(
            "self.matches('^((1[2-9][0-9]|[2-9][0-9][0-9]|[1-9][0-9]{3,5})s|([2-9]|[1-9][0-9]{1,5})m|[1-9][0-9]{0,5}[hd])$')"
        )
        .message("spec.failover must be a time of at least 2m, in s, m, h or d, such as 10m"))]
    pub failover: Option<String>,
}

/// Pods of one kind.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("!has(self.min) || self.min <= self.replicas")
        .message("spec.roles[].min must not be more than spec.roles[].replicas"),
    validation = Rule::new("!has(self.max) || self.replicas <= self.max")
        .message("spec.roles[].max must not be less than spec.roles[].replicas"),
    validation = Rule::new("self.template == oldSelf.template")
        .message("spec.roles[].template cannot be changed; delete the TrainingJob and apply another"),
)]
#[serde(rename_all = "camelCase")]
pub struct Role {
    /// The name of the role, one of the JobType's roles.
    #[schemars(length(max = 15))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.roles[].name must begin with a letter and consist of lower-case letters, digits and hyphens"))]
    pub name: String,
    /// The desired number of pods.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10000))]
    pub replicas: u32,
    /// The fewest pods with which the job can run; `replicas` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub min: Option<u32>,
    /// The most pods that the job can use; `replicas` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub max: Option<u32>,
    /// The roles whose pods must be ready, or done, before pods of this role are created. Each of them comes before
    /// this role in the list. The room of all roles is reserved together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 15))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["role".to_owned()]))]
    pub starts_after: Vec<StartsAfter>,
    /// The template of the pods. The JobType's defaults apply to its first container.
    #[schemars(schema_with = "schemas::pod_template")]
    pub template: PodTemplateSpec,
}

fn one() -> u32 {
    1
}

/// A role that comes before another one.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartsAfter {
    /// The name of the role.
    #[schemars(length(max = 15))]
    pub role: String,
    /// The awaited state of all its pods: `ready` (default) or `done`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::until")]
    pub until: Option<Until>,
}

/// The state of the pods of a role that is awaited before those of another role are created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Until {
    /// That they are ready or have succeeded.
    #[default]
    Ready,
    /// That they have succeeded.
    Done,
}

/// A dataset, and where pods see it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountedDataset {
    /// A Dataset of the job's namespace, or NAMESPACE/NAME of one that is granted to it.
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')")
        .message("spec.datasets[].name must be the name of a Dataset, or NAMESPACE/NAME"))]
    pub name: String,
    /// The folder in every container that has the files of the dataset.
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new("self.matches('^/[^/:]') && !self.matches('/[.][.](/|$)') && !self.contains(':')")
        .message("spec.datasets[].mountPath must be an absolute path without `..` and `:`"))]
    pub mount_path: String,
    /// True to give each pod a list of the files that it is to read: every pod of a role has its share of the dataset,
    /// by its index. Only one dataset can be split, and the number of pods of each role is fixed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub split: bool,
    /// The percentage that must be cached before pods start; 90 by default, 0 to wait for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub min_warm: Option<u32>,
    /// The longest that the job waits for the dataset once it has its quota, such as 30m; 10m by default, and at most
    /// 30d, or 1h without a queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,6}(s|m|h|d)$') && self.matches('[1-9]')")
        .message("spec.datasets[].warmTimeout must be a time in s, m, h or d, such as 30m"))]
    pub warm_timeout: Option<String>,
}

/// How the pods of a job are started together: all that it needs at least, or none.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gang {
    /// `builtin`: Larder plans a node for each pod. `native`: the scheduler places all or none, where PodGroups are
    /// served. `auto` (default): `native` where they are, for jobs without datasets and `topologyKey` whose roles have
    /// one priority and one scheduler, else `builtin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::gang_backend")]
    pub backend: Option<GangBackend>,
    /// How long the job waits for the next pod to be bound, before the rest is planned again; 30s by default, and 5m at
    /// least where the scheduler chooses the nodes. At most 30d, or 1h without a queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,6}(s|m|h|d)$') && self.matches('[1-9]')")
        .message("spec.gang.timeout must be a time in s, m, h or d, such as 30s"))]
    pub timeout: Option<String>,
    /// A label of nodes, such as topology.kubernetes.io/zone. All pods should run on nodes with the same value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 316))]
    #[x_kube(validation = Rule::new("self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')")
        .message("spec.gang.topologyKey must be the key of a label, such as topology.kubernetes.io/zone"))]
    pub topology_key: Option<String>,
}

impl Gang {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The planner of the nodes of a job's pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GangBackend {
    /// `Native` where it is served, else `Builtin`.
    #[default]
    Auto,
    /// Larder.
    Builtin,
    /// The scheduler, by PodGroups.
    Native,
}

/// Recovery from the loss of a pod.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("!has(self.nodeLostAfter) || !has(self.atMostOnce) || !self.atMostOnce")
    .message("spec.restart.nodeLostAfter cannot be combined with spec.restart.atMostOnce, which waits for the node"))]
#[serde(rename_all = "camelCase")]
pub struct Restart {
    /// The part that restarts: the `worker` that was lost, or the whole `job`; as the JobType says by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::restart_scope")]
    pub scope: Option<RestartScope>,
    /// The job fails when more pods than this have crashed; the JobType's number by default. Pods that were preempted,
    /// evicted or lost with their node do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000000))]
    pub max_crashes: Option<u32>,
    /// Each time that the job has run for this long without a crash that counts, one crash less counts, such as 6h; 12h
    /// by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,6}(s|m|h|d)$') && self.matches('[1-9]')")
        .message("spec.restart.forgiveAfter must be a time in s, m, h or d, such as 6h"))]
    pub forgive_after: Option<String>,
    /// How often the kubelet restarts the containers of a pod in place, without another pod; 0 by default. After that
    /// many restarts the pod is replaced, which counts as one crash. Only pods that would be replaced alone restart in
    /// place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub in_place: Option<u32>,
    /// The rules for pods that crash: the first rule that matches the role and the exit code decides. Without one,
    /// `scope` does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub rules: Vec<RestartRule>,
    /// How long a node may be not ready before its pods are replaced, such as 5m; 60s by default, or as the
    /// administrator has set it. While more than a third of a zone is not ready, none of its nodes counts as lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,6}(s|m|h|d)$') && self.matches('[1-9]')")
        .message("spec.restart.nodeLostAfter must be a time in s, m, h or d, such as 5m"))]
    pub node_lost_after: Option<String>,
    /// True if two pods of an index must never run at once, not even where the API server cannot reach one of them. A
    /// pod is then replaced only once it has ended, is gone, or its node is gone or has the taint
    /// node.kubernetes.io/out-of-service.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_most_once: bool,
}

impl Restart {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A rule for pods that crash.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartRule {
    /// The roles of the pods; all by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 15)))]
    pub roles: Vec<String>,
    /// The exit codes, such as `1`, `2,126-127` or `128-255`; all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,3}(-[0-9]{1,3})?(, ?[0-9]{1,3}(-[0-9]{1,3})?)*$')")
        .message("spec.restart.rules[].exitCodes must list codes and ranges of codes, such as 2,126-127"))]
    pub exit_codes: Option<String>,
    /// `fail` the job; replace the pod (`restartPod`), all pods of its role (`restartRole`) or of the job
    /// (`restartJob`); or `ignore` the crash, so that it does not count against `maxCrashes`.
    #[schemars(schema_with = "schemas::restart_action")]
    pub action: RestartAction,
}

/// The action when a pod crashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RestartAction {
    /// The job fails.
    #[default]
    Fail,
    /// The pod is replaced.
    RestartPod,
    /// All pods of its role restart.
    RestartRole,
    /// All pods of the job restart.
    RestartJob,
    /// As without a rule, but the crash does not count.
    Ignore,
}

/// The pods that stay once a job is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeepPods {
    /// None.
    None,
    /// The pods that ended on their own.
    #[default]
    Ended,
    /// All pods; running pods continue.
    All,
}
