//! The driver with real FUSE mounts and a fake larderd ([`fake`]). `tests/tests/e2e/csi.rs` has the real larderd.
//!
//! These tests need root and /dev/fuse, and fail without them.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod clouds;
mod credentials;
mod fake;
mod publish;
mod quotas;
mod republish;
mod restart;
mod rig;
mod whole;
