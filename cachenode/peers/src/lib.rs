//! What nodes do for each other with what they have cached.
//!
//! The cast: [`blocks`] is what a node gives away, and how it refuses; [`server`] serves that to peers; [`client`] reads from
//! them, and goes round those that fail; [`membership`] says who they are; [`tls`] is how each knows the other; [`counters`]
//! counts all of it. `buffers` is memory that is used again, `wire` is a connection of either side, `convert` knows both what goes over it and our types, `chain` writes errors.
//!
//! Invariants: bytes from a peer are the length that was asked for and match the checksum they came with; a peer that does
//! not answer costs the one who asks a bounded time, and not one request after the other; what is on its way to peers is
//! bounded in bytes.
//!
//! It does not know where blocks come from, which node should have which, or what a file is.

pub mod blocks;
mod buffers;
mod chain;
pub mod client;
mod convert;
pub mod counters;
pub mod membership;
pub mod server;
pub mod tls;
mod wire;

pub use blocks::{Ask, Blocks, DatasetStats, Given, ReadError, Token, Want};
pub use buffers::Buffers;
pub use client::{NodeInfo, NodeStats, PeerError, PeerStatus, Peers, PeersConfig};
pub use counters::{Cause, PeerCounters};
pub use membership::{Membership, Node, NodeList, Source};
pub use server::{Server, ServerConfig};
pub use tls::{Security, Tls, TlsFiles};
