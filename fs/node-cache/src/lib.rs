//! larderd's side of the [`NodeCache`](larder_api::NodeCache) of its node: it keeps the promises of the spec, drops the
//! snapshots that the spec lists for removal, and reports what is cached.
//!
//! The cast: [`follow`] watches the object and writes its status; [`requests`] reads the requests of a spec; [`status`]
//! says what the cache holds; [`pace`] decides which changes are worth a write, and when.
//!
//! Invariants: only an existing object changes promises. Without an API server, and while the object is deleted, the
//! promises in the store stand. The status is written at most once in ten seconds, and only after a change. A promise is
//! in the store before the status says that it is kept, and counts there as an open dataset does (ADR 28).

mod follow;
pub mod pace;
pub mod requests;
pub mod status;

pub use follow::{follow, follow_with};
