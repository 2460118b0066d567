//! What tests share. Only development dependencies may name this crate; no program links it.
//!
//! - [`FaultProxy`] breaks HTTP on the wire, in front of any S3 endpoint.
//! - [`TempTree`] makes reference folders whose bytes follow from a seed.
//! - [`RealServer`] starts a MinIO or a Ceph and stops it.
//! - [`Cluster`] is a real Kubernetes: one of a test's own, or the one that the tests of a run share.
//! - [`scaled`] says how often a test repeats what it repeats.
//! - [`repository`] is the clone that the test runs in.
//! - [`larder_binary`] is the command as it was built beside the test.

mod binary;
mod cluster;
mod fault_proxy;
mod real_server;
mod repository;
mod scale;
mod temp_tree;

pub use binary::{built, larder_binary};
pub use cluster::Cluster;
pub use fault_proxy::{Fault, FaultProxy, ProxyCounters, RequestHead};
pub use real_server::{RealServer, ServerKind};
pub use repository::repository;
pub use scale::scaled;
pub use temp_tree::{TempTree, seeded_bytes};
