//! How nodes talk to each other about cached blocks.
//!
//! [`v1`] is the gRPC service `CacheNode`, generated from `proto/`; `tests/regenerate.rs` fails if what is checked in
//! differs. The constants beside it are the limits that both sides hold each other to.
//!
//! Invariant: nothing here knows of stores, origins or who asks whom.

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

/// The most bytes of a block that one message carries.
pub const PIECE_BYTES: u32 = 1 << 20;

/// The most ranges that one request asks for.
pub const WANTS_MOST: usize = 1024;

/// The most bytes that one request asks for.
pub const READ_BYTES_MOST: u64 = 64 << 20;

/// The most blocks that one request asks about.
pub const HAVE_BLOCKS_MOST: u32 = 1 << 20;

/// The largest message that either side accepts: a piece, and what names it.
pub const MESSAGE_BYTES_MOST: usize = 2 << 20;
