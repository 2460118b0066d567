//! How one talks to `larderd`, the node daemon.
//!
//! [`v1`] is its gRPC service on a unix socket, generated from `proto/`; `tests/regenerate.rs` fails if what is checked in
//! differs. [`handover`] is the socket beside it, over which FUSE connections change hands.
//!
//! Invariant: credentials print as the names of their variables.

pub mod convert;
pub mod handover;
mod peer;
mod socket_path;

pub use socket_path::{SocketDir, connect_channel};

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

impl std::fmt::Debug for v1::Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}
