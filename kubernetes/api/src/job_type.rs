//! The `JobType`: how the pods of a framework's jobs find each other and start, and when a job is done. It is pure
//! data.
//!
//! Values of variables and files, and every text in the template of a role, are templates in the language of
//! [minijinja](https://docs.rs/minijinja/latest/minijinja/syntax/). docs/kubernetes/jobs.md lists the variables that
//! templates can use.

#![expect(unreachable_pub, reason = "the derive of schemas copies each public struct into a function")]

pub mod checked;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schemas;

/// A kind of job.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "larder.dev",
    version = "v1alpha1",
    kind = "JobType",
    plural = "jobtypes",
    status = "JobTypeStatus",
    derive = "PartialEq",
    doc = "A kind of TrainingJob: its roles, the environment and files of their pods, and when it is done.",
    printcolumn(
        name = "Valid",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Valid\")].status",
        description = "Jobs of this type can be created"
    ),
    printcolumn(name = "Description", type_ = "string", json_path = ".spec.description"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message(
        "metadata.name must consist of at most 63 lower-case letters, digits and hyphens: spec.type of a TrainingJob is it"
    )
)]
#[x_kube(
    validation = Rule::new("self.success.roles.all(name, self.roles.exists(role, role.name == name))")
        .message("spec.success.roles must list names of spec.roles"),
    validation = Rule::new(
            "!has(self.launcher) || (self.roles.exists(role, role.name == self.launcher.role) \
             && self.launcher.starts.all(name, self.roles.exists(role, role.name == name)))"
        )
        .message("spec.launcher.role and spec.launcher.starts must be names of spec.roles"),
    validation = Rule::new("!has(self.launcher) || has(self.service)")
        .message("spec.service is missing: the launcher reaches its workers by their host names"),
    validation = Rule::new(
            "!has(self.environment) || self.environment.all(one, !has(one.roles) \
             || one.roles.all(name, self.roles.exists(role, role.name == name)))"
        )
        .message("spec.environment[].roles must list names of spec.roles"),
    validation = Rule::new(
            "!has(self.files) || self.files.all(one, !has(one.roles) \
             || one.roles.all(name, self.roles.exists(role, role.name == name)))"
        )
        .message("spec.files[].roles must list names of spec.roles"),
)]
#[serde(rename_all = "camelCase")]
pub struct JobTypeSpec {
    /// The purpose of the type, in a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub description: Option<String>,
    /// The roles of jobs, in the order in which ranks are counted.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub roles: Vec<RoleType>,
    /// Variables of every container. A variable that the job's own template sets keeps its value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub environment: Vec<Variable>,
    /// Files in every container. They are the same for all pods of a job, and follow it as pods come and go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["path".to_owned()]))]
    pub files: Vec<ConfigFile>,
    /// Set if pods reach each other by name: a headless service of the job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceRules>,
    /// Set if the pod of one role starts the processes in other pods, as mpirun does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher: Option<Launcher>,
    /// When a job is done.
    pub success: Success,
    /// Recovery from the loss of a pod, unless the job says otherwise.
    #[serde(default)]
    pub restart: RestartRules,
    /// Performance defaults, unless the template of a role turns them off.
    #[serde(default)]
    pub performance: Performance,
}

/// A role that jobs may have.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleType {
    /// The name of the role.
    #[schemars(length(max = 15))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.roles[].name must begin with a letter and consist of lower-case letters, digits and hyphens"))]
    pub name: String,
    /// True if every job must have the role.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    /// The most pods of the role that a job may have; no limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub most: Option<u32>,
    /// True if a job can run with fewer pods than desired: `min` and `max` may differ from `replicas`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elastic: bool,
    /// True if a second pod of an index may run before the first one has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlap: bool,
    /// Ports by name. A port of the same name in the job's template has the number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub ports: Vec<Port>,
    /// Defaults for the role's pods, where the job's template sets nothing. The first container here applies to the
    /// first container there, even if their names differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::pod_template")]
    pub template: Option<PodTemplateSpec>,
}

/// A port of the first container.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// The name of the port.
    #[schemars(length(max = 15))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.roles[].ports[].name must consist of lower-case letters, digits and hyphens"))]
    pub name: String,
    /// The number of the port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}

/// An environment variable.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Variable {
    /// The name of the variable.
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z_][A-Za-z0-9_]*$')")
        .message("spec.environment[].name must be the name of a variable: letters, digits and underscores"))]
    pub name: String,
    /// The value, a template.
    #[schemars(length(max = 4096))]
    pub value: String,
    /// An expression. The variable is set only where it is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub when: Option<String>,
    /// The roles that have the variable; all by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 15)))]
    pub roles: Vec<String>,
}

/// A file.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigFile {
    /// The path. The folder holds files of the JobType and nothing else.
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new(
            "self.matches('^(/[A-Za-z0-9._-]+){2,}$') && !self.matches('/[.]{1,2}(/|$)')"
        )
        .message("spec.files[].path must be the whole path of a file in a folder, such as /etc/mpi/hostfile"))]
    pub path: String,
    /// The content, a template.
    #[schemars(length(max = 65536))]
    pub content: String,
    /// True if the file is executable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
    /// The roles that have the file; all by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 15)))]
    pub roles: Vec<String>,
}

/// How pods reach each other by name.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRules {
    /// True if names also resolve to pods that are not ready yet, since pods look for each other while they start.
    #[serde(default = "yes")]
    pub publish_not_ready: bool,
}

fn yes() -> bool {
    true
}

/// A role whose pod starts processes in other pods. Its main containers start once the agent in every pod of those
/// roles answers. An init container installs the agent.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Launcher {
    /// The role whose pod starts the processes.
    #[schemars(length(max = 15))]
    pub role: String,
    /// The roles in whose pods the launcher starts processes.
    #[schemars(length(min = 1, max = 15), inner(length(max = 15)))]
    pub starts: Vec<String>,
    /// The port at which the agent in those pods listens.
    #[schemars(range(min = 1024, max = 65535))]
    pub port: u16,
}

/// When a job is done.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Success {
    /// The roles that decide: the first of them that the job has.
    #[schemars(length(min = 1, max = 16), inner(length(max = 15)))]
    pub roles: Vec<String>,
    /// The indexes of that role that must have succeeded: `all` (default), or the `first`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::indexes")]
    pub indexes: Option<Indexes>,
    /// The outcome: the job is `complete` (default), or is suspended until a user resumes it (`suspend`), such as an
    /// idle notebook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::outcome")]
    pub then: Option<Outcome>,
}

/// The indexes of a role that decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Indexes {
    /// Index 0.
    First,
    /// All indexes.
    #[default]
    All,
}

/// The outcome of a job that meets its success rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The job is complete, permanently.
    #[default]
    Complete,
    /// The job is suspended.
    Suspend,
}

/// Recovery from the loss of a pod.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestartRules {
    /// The part that restarts: the `worker` that was lost, or the whole `job` (default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::restart_scope")]
    pub scope: Option<RestartScope>,
    /// The job fails when more pods than this have crashed; 3 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000000))]
    pub max_crashes: Option<u32>,
}

/// The part of a job that restarts when a pod is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RestartScope {
    /// Only the lost pod.
    Worker,
    /// All pods of the job.
    #[default]
    Job,
}

/// Performance defaults. The annotation `larder.dev/defaults-off` of a role's template turns each off for its pods.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Performance {
    /// True if requests and limits become equal where only one of them is given, so that pods are Guaranteed.
    #[serde(default = "yes")]
    pub guaranteed: bool,
    /// True if more than one CPU is rounded up to whole CPUs, which the CPU manager can pin.
    #[serde(default = "yes")]
    pub whole_cpus: bool,
    /// The size of /dev/shm: a percentage of the first container's memory (50% by default), a size such as 8Gi, or
    /// `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self == 'off' || self.matches('^([1-9][0-9]?|100)%$') || self.matches('^[1-9][0-9]{0,9}([KMGT]i)?$')")
        .message("spec.performance.sharedMemory must be a percentage such as 50%, a size such as 8Gi, or off"))]
    pub shared_memory: Option<String>,
    /// True if containers that request huge pages find them at /dev/hugepages.
    #[serde(default = "yes")]
    pub hugepages: bool,
    /// The CPUs of a first container that requests none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub cpus: Option<u32>,
    /// The memory of a first container that requests none, such as 2Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,9}([KMGT]i)?$')")
        .message("spec.performance.memory must be a size such as 2Gi"))]
    pub memory: Option<String>,
}

impl Default for Performance {
    fn default() -> Self {
        Self { guaranteed: true, whole_cpus: true, shared_memory: None, hugepages: true, cpus: None, memory: None }
    }
}

/// The state of a JobType.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobTypeStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Valid`: sample jobs of every shape can be rendered (reason `Accepted`), or not (`InvalidSpec`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}
