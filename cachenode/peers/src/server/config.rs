//! How a node serves its peers.

use std::time::Duration;

/// How a node serves its peers.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The node's name.
    pub node: String,
    /// The most bytes of blocks in flight to all peers. Default: 64 MiB; at least 4 MiB.
    pub in_flight_bytes: u64,
    /// The same for one peer, which is an IP address. Default: half of it; at least 4 MiB.
    pub peer_in_flight_bytes: u64,
    /// The longest that a read may take, whatever deadline the peer asks for. Default: 30 s.
    pub deadline_most: Duration,
    /// Requests in flight at once; more are rejected. Default: 8192.
    pub requests_most: usize,
    /// Connections at once whose handshake is finished; more are rejected. Default: 4096.
    pub connections_most: usize,
    /// The same for one address. Default: 256.
    pub connections_each_most: usize,
    /// Connections at once whose handshake is not; the oldest makes room for a new one. Default: 1024.
    pub handshakes_most: usize,
    /// The same for one address, or one IPv6 network of 64 bits. Default: 64.
    pub handshakes_each_most: usize,
    /// How long the start of a connection may take: TLS, and a lane's hello. Default: 5 s.
    pub handshake_timeout: Duration,
    /// A connection older than this is closed when its requests are done, so that its peer presents its certificate
    /// again. Default: 10 minutes.
    pub connection_age_most: Duration,
    /// How long requests in flight may take to finish once the server stops. Default: 5 s.
    pub stop_timeout: Duration,
}

impl ServerConfig {
    /// The defaults, for the node of this name.
    pub fn new(node: impl Into<String>) -> Self {
        Self {
            node: node.into(),
            in_flight_bytes: 64 << 20,
            peer_in_flight_bytes: 32 << 20,
            deadline_most: Duration::from_secs(30),
            requests_most: 8192,
            connections_most: 4096,
            connections_each_most: 256,
            handshakes_most: 1024,
            handshakes_each_most: 64,
            handshake_timeout: Duration::from_secs(5),
            connection_age_most: Duration::from_secs(600),
            stop_timeout: Duration::from_secs(5),
        }
    }
}
