//! The device plugins beside a kubelet that behaves as that of Kubernetes 1.36 does.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod allocation;
mod cdi_files;
mod kubelet;
mod lists;
mod node;
mod process;
mod registration;
