//! Reads blocks from other nodes, and bypasses those that fail.
//!
//! The cast: [`Peers`] is all other nodes, and reads from one of them. A `peer` is one of them, with its health and
//! what it refused. Requests go over a `connection`: a `lane` for blocks, a `link` for gRPC. `error` is why a read
//! failed, `status` what is known about peers, `context` what all peers share. Where several peers may have a block,
//! `hedge` asks a second one before the first has failed: `first_bytes` says when, `hedge_budget` how often, and
//! `progress` is how far a read is.
//!
//! Timeouts: a peer must give a sign of life within [`PeersConfig::answer_timeout`], since that needs nothing but the
//! node; a silent lane is pinged. The bytes must arrive at [`PeersConfig::rate_least`] on average, plus
//! [`PeersConfig::origin_timeout`] where the peer may have to ask the origin. The request carries that timeout, and the
//! peer refuses a range that it cannot have by then; a peer that does not even refuse is down.
//!
//! Invariants: a returned range has the requested length and matches its checksum; the peer, too, abandons a read that
//! is dropped.

pub use config::PeersConfig;
pub use error::PeerError;
pub use hedge::HedgeCounts;
pub use peers::Peers;
pub use status::{NodeInfo, NodeStats, PeerStatus};

mod config;
mod connection;
mod context;
mod error;
mod first_bytes;
mod hedge;
mod hedge_budget;
mod lane;
mod link;
mod peer;
mod peers;
mod progress;
mod status;
