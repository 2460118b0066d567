//! The protocols between nodes for cached blocks.
//!
//! [`frame`] carries bytes of blocks on connections of their own. [`v1`] is the gRPC service `CacheNode` for everything
//! small, generated from `proto/`; `tests/regenerate.rs` fails if the checked-in code differs.
//!
//! Invariant: this crate knows nothing about stores or origins, or about which node asks which.

#![warn(missing_docs)]

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

/// The protocol number. Each side sends it and rejects a peer with another number. In 1, requests named snapshots, and a
/// node answered with the bytes of any place and owner.
pub const PROTOCOL: u32 = 2;

/// The largest gRPC message that either side accepts.
pub const MESSAGE_BYTES_MOST: usize = 2 << 20;
