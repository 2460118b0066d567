//! Shared parts of tests. Only development dependencies may name this crate; no program links it.
//!
//! - [`FaultProxy`] breaks HTTP on the wire, in front of any S3 endpoint.
//! - [`TempTree`] makes reference folders whose bytes follow from a seed.
//! - [`RealServer`] starts a MinIO, a Ceph or an emulator of a cloud's store and stops it.
//! - [`FailingDisk`] is an ext4 with bad sectors.
//! - [`FakeApi`] is an API server in memory.
//! - [`Cluster`] is a real Kubernetes: one of a test's own, or the one that the tests of a run share.
//! - [`kernel`] is the kernel's side of a FUSE connection.
//! - [`machine`] is fake machines with GPUs and HCAs, in a directory.
//! - [`scaled`] is how often a test repeats its steps.
//! - [`repository`] is the clone that the test runs in.
//! - [`FakeNvml`] is a `libnvidia-ml.so.1` that reports the GPUs of a test ([`nvml`]).
//! - [`larder_binary`] is the command as it was built beside the test.

mod binary;
mod cluster;
mod failing_disk;
pub mod fake_api;
mod fake_nvml;
mod fault_proxy;
pub mod kernel;
mod real_server;
mod repository;
mod scale;
mod temp_tree;

pub use binary::{built, built_library, larder_binary};
pub use cluster::Cluster;
pub use failing_disk::{DiskErrors, FailingDisk};
pub use fake_api::FakeApi;
pub use fake_nvml::FakeNvml;
pub use fault_proxy::{Fault, FaultProxy, ProxyCounters, RequestHead};
pub use larder_fake_machine as machine;
pub use larder_fake_nvml as nvml;
pub use real_server::{RealServer, ServerKind};
pub use repository::repository;
pub use scale::scaled;
pub use temp_tree::{TempTree, seeded_bytes};
