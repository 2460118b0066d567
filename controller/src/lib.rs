//! `larder-controller`: reconciles datasets and training jobs with the objects of a Kubernetes cluster.
//!
//! The cast: [`watch`] follows the API, and [`read`] cuts each object to the fields of [`objects`]; [`state`] keeps
//! them, and says which work a change makes; [`work_queue`] orders the work; the two wings decide, both pure:
//! [`datasets`] about one dataset or one node, [`jobs`] about all training jobs, and [`kueue`] about one Workload of
//! Kueue; [`mod@write`] is one write, of which `execute` runs those of one piece of work; [`control`] is the loop that
//! owns the state and the queue; [`optional_api`] tracks the parts of the API that a cluster may lack. One of several
//! controllers acts at a time, by [`larder_kube::lease`].
//!
//! Invariant: what the controller decides follows from the objects of the cluster alone, and repeating one of its
//! writes changes nothing. A controller that is killed at any write is followed by one that reaches the same state.

pub mod admin;
pub mod control;
pub mod datasets;
mod events;
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
