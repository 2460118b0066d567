//! The driver against real mounts: the kernel's FUSE and a made-up larderd ([`fake`]). With the real one: `tests/tests/csi.rs`.
//!
//! These tests need root and /dev/fuse, and fail without.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod fake;
mod publish;
mod restart;
mod rig;
mod whole;
