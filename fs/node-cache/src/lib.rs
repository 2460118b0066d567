//! larderd's side of the [`NodeCache`](larder_api::NodeCache) of its node: it keeps the promises of the
//! spec, drops what is to go, and reports what is cached.
//!
//! The cast: [`follow`] watches the object and writes its status; [`asked`] reads what a spec asks for; [`status`] says
//! what the cache has; [`pace`] decides what is worth a write, and when.
//!
//! Invariants: only an object that is there changes promises: without an API server, and while the object is deleted,
//! those of the store stand. The status is written at most once in ten seconds, and not while nothing changes.
//! A promise is in the store before the status says that it is kept, and counts there as an open dataset does (ADR 28).

pub mod asked;
mod follow;
pub mod pace;
pub mod status;

pub use follow::{follow, follow_with};
