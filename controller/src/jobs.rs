//! Training jobs: which of them start, where their pods go, and what becomes of each.
//!
//! A [`round`] looks at all jobs at once, in the snapshot of the cluster that [`cluster_view`] is. Each job takes a `turn`
//! in it, of six phases, each a type that the one before makes:
//!
//! ```text
//! Checked ──► Stepped ──► Ruled ──► Placed ──► Decided ──► Written
//!  validate    machine    queue     plan       kueue       writes, report
//!  dry_run                plan
//! ```
//!
//! [`validate`] and [`dry_run`] find out whether a job may start ([`eligibility`]); [`machine`] takes one job from its first
//! wait to its end; [`queue`] decides which jobs have quota and room and which give way; [`plan`] finds a node for every pod of
//! a job, or for none. [`kueue`] takes the place of [`queue`] for jobs in queues of Kueue, and [`pod_group`] that of [`plan`]
//! where the scheduler has gangs of its own. [`render`] makes a job's pods as its JobType describes them, [`report`] its
//! status, and [`writes`] all that is written for it.
//!
//! Between rounds, [`job_state`] is what is remembered of one job and [`index`] of all. [`leftover_pods`] are pods that jobs
//! leave behind. [`counts`] counts for operators. [`objects`] and [`mod@read`] cut the API's objects down; [`discovery`] finds
//! out whether the cluster has training jobs at all.
//!
//! Only [`discovery`] talks to the API and only [`mod@read`] and its like for Kueue see objects as the API sends them. All else
//! is pure: nothing reads a clock or the API, and nothing is remembered outside of the values that are passed in and returned.
//!
//! Invariants: a decision about a job is in its status before a pod is made or deleted because of it, and no pod's
//! name is used twice. Queues decide from what jobs took of earlier decisions, written or not.

pub mod cluster_view;
mod condition;
pub mod counts;
pub mod data_locality;
pub mod discovery;
pub mod dry_run;
pub mod eligibility;
pub mod index;
pub mod job_state;
pub mod job_types;
pub mod kueue;
pub mod leftover_pods;
pub mod machine;
pub mod objects;
pub mod plan;
pub mod planned;
pub mod pod_group;
pub mod profile;
pub mod queue;
pub mod queues;
pub mod read;
pub mod refusal;
pub mod render;
pub mod report;
pub mod round;
#[cfg(test)]
mod sample;
mod turn;
pub mod usage;
pub mod validate;
pub mod writes;
