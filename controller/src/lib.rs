//! `larder-controller`: makes datasets of Kubernetes objects.
//!
//! The cast: [`watch`] follows the API; [`state`] keeps what is known, each object cut small; [`queue`] says what to
//! look at next; [`decide`] decides about one dataset, [`nodes`] about one node, [`kueue`] about one job in a queue of
//! Kueue's and [`job`] about training jobs, all pure; [`control`] is the loop that has them all and has the writes
//! executed; [`lease`] lets one of several controllers act.
//!
//! Invariant: nothing that matters is in memory only. A controller that starts reads everything again and comes to the
//! same decisions, whatever its predecessor had begun.

pub mod admin;
pub mod control;
pub mod datasets;
mod execute;
pub mod jobs;
pub mod kueue;
pub mod objects;
pub mod optional_api;
pub mod read;
pub mod state;
pub mod time;
pub mod warm_request;
pub mod watch;
pub mod work_queue;
pub mod write;

pub use control::{Config, run};
