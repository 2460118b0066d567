//! Training jobs: which of them start, where their pods run, and what happens to each.
//!
//! A [`round`] decides about all jobs at once, based on one snapshot of the cluster, the [`cluster_view`]. In a round,
//! each job goes through the six phases of a `turn`. Each phase is a type that only the previous phase can construct:
//!
//! ```text
//! Checked ──► Stepped ──► Ruled ──► Placed ──► Decided ──► Written
//!  validate    machine    queue     plan       kueue       writes, report
//!  dry_run                plan
//! ```
//!
//! [`validate`] and [`dry_run`] determine whether a job may start ([`eligibility`]). [`machine`] is the life of one
//! job. [`queue`] decides which jobs get quota and room and which are preempted. [`plan`] finds a node for every
//! required pod of a job, or for none. [`kueue`] replaces [`queue`] for jobs in queues of Kueue, and [`pod_group`]
//! replaces [`plan`] where kube-scheduler has gang scheduling. [`constraints`] are those of pods that kube-scheduler
//! decides about. [`render`] renders a job's pods from its JobType, [`report`] computes its status, and the last phase
//! of the `turn` collects all of its writes. Jobs create many pods in turns ([`pod_turns`]).
//! While nothing is to be done about a job, it rests: rounds count it, and skip its phases.
//!
//! A job with a [`sweep`] has no part in a round: it only creates other jobs, its trials.
//!
//! Between rounds, [`job_state`] keeps the state of one job, and [`index`] keeps everything known about jobs.
//! [`flavors`] are kinds of nodes of which queues have quota. [`outages`] separates outages of a zone from lost nodes.
//! [`leftover_pods`] are pods that outlive their jobs, and [`queued_pods`] pods of other programs in queues, with
//! [`pod_decisions`] and [`pod_waits`]. [`counts`] are counters for operators. [`objects`] and [`mod@read`] reduce API
//! objects to the fields that decisions need. [`discovery`] detects whether the cluster supports training jobs.
//!
//! Only [`discovery`] calls the API, and only [`mod@read`] and its counterpart for Kueue see unreduced objects. All
//! other modules are pure: they read neither a clock nor the API, and keep no state outside their arguments and
//! results.
//!
//! Invariants: a decision about a job is in its status before a pod is created or deleted because of it. No pod name is
//! used twice. Queues decide from what jobs took of earlier decisions, whether those are written or not.

pub mod cluster_view;
pub(crate) mod condition;
pub mod constraints;
pub mod counts;
pub mod data_locality;
pub mod discovery;
pub mod dry_run;
pub mod eligibility;
pub mod flavors;
pub mod index;
pub mod job_state;
pub mod job_types;
pub mod kueue;
pub mod leftover_pods;
pub mod machine;
pub mod objects;
pub mod outages;
pub mod plan;
pub mod planned;
pub mod pod_decisions;
pub mod pod_group;
pub mod pod_turns;
pub mod pod_waits;
pub mod profile;
pub mod queue;
pub mod queued_pods;
pub mod queues;
pub mod read;
pub mod refusal;
pub mod render;
pub mod report;
pub mod round;
#[cfg(test)]
mod sample;
pub mod sweep;
mod turn;
pub mod usage;
pub mod validate;
