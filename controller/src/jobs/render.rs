//! The objects of a TrainingJob: what its JobType and its spec make of a role, an index, an attempt and the facts of the
//! moment. All of it is pure, and the same input gives the same objects.
//!
//! The cast: [`names`] says what things are called, [`context`] what templates see, `language` what they may say, `template` renders
//! them; `pod` puts a
//! pod together with the help of `files`, `launcher`, `performance` and [`place`]; `shared` makes what all pods of a
//! job have together; `size` looks whether a cluster takes all that;
//! `validate` tries a JobType on sample jobs.
//!
//! Invariant: what a job's own template says is kept, but for what [`larder_api::training_job::checked`] refuses
//! there. All that is added passes PodSecurity `restricted`.

pub mod context;
mod files;
mod language;
mod launcher;
pub mod names;
mod performance;
pub mod place;
mod pod;
mod shared;
mod size;
mod template;
mod validate;

pub use context::{Facts, Rendered};
pub use place::Place;
pub use pod::Renderer;
pub use shared::{claims, metadata, secret, service};
pub use size::fits;
pub use validate::{validate, validate_as};

#[cfg(test)]
mod tests;
