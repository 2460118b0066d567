//! The limits and timeouts of a node's server for peers.

use std::time::Duration;

/// The limits and timeouts of a node's server for peers.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The node's name within the cluster.
    pub node: String,
    /// The most bytes of blocks in flight to all peers. Default: 64 MiB; at least 4 MiB.
    pub in_flight_bytes: u64,
    /// The same limit for one peer, identified by its IP address. Default: half of `in_flight_bytes`; at least 4 MiB.
    pub peer_in_flight_bytes: u64,
    /// The longest time for a read; it caps the deadline that the peer requests. Default: 30 s.
    pub deadline_most: Duration,
    /// The most requests in flight; more are rejected. Default: 8192.
    pub requests_most: usize,
    /// The most connections whose handshake is finished; more are rejected. Default: 4096.
    pub connections_most: usize,
    /// The same limit for one address. Default: 256.
    pub connections_each_most: usize,
    /// The most connections whose handshake is not finished. Beyond that, a new connection replaces the oldest.
    /// Default: 1024.
    pub handshakes_most: usize,
    /// The same limit for one IPv4 address or one 64-bit IPv6 network. Default: 64.
    pub handshakes_each_most: usize,
    /// The limit for the start of a connection: TLS and a lane's hello. Default: 5 s.
    pub handshake_timeout: Duration,
    /// The limit for a gRPC request, from its head to its answer. Default: 10 s.
    pub request_timeout: Duration,
    /// The age at which a connection is closed once its requests are done, so that its peer presents its certificate
    /// again. Default: 10 minutes.
    pub connection_age_most: Duration,
    /// How long requests in flight may take to finish once the server stops. Default: 5 s.
    pub stop_timeout: Duration,
}

impl ServerConfig {
    /// The defaults, for the node called `node`.
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
            request_timeout: Duration::from_secs(10),
            connection_age_most: Duration::from_secs(600),
            stop_timeout: Duration::from_secs(5),
        }
    }
}
