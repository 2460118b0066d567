//! The types of Larder's Kubernetes objects, in the group `larder.dev`. The crate has no client code: the controller,
//! `larderd`, the command line and tests share these types.
//!
//! - [`dataset`]: the [`Dataset`] that a user applies, and its status.
//! - [`node_cache`]: the [`NodeCache`] of each node: the controller's promises, and the node's report.
//! - [`training_job`]: the [`TrainingJob`] that a user applies, its status, conditions and checked form.
//! - [`job_type`]: the [`JobType`]: what the pods of a framework's jobs need, as data.
//! - [`cache_quota`]: the [`CacheQuota`]: how much of the caches the Datasets of some namespaces may use.
//! - [`mod@queue`]: the [`Queue`]: the quota that jobs of some namespaces share.
//! - [`cluster`]: the [`Cluster`]: another cluster that runs jobs of this one, or the cluster itself.
//! - [`convert`]: converts manifests of Kubeflow's kinds to TrainingJobs.
//! - [`conditions`]: the conditions of a Dataset and the closed list of their reasons.
//! - [`decision`]: the scheduler extender's decisions about pods, with their inputs.
//! - [`names`]: labels, annotations and other names that programs and users share.
//! - [`checked`]: the spec of a Dataset, validated and parsed with the same checks as volume attributes.
//! - [`quantity`]: amounts of resources as Kubernetes writes them.
//! - [`settings`]: the [`LarderSettings`]: the lists that admission policies compare objects with.
//! - [`rights`]: rights that only the administrator's Datasets have.
//! - [`mod@explain`]: explains why a Dataset is ready or not, why a job waits, and what to do.
//! - [`definitions`]: the CustomResourceDefinitions in `deploy/crds`.
//!
//! Invariant: the schema rejects at apply what [`checked`] rejects later, except for rights, which an admission policy
//! enforces.

#![warn(missing_docs)]

pub mod cache_quota;
pub mod checked;
pub mod cluster;
pub mod conditions;
pub mod convert;
pub mod dataset;
pub mod decision;
pub mod definitions;
pub mod explain;
mod form;
pub mod job_type;
pub mod names;
pub mod node_cache;
pub mod quantity;
pub mod queue;
pub mod rights;
mod schemas;
pub mod settings;
pub mod training_job;
mod vocabulary;

pub use cache_quota::{CacheQuota, CacheQuotaSpec, CacheQuotaStatus, QuotaConditionKind, QuotaReason, QuotaUsage};
pub use checked::{CheckedSpec, InvalidField, Keeping};
pub use cluster::{Cluster, ClusterConditionKind, ClusterReason, ClusterSpec, ClusterStatus};
pub use conditions::{ConditionKind, Reason};
pub use dataset::{
    Cache, Dataset, DatasetSpec, DatasetStatus, ImportedStatus, Keep, LagReason, LaggingNode, Mirror, MirrorOrigin,
    MirrorStatus, NodeCount, Nodes, NodesStatus, Origin, SecretRef, Shown, SnapshotStatus, Users,
};
pub use explain::job::{JobExplanation, explain_job};
pub use explain::{Explanation, explain};
pub use job_type::{JobType, JobTypeSpec, JobTypeStatus};
pub use node_cache::{
    CacheConditionKind, CacheReason, CleanedSnapshot, NODE_CACHE_LABELS_MAX, NodeCache, NodeCacheSpec, NodeCacheStatus,
    NodeQuota, PromisedDataset, SnapshotCache, UnkeptPromise,
};
pub use queue::{Queue, QueueSpec, QueueStatus};
pub use settings::{LarderSettings, LarderSettingsSpec, LarderSettingsStatus};
pub use training_job::{Phase, TrainingJob, TrainingJobSpec, TrainingJobStatus};
