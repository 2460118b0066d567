//! Training jobs: which of them start, where their pods go, and what becomes of each.
//!
//! [`round`] looks at all of them at once: [`queue`] decides which jobs have quota and room, and which of them give way; [`plan`]
//! finds a node for every pod of a job, or for none; [`machine`] takes one job from its first wait to its end. [`amounts`] are
//! what they count, [`requests`] what a pod asks for. [`validate`] says why a job cannot run, [`render`] makes a job's pods as its
//! JobType describes them, [`report`] its status, and [`writes`] all that is written for it. [`leftover_pods`] are pods that jobs
//! leave behind. [`counts`] counts for operators. [`index`] is what is remembered, [`objects`] and [`mod@read`] what is read; [`discovery`] finds out whether there
//! are training jobs at all.
//! [`kueue`] is in the place of [`queue`] for jobs in Kueue's queues, and [`pod_group`] in that of [`plan`] where the scheduler has
//! gangs of its own.
//!
//! All but [`discovery`] is pure: nothing reads a clock or the API, and nothing is remembered outside of the values that are
//! passed in and returned.

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
