//! The timeouts and limits of a client.

use std::time::Duration;

use crate::read::ReadRequest;

/// The timeouts and limits of a client.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// For a connection and its TLS handshake. Default: 500 ms.
    pub connect_timeout: Duration,
    /// For any sign of life while a request is in flight; it needs no disk and no origin. Default: 1 s.
    pub answer_timeout: Duration,
    /// For the bytes, in addition to what [`rate_least`](Self::rate_least) allows. Default: 1 s.
    pub slack: Duration,
    /// How long an answer may take to begin before a second peer is asked, at least. In between it is about the 99th
    /// percentile of the peer's recent answers. Default: 10 ms.
    pub hedge_after_least: Duration,
    /// The same, at most. Default: 500 ms.
    pub hedge_after_most: Duration,
    /// Second peers asked for each 100 reads that could be hedged. Default: 5.
    pub hedge_percent: u32,
    /// Second peers that are asked before that limit applies, and after a pause again. Default: 10.
    pub hedge_burst: u32,
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
    /// Connections to each peer for blocks, made when needed. Default: 2; more cost CPU time, and gained nothing where
    /// it was measured.
    pub lanes: usize,
}

impl Default for PeersConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_millis(500),
            answer_timeout: Duration::from_secs(1),
            slack: Duration::from_secs(1),
            hedge_after_least: Duration::from_millis(10),
            hedge_after_most: Duration::from_millis(500),
            hedge_percent: 5,
            hedge_burst: 10,
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
    /// How long a peer may take to answer a read.
    pub(super) fn read_timeout(&self, request: &ReadRequest) -> Duration {
        let origin = match request {
            ReadRequest { cached_only: true, .. } => Duration::ZERO,
            ReadRequest { forwarded: true, .. } => self.origin_timeout,
            // A peer that may ask a third node waits for that node's origin, too.
            ReadRequest { .. } => self.origin_timeout * 2,
        };
        self.slack + self.transfer(request.range.len) + origin
    }

    /// How long the bytes of a range may be on their way.
    pub(super) fn transfer(&self, bytes: u32) -> Duration {
        Duration::from_secs_f64(f64::from(bytes) / self.rate_least.max(1) as f64)
    }

    /// How long a peer is left alone after this many failures.
    pub(super) fn backoff(&self, failures: u32) -> Duration {
        let doubled = self.backoff_first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.backoff_most)
    }
}
