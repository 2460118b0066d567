//! The settings of a server.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// How far away a server seems to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distance {
    /// How long each answer takes at least.
    pub delay: Duration,
    /// How many bytes per second all answers have together; `None`: any number.
    pub bytes_per_second: Option<u64>,
    /// How many bytes per second each connection has; `None`: any number.
    pub connection_bytes_per_second: Option<u64>,
}

/// The settings of a server.
#[derive(Clone)]
pub struct S3ServerConfig {
    /// The address to listen on; port 0 picks a free port.
    pub address: SocketAddr,
    /// The key id that has access to all buckets.
    pub access_key: String,
    /// Additional key ids that have access, with the same secret.
    pub other_access_keys: Vec<String>,
    /// The secret of all key ids.
    pub secret_key: String,
    /// Buckets that exist from the start. A put creates additional buckets.
    pub buckets: Vec<String>,
    /// True to answer plain GETs and HEADs without checking their signatures, so that a benchmark does not measure the
    /// server.
    pub unchecked_gets: bool,
    /// How far away it seems to be.
    pub distance: Distance,
}

impl Default for S3ServerConfig {
    /// A free loopback port, the key pair `larder` / `larder-secret`, and no bucket.
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            access_key: "larder".into(),
            other_access_keys: Vec::new(),
            secret_key: "larder-secret".into(),
            buckets: Vec::new(),
            unchecked_gets: false,
            distance: Distance::default(),
        }
    }
}

impl fmt::Debug for S3ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3ServerConfig")
            .field("address", &self.address)
            .field("access_key", &self.access_key)
            .field("other_access_keys", &self.other_access_keys)
            .field("buckets", &self.buckets)
            .field("unchecked_gets", &self.unchecked_gets)
            .field("distance", &self.distance)
            .finish_non_exhaustive()
    }
}
