//! Shared parts of the scenarios: [`Lab`], an S3 server with a fault proxy in front of it and a home folder for the
//! command; [`Mount`], a dataset mounted by the real binary; [`nodes::Nodes`], a lab of several nodes;
//! [`platform::Platform`], a Kubernetes with Larder; [`devices::Devices`], a Kubernetes with fake GPUs and HCAs;
//! [`Watch`], the changes of Kubernetes objects.
//!
//! Invariant: whatever a test does, when its `Lab` and `Mount`s are dropped, no mount, process or file of it is left.
#![expect(clippy::unwrap_used, clippy::panic, reason = "this is test code: a panic is how it fails")]

pub mod certificates;
pub mod devices;
mod ioctl;
mod keeper;
mod lab;
mod larderd;
mod memory_cgroup;
mod mount;
pub mod network;
pub mod nodes;
pub mod platform;
mod plugin;
mod process;
mod systemd;
mod waiting;
mod watch;

pub use ioctl::ioctl;
pub use keeper::Keeper;
pub use lab::{BUCKET, Lab, OTHER_KEYS, SECRET};
pub use larderd::{Larderd, TOKEN, memory_mib_most};
pub use memory_cgroup::MemoryCgroup;
pub use mount::Mount;
pub use plugin::Plugin;
pub use process::{assert_private, connections_of, memory_kib};
pub use systemd::Systemd;
pub use waiting::wait_until;
pub use watch::Watch;
