//! Code that `larderd`, the node daemon, shares with its clients.
//!
//! - [`v1`]: its gRPC service, generated from `proto/`; `tests/regenerate.rs` fails if the checked-in code differs.
//! - [`fuse_mount`]: FUSE mounts whose connection another process can serve.
//! - [`handover`]: the socket over which processes hand over FUSE connections.
//! - [`socket`]: the names of both sockets, and functions to connect to them.
//! - [`convert`]: conversion of a request's dataset to a [`larder_dataset::DatasetSpec`] and back.
//! - [`mountinfo`]: recognition of Larder mounts.
//!
//! Invariant: credentials print only the names of their variables.

#![warn(missing_docs)]

pub mod convert;
mod credentials;
pub mod fuse_mount;
pub mod handover;
mod kept_mount;
pub mod mountinfo;
mod peer_uid;
pub mod socket;

pub use socket::{SocketDir, connect_channel};

/// Package `larder.daemon.v1`.
#[path = "gen/larder.daemon.v1.rs"]
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    reason = "generated code: the proto is its documentation"
)]
#[rustfmt::skip]
pub mod v1;
