//! The device plugins beside a fake kubelet that behaves like Kubernetes 1.36.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod allocation;
mod cdi_files;
mod kubelet;
mod lists;
mod node;
mod process;
mod registration;
