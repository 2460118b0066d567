//! How nodes share what they have cached.
//!
//! The cast: [`server`] serves blocks to peers, which it gets from an implementation of [`blocks::Blocks`]; [`client`]
//! reads from peers and bypasses those that fail; [`read`] holds the request and the answer that both sides use;
//! [`membership`] says which nodes there are; [`tls`] authenticates them; [`counters`] counts all of it. [`token`] is a
//! dataset's secret, [`buffers`] is memory that is reused, `wire` is a connection of either side, and `convert`
//! translates between wire types and ours.
//!
//! Invariants: bytes from a peer have the requested length and match the checksum they came with; a peer that does not
//! answer costs a reader a bounded time, once and not for every request; bytes in flight to peers are bounded.
//!
//! This crate does not know where blocks come from, which node should have which block, or what a file is.

#![warn(missing_docs)]

pub mod blocks;
pub mod buffers;
pub mod client;
mod convert;
pub mod counters;
pub mod membership;
pub mod read;
pub mod server;
pub mod tls;
pub mod token;
mod wire;

pub use blocks::{AskedDataset, Blocks, DatasetStats, OtherSnapshot};
pub use buffers::Buffers;
pub use client::{HedgeCounts, NodeInfo, NodeStats, PeerError, PeerStatus, Peers, PeersConfig};
pub use counters::{Cause, PeerCounters};
pub use membership::{MemberSource, Membership, Node, NodeList};
pub use read::{BlockBytes, ReadError, ReadRequest};
pub use server::{Server, ServerConfig};
pub use tls::{Security, Tls, TlsFiles};
pub use token::{InvalidToken, Token};
