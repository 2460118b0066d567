//! The counters of client and server. Callers pass them in, so that tests and metrics can read them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::read::ReadError;

/// Why a peer failed. A closed set, which suits a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// No connection: no process listens on the address, or one side does not accept the other's certificate.
    Connect,
    /// No answer, or an answer that was too slow.
    TimedOut,
    /// The connection broke, or the peer failed.
    Broken,
    /// The connection ended within a range.
    Truncated,
    /// A checksum was wrong.
    WrongBytes,
    /// The answer did not belong to the request.
    WrongBlock,
    /// The peer speaks another version of the protocol.
    OtherProtocol,
    /// The peer is stopping.
    Stopping,
}

impl Cause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Connect,
        Self::TimedOut,
        Self::Broken,
        Self::Truncated,
        Self::WrongBytes,
        Self::WrongBlock,
        Self::OtherProtocol,
        Self::Stopping,
    ];

    /// The cause's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::TimedOut => "timed_out",
            Self::Broken => "broken",
            Self::Truncated => "truncated",
            Self::WrongBytes => "wrong_bytes",
            Self::WrongBlock => "wrong_block",
            Self::OtherProtocol => "other_protocol",
            Self::Stopping => "stopping",
        }
    }
}

/// The names of refusals in metrics, in the order of [`refusal_number`].
const REFUSALS: [&str; 8] =
    ["unknown_dataset", "denied", "no_such_range", "gone", "stale", "timed_out", "unavailable", "stopping"];

fn refusal_number(error: &ReadError) -> usize {
    match error {
        ReadError::UnknownDataset => 0,
        ReadError::Denied => 1,
        ReadError::NoSuchRange => 2,
        ReadError::Gone => 3,
        ReadError::Stale => 4,
        ReadError::TimedOut => 5,
        ReadError::Unavailable { .. } => 6,
        ReadError::Stopping => 7,
    }
}

/// A count for each kind of refusal.
#[derive(Debug, Default)]
pub struct RefusalCounters([AtomicU64; 8]);

impl RefusalCounters {
    pub(crate) fn add(&self, error: &ReadError) {
        self.0[refusal_number(error)].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of refusals of this kind, with any message.
    pub fn of(&self, error: &ReadError) -> u64 {
        self.0[refusal_number(error)].load(Ordering::Relaxed)
    }

    /// The name and count of each kind of refusal.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REFUSALS.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The same for those who must not learn whether a dataset exists: both refusals that reveal it share one count.
    pub fn for_all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let not_served = self.of(&ReadError::UnknownDataset) + self.of(&ReadError::Denied);
        self.all().filter_map(move |(name, count)| match name {
            "denied" => None,
            "unknown_dataset" => Some(("not_served", not_served)),
            _ => Some((name, count)),
        })
    }
}

/// All counters about peers. A node's client and server share them.
#[derive(Debug, Default)]
pub struct PeerCounters {
    /// Requests sent to peers.
    pub reads: AtomicU64,
    /// Bytes received from peers whose checksum was right.
    pub read_bytes: AtomicU64,
    /// Reads that were not sent, or were abandoned, because their peer is down.
    pub bypassed: AtomicU64,
    /// Reads that were not hedged although the first peer was slow, because the budget was spent.
    pub hedges_held_back: AtomicU64,
    /// How often a peer went down.
    pub went_down: AtomicU64,
    /// How often a peer came back up.
    pub came_back: AtomicU64,
    /// Connections made to peers.
    pub connections: AtomicU64,
    errors: [AtomicU64; Cause::ALL.len()],
    /// Ranges that peers refused to this node.
    pub refused_by_peers: RefusalCounters,

    /// Ranges sent to peers in full.
    pub served_reads: AtomicU64,
    /// Bytes of ranges sent to peers, including those of ranges refused partway.
    pub served_bytes: AtomicU64,
    /// Ranges that this node refused to peers.
    pub refused: RefusalCounters,
    /// Requests rejected before they were read: malformed, of another protocol, over the limit, or while stopping.
    pub turned_away: AtomicU64,
    /// Connections rejected: no accepted certificate, no handshake in time, or too many.
    pub not_let_in: AtomicU64,
    /// Connections closed because the peer stopped reading.
    pub cut: AtomicU64,
    /// Gauge: bytes of blocks in flight to peers.
    pub under_way_bytes: AtomicU64,
    /// The maximum of [`under_way_bytes`](Self::under_way_bytes) so far.
    pub under_way_bytes_most: AtomicU64,
}

impl PeerCounters {
    /// Reads that failed for this cause and took the peer down, or found it still down.
    pub fn errors(&self, cause: Cause) -> u64 {
        self.errors[cause as usize].load(Ordering::Relaxed)
    }

    /// Reads that peers refused because they do not serve the dataset to this node.
    pub fn not_served_by_peers(&self) -> u64 {
        [ReadError::UnknownDataset, ReadError::Denied].iter().map(|error| self.refused_by_peers.of(error)).sum()
    }

    pub(crate) fn add_error(&self, cause: Cause) {
        self.errors[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// All counts with their names, as `GetStats` reports them.
    pub fn values(&self) -> Vec<(String, u64)> {
        let plain = [
            ("reads", &self.reads),
            ("read_bytes", &self.read_bytes),
            ("bypassed", &self.bypassed),
            ("hedges_held_back", &self.hedges_held_back),
            ("went_down", &self.went_down),
            ("came_back", &self.came_back),
            ("connections", &self.connections),
            ("served_reads", &self.served_reads),
            ("served_bytes", &self.served_bytes),
            ("turned_away", &self.turned_away),
            ("not_let_in", &self.not_let_in),
            ("cut", &self.cut),
            ("under_way_bytes", &self.under_way_bytes),
            ("under_way_bytes_most", &self.under_way_bytes_most),
        ];
        let mut values: Vec<_> =
            plain.iter().map(|(name, count)| ((*name).to_owned(), count.load(Ordering::Relaxed))).collect();
        values.extend(Cause::ALL.map(|cause| (format!("errors_{}", cause.name()), self.errors(cause))));
        values.extend(self.refused_by_peers.all().map(|(name, count)| (format!("refused_by_peers_{name}"), count)));
        // Peers can read these counts.
        values.extend(self.refused.for_all().map(|(name, count)| match name {
            "not_served" => ("refused_unknown_dataset".to_owned(), count),
            _ => (format!("refused_{name}"), count),
        }));
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_own_count_and_name() {
        let counters = PeerCounters::default();
        for (number, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, number);
            counters.add_error(cause);
            assert_eq!(counters.errors(cause), 1);
        }
        let mut names: Vec<_> = counters.values().into_iter().map(|(name, _)| name).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
