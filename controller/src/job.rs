//! Training jobs: which of them start, where their pods go, and what becomes of each. Pure.
//!
//! [`queue`] decides which jobs have quota and room, and which of them give way; [`plan`] finds a node for every pod of a job,
//! or for none; [`machine`] takes one job from its first wait to its end. [`amounts`] are what they count. [`render`] makes a job's
//! pods as its JobType describes them.
//!
//! Nothing here reads a clock or the API, and nothing is remembered outside of the values that are passed in and returned.

pub mod amounts;
pub mod machine;
pub mod plan;
pub mod queue;
pub mod render;
