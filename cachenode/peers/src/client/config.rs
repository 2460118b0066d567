//! The timeouts and limits of a client.

use std::time::Duration;

/// The timeouts and limits of a client.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// For a connection and its TLS handshake. Default: 500 ms.
    pub connect_timeout: Duration,
    /// For any sign of life while a request is in flight; it needs no disk and no origin. Default: 1 s.
    pub answer_timeout: Duration,
    /// For the bytes, in addition to what [`rate_least`](Self::rate_least) allows. Default: 1 s.
    pub slack: Duration,
    /// Bytes a second that a peer must reach. Default: 4 MB/s.
    pub rate_least: u64,
    /// Added because the peer may have to ask the origin; twice if it may ask a third node. Default: 4 s.
    pub origin_timeout: Duration,
    /// A peer that refuses this many reads in a row as timed out is too slow and goes down. Default: 4.
    pub slow_in_a_row: u32,
    /// How long a peer that went down is left alone. Default: 500 ms; doubles with each failure.
    pub backoff_first: Duration,
    /// The limit of that. Default: 5 s.
    pub backoff_most: Duration,
    /// How long the client remembers that a peer does not serve a dataset, or not to this node. Default: 5 s.
    pub refusal_memory: Duration,
    /// Connections to each peer for blocks, made when needed. Default: 2; more cost CPU time, and gained nothing where it was
    /// measured.
    pub lanes: usize,
}

impl Default for PeersConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_millis(500),
            answer_timeout: Duration::from_secs(1),
            slack: Duration::from_secs(1),
            rate_least: 4_000_000,
            origin_timeout: Duration::from_secs(4),
            slow_in_a_row: 4,
            backoff_first: Duration::from_millis(500),
            backoff_most: Duration::from_secs(5),
            refusal_memory: Duration::from_secs(5),
            lanes: 2,
        }
    }
}

impl PeersConfig {
    /// How long a read of this many bytes may take.
    pub(super) fn read_timeout(&self, bytes: u64, forwarded: bool) -> Duration {
        let transfer = Duration::from_secs_f64(bytes as f64 / self.rate_least.max(1) as f64);
        // A peer that may ask a third node waits for that node's origin, too.
        let origin = self.origin_timeout * if forwarded { 1 } else { 2 };
        self.slack + transfer + origin
    }

    /// How long a peer is left alone after this many failures.
    pub(super) fn backoff(&self, failures: u32) -> Duration {
        let doubled = self.backoff_first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.backoff_most)
    }
}
