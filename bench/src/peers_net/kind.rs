//! The servers that are compared.

use serde::{Deserialize, Serialize};

/// A server to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ServerKind {
    /// Raw TCP, with a connection and a thread per reader.
    RawTcp,
    /// Raw TCP with a CRC32C per record, computed by one end and verified by the other.
    RawSummed,
    /// Mutual TLS by the library that peers use, with a connection and a thread per reader.
    RawTls,
    /// A peer that serves from memory, without TLS.
    Peer,
    /// A peer that serves from memory, with mutual TLS.
    PeerTls,
    /// A peer that serves from its store on disk, without TLS.
    PeerStore,
    /// A peer that serves from its store on disk, with mutual TLS.
    PeerStoreTls,
    /// An S3 server, read with the client of mounts.
    Origin,
}

impl ServerKind {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 8] = [
        Self::RawTcp,
        Self::RawSummed,
        Self::RawTls,
        Self::Peer,
        Self::PeerTls,
        Self::PeerStore,
        Self::PeerStoreTls,
        Self::Origin,
    ];

    /// True if the connections are encrypted, which raw TLS bounds.
    pub(super) fn is_encrypted(self) -> bool {
        matches!(self, Self::RawTls | Self::PeerTls | Self::PeerStoreTls)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RawTcp => "raw TCP",
            Self::RawSummed => "raw TCP, summed",
            Self::RawTls => "raw TLS",
            Self::Peer => "peer, memory",
            Self::PeerTls => "peer, memory, mTLS",
            Self::PeerStore => "peer, store",
            Self::PeerStoreTls => "peer, store, mTLS",
            Self::Origin => "origin (S3)",
        }
    }
}
