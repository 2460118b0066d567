//! A node as Kubernetes runs it, and the datasets that it serves: for benchmarks of the node and not of a single mount.
//!
//! The cast: `Origin` is an S3 server with datasets that can stop answering; `Node` is a `larderd` and a
//! `larder-csi`, which makes the mounts and holds their connections; `fill` reads until everything is cached.
//!
//! Invariant: when a `Node` is dropped, its processes have ended and its mounts are detached, so that no reader waits
//! for it any more.

mod filling;
mod origin;
mod running;

pub(crate) use filling::fill;
pub(crate) use origin::{Origin, OriginOptions};
pub(crate) use running::Node;
pub use running::NodePrograms;
