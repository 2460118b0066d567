//! Reads blocks from other nodes, and bypasses those that fail.
//!
//! Its parts: [`Peers`] is all other nodes, and reads from one of them. A `peer` is one node, with its health and its
//! refusals. Requests use a `connection`: a `lane` for blocks, a `link` for gRPC. `error` describes why a read failed,
//! `status` what is known about peers, `context` what all peers share. If several peers may have a block, `hedge` asks
//! a second peer before the first has failed: `first_bytes` decides when, `hedge_budget` how often, and `progress`
//! tracks how far a read has got.
//!
//! Timeouts: a peer must send something within [`PeersConfig::answer_timeout`], because that requires no disk and no
//! origin. A silent lane is pinged. The bytes must arrive at [`PeersConfig::rate_least`] on average, plus
//! [`PeersConfig::origin_timeout`] if the peer may have to ask the origin. The request carries that timeout, and the
//! peer refuses a range that it cannot have by then. A peer that does not even refuse is down.
//!
//! Invariants: a returned range has the requested length and matches its checksum. If a read is dropped, the peer
//! abandons it too.

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
