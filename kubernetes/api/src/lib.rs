//! Larder's objects in Kubernetes, in the group `larder.dev`. No client code: the controller, `larderd`, the command
//! line and tests share these types.
//!
//! - [`dataset`]: the [`Dataset`] that a user applies, and its status.
//! - [`node_cache`]: the [`NodeCache`] of each node: what the controller promised there, and what the node says.
//! - [`training_job`]: the [`TrainingJob`] that a user applies, its status, conditions and checked form.
//! - [`job_type`]: the [`JobType`]: what the pods of a framework's jobs need, as data.
//! - [`mod@queue`]: the [`Queue`]: what jobs of some namespaces may use together.
//! - [`convert`]: manifests of Kubeflow's kinds as TrainingJobs.
//! - [`conditions`]: the conditions of a Dataset and the closed list of their reasons.
//! - [`decision`]: what the scheduler extender decided about a pod, and from which inputs.
//! - [`names`]: labels, annotations and other names that programs and users meet each other by.
//! - [`checked`]: the spec of a Dataset as values instead of texts, by the checks that the attributes of volumes pass.
//! - [`quantity`]: amounts of resources as Kubernetes writes them.
//! - [`rights`]: rights of the administrator's Datasets alone.
//! - [`mod@explain`]: why a Dataset is ready or not, and why a job waits, in words, and what to do.
//! - [`definitions`]: the CustomResourceDefinitions, as `deploy/crds` has them.
//!
//! Invariant: the schema refuses at apply what [`checked`] refuses later, except for rights, which an admission policy
//! holds.

#![warn(missing_docs)]

pub mod checked;
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
pub mod training_job;
mod vocabulary;

pub use checked::{CheckedSpec, InvalidField, Keeping};
pub use conditions::{ConditionKind, Reason};
pub use dataset::{
    Cache, Dataset, DatasetSpec, DatasetStatus, ImportedStatus, Keep, LagReason, LaggingNode, NodeCount, Nodes,
    NodesStatus, Origin, SecretRef, Shown, SnapshotStatus, Users,
};
pub use explain::job::{JobExplanation, explain_job};
pub use explain::{Explanation, explain};
pub use job_type::{JobType, JobTypeSpec, JobTypeStatus};
pub use node_cache::{
    CleanedSnapshot, NodeCache, NodeCacheSpec, NodeCacheStatus, PromisedDataset, SnapshotCache, UnkeptPromise,
};
pub use queue::{Queue, QueueSpec, QueueStatus};
pub use training_job::{Phase, TrainingJob, TrainingJobSpec, TrainingJobStatus};
