//! Training jobs: which of them start, where their pods go, and what becomes of each. Pure.
//!
//! [`queue`] decides which jobs have quota and room, and which of them give way; [`plan`] finds a node for every pod of a job,
//! or for none; [`machine`] takes one job from its first wait to its end. [`amounts`] are what they count. [`render`] makes a job's
//! pods as its JobType describes them. [`kueue`] is in the place of [`queue`] for jobs in Kueue's queues, and [`native`] in that of
//! [`plan`] where the scheduler has gangs of its own.
//!
//! Nothing here reads a clock or the API, and nothing is remembered outside of the values that are passed in and returned.

pub mod amounts;
pub mod kueue;
pub mod machine;
pub mod native;
pub mod plan;
pub mod queue;
pub mod render;
#[cfg(test)]
mod sample;
