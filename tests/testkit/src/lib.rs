//! What tests share. A dev-dependency only: no binary links it.
//!
//! - [`FaultProxy`] breaks HTTP on the wire, in front of any S3 endpoint.
//! - [`TempTree`] makes reference folders whose bytes a test can tell again.
//! - [`RealServer`] starts a MinIO or a Ceph and takes it away again.
//! - [`Cluster`] starts a Kubernetes and takes it away again.
//! - [`repository`] is the clone that the test runs in.
//! - [`larder_binary`] is the command as it was built beside the test.

mod binary;
mod cluster;
mod fault_proxy;
mod real_server;
mod repository;
mod temp_tree;

pub use binary::{built, larder_binary};
pub use cluster::Cluster;
pub use fault_proxy::{Fault, FaultProxy, ProxyCounters, RequestHead};
pub use real_server::{RealServer, ServerKind};
pub use repository::repository;
pub use temp_tree::{TempTree, seeded_bytes};
