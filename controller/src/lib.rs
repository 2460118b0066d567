//! `larder-controller`: reconciles datasets and training jobs with the objects of a Kubernetes cluster.
//!
//! Parts:
//! - [`watch`] follows the API. [`read`] reduces each object to the fields of [`objects`]. [`state`] stores them and
//!   derives the work that a change causes; [`work_queue`] orders that work.
//! - Four modules decide: [`datasets`] about one dataset or one node, [`jobs`] about all training jobs, [`kueue`] about
//!   one Workload of Kueue, and [`clusters`] about training jobs in other clusters. They are pure, but for the links of
//!   [`clusters`].
//! - [`mod@write`] is a single write; `execute` runs the writes of one work item.
//! - [`control`] is the loop that owns the state and the queue. [`optional_api`] tracks the parts of the API that a
//!   cluster may lack. [`larder_kube::lease`] ensures that only one of several controllers acts.
//!
//! Invariant: the controller's decisions follow from the objects of the cluster alone, and its writes are idempotent.
//! If a controller is killed at any write, its successor reaches the same state.

pub mod admin;
pub mod clusters;
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
