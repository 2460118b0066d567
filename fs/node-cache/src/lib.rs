//! larderd's side of its node's [`NodeCache`](larder_api::NodeCache): it keeps the promises of the spec, enforces its
//! quotas, drops the snapshots that the spec lists for removal, and reports what is cached.
//!
//! Its parts: [`follow`] watches the object and writes its status; [`requests`] parses the requests of a spec;
//! [`status`] builds the status from the state of the cache; [`pace`] decides which changes are written, and when.
//!
//! Invariants: only an existing object changes promises and quotas. Without an API server, and while the object is
//! deleted, those in the store stay in force. The status is written at most once in ten seconds, and only after a
//! change. A promise is in the store before the status reports it as kept, and the store counts it like an open dataset
//! (ADR 28).

mod follow;
pub mod pace;
pub mod requests;
pub mod status;

pub use follow::{follow, follow_with};
