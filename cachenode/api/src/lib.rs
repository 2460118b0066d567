//! How nodes talk to each other about cached blocks.
//!
//! [`frame`] is how bytes of blocks go, on connections of their own; [`v1`] is the gRPC service `CacheNode` for all that is
//! small, generated from `proto/`; `tests/regenerate.rs` fails if what is checked in differs.
//!
//! Invariant: nothing here knows of stores, origins or who asks whom.

pub mod frame;

/// Package `larder.cachenode.v1`.
#[path = "gen/larder.cachenode.v1.rs"]
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    reason = "generated code: the proto is its documentation"
)]
#[rustfmt::skip]
pub mod v1;

/// The protocol number. Both sides send it, and do no more with a peer that has another.
pub const PROTOCOL: u32 = 1;

/// The largest message of gRPC that either side accepts.
pub const MESSAGE_BYTES_MOST: usize = 2 << 20;
