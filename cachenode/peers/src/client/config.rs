//! The timeouts and limits of a client.

use std::time::Duration;

use crate::read::ReadRequest;

/// The timeouts and limits of a client.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// The limit for opening a connection, including its TLS handshake. Default: 500 ms.
    pub connect_timeout: Duration,
    /// The limit for any message from the peer while a request is in flight. Sending one needs no disk and no origin.
    /// Default: 1 s.
    pub answer_timeout: Duration,
    /// Time for the bytes, in addition to the time that [`rate_least`](Self::rate_least) allows. Default: 1 s.
    pub slack: Duration,
    /// The shortest wait for an answer to begin before a second peer is asked. The wait is about the 99th percentile of
    /// the peer's recent answers, within this limit and the next. Default: 10 ms.
    pub hedge_after_least: Duration,
    /// The longest such wait. Default: 500 ms.
    pub hedge_after_most: Duration,
    /// The most hedges (second peers asked) per 100 reads that could be hedged. Default: 5.
    pub hedge_percent: u32,
    /// Hedges that are allowed before that limit applies. A pause restores them. Default: 10.
    pub hedge_burst: u32,
    /// The lowest rate, in bytes per second, that a peer must reach. Default: 4 MB/s.
    pub rate_least: u64,
    /// Time added because the peer may have to ask the origin. Added twice if the peer may ask a third node. Default: 4
    /// s.
    pub origin_timeout: Duration,
    /// The number of consecutive reads refused as timed out after which a peer is too slow and goes down. Default: 4.
    pub slow_in_a_row: u32,
    /// How long a peer that went down is not contacted. Doubles with each failure. Default: 500 ms.
    pub backoff_first: Duration,
    /// The limit of that doubling. Default: 5 s.
    pub backoff_most: Duration,
    /// How long the client remembers that a peer does not serve a dataset, or not to this node. Default: 5 s.
    pub refusal_memory: Duration,
    /// The number of connections to each peer for blocks, opened when needed. Default: 2. More cost CPU time and were
    /// no faster in measurements.
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
            // A peer that asks a third node may wait for that node's origin too.
            ReadRequest { .. } => self.origin_timeout * 2,
        };
        self.slack + self.transfer(request.range.len) + origin
    }

    /// How long the transfer of a range may take.
    pub(super) fn transfer(&self, bytes: u32) -> Duration {
        Duration::from_secs_f64(f64::from(bytes) / self.rate_least.max(1) as f64)
    }

    /// How long a peer is not contacted after this many failures.
    pub(super) fn backoff(&self, failures: u32) -> Duration {
        let doubled = self.backoff_first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.backoff_most)
    }
}
