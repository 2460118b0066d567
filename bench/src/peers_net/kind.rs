//! The servers that are compared.

use serde::{Deserialize, Serialize};

/// The server that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ServerKind {
    /// Bytes over a socket, a connection and a thread for each reader.
    RawTcp,
    /// The same with a CRC32C of each record, computed by one side and checked by the other.
    RawSummed,
    /// A peer that has the blocks in memory, without TLS.
    Peer,
    /// The same with TLS on both sides.
    PeerTls,
    /// A peer that has the blocks in its store, on disk; without TLS.
    PeerStore,
    /// The same with TLS on both sides.
    PeerStoreTls,
    /// An S3 server, read with the client that the mount uses.
    Origin,
}

impl ServerKind {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 7] =
        [Self::RawTcp, Self::RawSummed, Self::Peer, Self::PeerTls, Self::PeerStore, Self::PeerStoreTls, Self::Origin];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RawTcp => "raw TCP",
            Self::RawSummed => "raw TCP, summed",
            Self::Peer => "peer, memory",
            Self::PeerTls => "peer, memory, mTLS",
            Self::PeerStore => "peer, store",
            Self::PeerStoreTls => "peer, store, mTLS",
            Self::Origin => "origin (S3)",
        }
    }
}
