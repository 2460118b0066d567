//! The parts that the clients of `larderd`, the node daemon, share with it.
//!
//! - [`v1`]: its gRPC service, generated from `proto/`; `tests/regenerate.rs` fails if the checked-in code differs.
//! - [`handover`]: the socket over which FUSE connections change hands.
//! - [`socket`]: the names of both sockets, and how to connect to them.
//! - [`convert`]: the dataset of a request as a [`larder_dataset::DatasetSpec`], and back.
//! - [`mountinfo`]: how a Larder mount is recognized.
//!
//! Invariant: credentials print as the names of their variables.

#![warn(missing_docs)]

pub mod convert;
mod credentials;
pub mod handover;
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
