//! Shared parts of tests. Only development dependencies may name this crate; no program links it.
//!
//! - [`FaultProxy`] breaks HTTP on the wire, in front of any S3 endpoint.
//! - [`TempTree`] makes reference folders whose bytes are derived from a seed.
//! - [`RealServer`] starts and stops MinIO, Ceph, or an emulator of a cloud's object store.
//! - [`FailingDisk`] is an ext4 on a disk with bad sectors, or one that is slow or frozen.
//! - [`FakeApi`] is an in-memory API server.
//! - [`FakeSts`] gives keys for tokens.
//! - [`Cluster`] is a real Kubernetes cluster: a test's own, or a cluster that the tests of a run share.
//! - [`kernel`] is the kernel's side of a FUSE connection.
//! - [`machine`] creates fake machines with GPUs and HCAs, in a directory.
//! - [`scaled`] gives the number of repetitions of a test's steps.
//! - [`repository`] is the path of the clone in which the test runs.
//! - [`FakeNvml`] is a `libnvidia-ml.so.1` that reports the GPUs of a test ([`nvml`]).
//! - [`larder_binary`] is the path of the command that was built with the test.

mod binary;
mod cluster;
mod failing_disk;
pub mod fake_api;
mod fake_nvml;
mod fake_sts;
mod fault_proxy;
pub mod kernel;
mod real_server;
mod repository;
mod scale;
mod temp_tree;

pub use binary::{built, built_library, earlier, larder_binary};
pub use cluster::{Cluster, kustomize};
pub use failing_disk::{DiskErrors, FailingDisk, FrozenDisk};
pub use fake_api::FakeApi;
pub use fake_nvml::FakeNvml;
pub use fake_sts::{FakeSts, StsAnswer, StsRequest};
pub use fault_proxy::{Fault, FaultProxy, ProxyCounters, RequestHead};
pub use larder_fake_machine as machine;
pub use larder_fake_nvml as nvml;
pub use real_server::{RealServer, ServerKind};
pub use repository::repository;
pub use scale::scaled;
pub use temp_tree::{TempTree, seeded_bytes};
