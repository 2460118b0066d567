//! Training jobs: which of them start, where their pods go, and what becomes of each.
//!
//! [`round`] looks at all of them at once: [`queue`] decides which jobs have quota and room, and which of them give way; [`plan`]
//! finds a node for every pod of a job, or for none; [`machine`] takes one job from its first wait to its end. [`amounts`] are
//! what they count, [`requests`] what a pod asks for. [`valid`] says why a job cannot run, [`render`] makes a job's pods as its
//! JobType describes them, [`report`] its status, and [`writes`] all that is written for it. [`left`] are pods that jobs
//! leave behind. [`tally`] counts for operators. [`known`] is what is remembered, [`objects`] and [`mod@read`] what is read; [`discovery`] finds out whether there
//! are training jobs at all.
//! [`kueue`] is in the place of [`queue`] for jobs in Kueue's queues, and [`native`] in that of [`plan`] where the scheduler has
//! gangs of its own.
//!
//! All but [`discovery`] is pure: nothing reads a clock or the API, and nothing is remembered outside of the values that are
//! passed in and returned.

mod actor;
pub mod amounts;
mod condition;
pub mod data;
pub mod discovery;
pub mod known;
pub mod kueue;
pub mod left;
pub mod machine;
pub mod memory;
pub mod native;
pub mod objects;
pub mod plan;
pub mod planned;
pub mod profile;
pub mod queue;
pub mod queues;
pub mod read;
pub mod refusal;
pub mod render;
pub mod report;
pub mod requests;
pub mod round;
#[cfg(test)]
mod sample;
pub mod scene;
pub mod tally;
pub mod trial;
pub mod types;
pub mod usage;
pub mod valid;
pub mod writes;
