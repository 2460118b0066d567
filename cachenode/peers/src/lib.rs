//! Sharing of cached blocks between nodes.
//!
//! Its parts: [`server`] serves blocks to peers and gets them from an implementation of [`blocks::Blocks`]; [`client`]
//! reads from peers and bypasses those that fail; [`read`] holds the request and the answer that both sides use;
//! [`membership`] lists the nodes; [`tls`] authenticates them; [`counters`] counts what both sides do. [`token`] is a
//! dataset's secret, [`buffers`] is reusable memory, `wire` is a connection of either side, and `convert` translates
//! between wire types and the crate's own types.
//!
//! Invariants: bytes from a peer have the requested length and match the checksum that came with them. A peer that does
//! not answer costs a reader a bounded time, once and not for every request. Bytes in flight to peers are bounded.
//!
//! This crate does not know the source of blocks, which node should have which block, or files.

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
