//! The objects of a TrainingJob: what its JobType and its spec yield for a role, an index, an attempt and the current
//! [`Facts`]. Rendering is pure: the same input yields the same objects.
//!
//! Parts:
//! - [`names`] names the objects.
//! - [`context`] is the data that templates see; `language` limits the template language; `template` renders.
//! - `pod` builds a pod with `files`, `launcher`, `split`, `performance` and [`place`]. `agent` has the containers that
//!   `launcher` and `split` add.
//! - `shared` builds the objects that all pods of a job share.
//! - `size` checks the sizes of the objects against the limits of the API server and the kernel.
//! - `validate` renders sample jobs of a JobType.
//!
//! Invariant: the values of a job's own template are kept, except for those that [`larder_api::training_job::checked`]
//! rejects. Everything added passes the PodSecurity standard `restricted`.

mod agent;
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
mod split;
mod template;
mod validate;

pub use context::{Facts, Rendered};
pub use place::Place;
pub use pod::Renderer;
pub use shared::{claims, metadata, owner, secret, service};
pub use size::fits;
pub use validate::{validate, validate_as};

#[cfg(test)]
mod tests;
