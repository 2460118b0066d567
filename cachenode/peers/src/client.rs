//! Reads blocks from other nodes, and goes round those that fail.
//!
//! The cast: [`Peers`] is all other nodes; a `Peer` is one, whether it is well and what it refused; it is asked over
//! `connection`s: `lane`s for blocks, a `link` for what goes by gRPC; `error` is why one gets nothing.
//!
//! Patience: a peer must give a sign of life within [`PeersConfig::answer_timeout`], since that waits for nothing but the
//! node; a lane that hears nothing asks for one. The bytes must come at [`PeersConfig::rate_least`] on the whole, with
//! [`PeersConfig::origin_patience`] more where the peer may have to ask the origin. The peer is told how long that is, and
//! refuses what it cannot have by then; one that does not even do that is down.
//!
//! Invariants: bytes handed out have the length asked for and the checksum they came with; a read that is dropped is given
//! up by the peer too.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_cachenode_api::{PROTOCOL, v1};
use larder_dataset::SnapshotId;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::blocks::{DatasetStats, ReadError, Token, Want};
use crate::buffers::Buffers;
use crate::convert;
use crate::counters::{Cause, PeerCounters};
use crate::membership::{Membership, Node};
use crate::tls::Security;
use error::{Miss, failed};
use lane::{Lane, Order};
use link::Link;
use peer::Peer;

pub use error::PeerError;

mod connection;
mod error;
mod lane;
mod link;
mod peer;

/// How patient one is with peers.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// For a connection and its TLS handshake. Default: 500 ms.
    pub connect_timeout: Duration,
    /// For a sign of life while something is asked of it, which waits for no disk and no origin. Default: 1 s.
    pub answer_timeout: Duration,
    /// For the bytes, beside what [`rate_least`](Self::rate_least) gives them. Default: 1 s.
    pub slack: Duration,
    /// Bytes a second that a peer must reach. Default: 4 MB/s.
    pub rate_least: u64,
    /// More of it, since the peer may have to ask the origin; twice that if it may ask a third node. Default: 4 s.
    pub origin_patience: Duration,
    /// So many reads in a row that a peer refuses as timed out take it down as too slow. Default: 4.
    pub slow_in_a_row: u32,
    /// How long a peer that went down is left alone. Default: 500 ms; doubles with each failure.
    pub backoff_first: Duration,
    /// At most so long. Default: 5 s.
    pub backoff_most: Duration,
    /// How long it is remembered that a peer does not serve a dataset, or not to us. Default: 5 s.
    pub refusal_memory: Duration,
    /// Connections to each peer for blocks, made as they are needed. Default: 2; more cost time of
    /// the processor, and gained nothing where it was measured.
    pub lanes: usize,
}

impl Default for PeersConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_millis(500),
            answer_timeout: Duration::from_secs(1),
            slack: Duration::from_secs(1),
            rate_least: 4_000_000,
            origin_patience: Duration::from_secs(4),
            slow_in_a_row: 4,
            backoff_first: Duration::from_millis(500),
            backoff_most: Duration::from_secs(5),
            refusal_memory: Duration::from_secs(5),
            lanes: 2,
        }
    }
}

impl PeersConfig {
    /// How long a read of so many bytes may take.
    fn patience(&self, bytes: u64, forwarded: bool) -> Duration {
        let transfer = Duration::from_secs_f64(bytes as f64 / self.rate_least.max(1) as f64);
        // One that may ask a third node waits for that one's origin, too.
        let origin = self.origin_patience * if forwarded { 1 } else { 2 };
        self.slack + transfer + origin
    }

    fn backoff(&self, failures: u32) -> Duration {
        let doubled = self.backoff_first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.backoff_most)
    }
}

/// Who a peer says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its name.
    pub node: String,
    /// Its version of Larder.
    pub version: String,
}

/// What a peer has cached and counted.
#[derive(Clone, Debug)]
pub struct NodeStats {
    /// Of each dataset.
    pub datasets: Vec<DatasetStats>,
    /// What it counted, by name.
    pub counters: HashMap<String, u64>,
}

/// How a peer is, for people.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: SocketAddr,
    /// True if reads are sent to it.
    pub up: bool,
    /// The last failure, if it is not fit again since.
    pub failure: Option<(Cause, String)>,
}

/// The other nodes of the cluster. Shared by all who read; [`run`](Self::run) must be running.
#[derive(Debug)]
pub struct Peers {
    own_name: String,
    shared: Arc<Shared>,
    membership: Membership,
    peers: RwLock<HashMap<String, Arc<Peer>>>,
}

/// What all peers have in common.
#[derive(Debug)]
struct Shared {
    config: PeersConfig,
    security: Security,
    counters: Arc<PeerCounters>,
    /// For ranges that come in.
    buffers: Arc<Buffers>,
    /// Told when a peer goes down.
    went_down: Notify,
    /// The connections' own tasks; each ends with its connection.
    tasks: TaskTracker,
}

impl Peers {
    /// Connects to nobody yet. `own_name` is this node's, which is not a peer of itself.
    pub fn new(
        config: PeersConfig,
        own_name: impl Into<String>,
        security: Security,
        mut membership: Membership,
        counters: Arc<PeerCounters>,
    ) -> Arc<Self> {
        let shared = Shared {
            config,
            security,
            counters,
            buffers: Arc::default(),
            went_down: Notify::new(),
            tasks: TaskTracker::new(),
        };
        let nodes = Arc::clone(&membership.borrow_and_update());
        let peers = Self { own_name: own_name.into(), shared: Arc::new(shared), membership, peers: RwLock::default() };
        peers.set_members(&nodes);
        Arc::new(peers)
    }

    /// Follows the membership and probes peers that are down, until told to stop; then connections are closed.
    pub async fn run(self: Arc<Self>, stopping: CancellationToken) {
        let mut membership = self.membership.clone();
        membership.mark_changed();
        let mut followed = true;
        let mut probes = JoinSet::new();
        loop {
            let due = self.start_probes(&mut probes);
            let until_due = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stopping.cancelled() => break,
                changed = membership.changed(), if followed => match changed {
                    Ok(()) => {
                        let nodes = Arc::clone(&membership.borrow_and_update());
                        self.set_members(&nodes);
                    }
                    // Whoever kept it current has stopped; the last list stays.
                    Err(_) => followed = false,
                },
                () = self.shared.went_down.notified() => {}
                Some(_) = probes.join_next() => {}
                () = until_due => {}
            }
        }
        probes.shutdown().await;
        for peer in std::mem::take(&mut *self.lock_peers_mut()).into_values() {
            peer.leave();
        }
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// Starts the probes that are due; returns when the next one is.
    fn start_probes(&self, probes: &mut JoinSet<()>) -> Option<Instant> {
        let peers: Vec<_> = self.lock_peers().values().cloned().collect();
        let now = Instant::now();
        let mut next = None;
        for peer in peers {
            match peer.probe_due(now) {
                None => {}
                Some(due) if due > now => next = Some(next.map_or(due, |next: Instant| next.min(due))),
                Some(_) => {
                    probes.spawn(peer.probe());
                }
            }
        }
        next
    }

    fn lock_peers(&self) -> std::sync::RwLockReadGuard<'_, HashMap<String, Arc<Peer>>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_peers_mut(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<String, Arc<Peer>>> {
        self.peers.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nodes that stay keep their connections; one with another address is another.
    fn set_members(&self, nodes: &[Node]) {
        let mut peers = self.lock_peers_mut();
        let mut gone = std::mem::take(&mut *peers);
        for node in nodes.iter().filter(|node| node.name != self.own_name) {
            let known = gone.remove(&node.name);
            let peer = match known {
                Some(known) if known.address == node.address => known,
                other => {
                    gone.extend(other.map(|other| (node.name.clone(), other)));
                    Arc::new(Peer::new(node, Arc::clone(&self.shared)))
                }
            };
            peers.insert(node.name.clone(), peer);
        }
        drop(peers);
        for peer in gone.into_values() {
            debug!(node = %peer.name, "the node is not a member any more");
            peer.leave();
        }
    }

    fn peer(&self, node: &str) -> Result<Arc<Peer>, PeerError> {
        let peer = self.lock_peers().get(node).cloned();
        peer.ok_or_else(|| PeerError::NoSuchNode { node: node.to_owned() })
    }

    /// This node's name among them.
    pub fn own_name(&self) -> &str {
        &self.own_name
    }

    /// The members of the cluster, this node among them if it is one: the same list until it changes.
    pub fn nodes(&self) -> Arc<Vec<Node>> {
        Arc::clone(&self.membership.borrow())
    }

    /// True if a read of this node would be sent now.
    pub fn is_up(&self, node: &str) -> bool {
        self.lock_peers().get(node).is_some_and(|peer| peer.is_up())
    }

    /// How every peer is, by name.
    pub fn status(&self) -> Vec<PeerStatus> {
        let mut all: Vec<_> = self.lock_peers().values().map(|peer| peer.status()).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// A range of a block that the node has or gets: exactly `len` bytes whose checksum was right. `forwarded`: the node asks no
    /// other node. Bounded in time. Cancel-safe: the node is told that nobody waits any more.
    pub async fn read(
        &self,
        node: &str,
        snapshot: SnapshotId,
        token: Option<&Token>,
        want: Want,
        forwarded: bool,
    ) -> Result<Bytes, PeerError> {
        let wanted = convert::wanted(snapshot, want);
        if !wanted.is_possible() {
            return Err(PeerError::Invalid { what: "no block can have such a range".to_owned() });
        }
        let peer = self.peer(node)?;
        let patience = self.shared.config.patience(want.len.into(), forwarded);
        let deadline_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let order = Order { wanted, token, forwarded, deadline_ms };
        // The peer is told to give up at `patience`. One that works has said so before this is over.
        let most = patience + self.shared.config.answer_timeout;
        let (order, asked_peer) = (&order, &peer);
        let attempt = |lane: Arc<Lane>| async move {
            tokio::time::timeout(most, lane.read(order))
                .await
                .unwrap_or_else(|_| Err(failed(Cause::TimedOut, format_args!("not all bytes within {most:?}"))))
                .inspect_err(|miss| {
                    if let Miss::Refused(error) = miss {
                        asked_peer.refused(snapshot, error);
                    }
                })
        };
        let outcome = peer.ask(peer.lane(), Some(snapshot), attempt).await;
        match &outcome {
            Ok(bytes) => {
                self.shared.counters.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                peer.was_slow(false);
            }
            Err(PeerError::Refused { source: ReadError::UnknownDataset | ReadError::Denied, .. }) => {}
            Err(PeerError::Refused { source, .. }) => peer.was_slow(*source == ReadError::TimedOut),
            Err(_) => {}
        }
        outcome
    }

    /// What the node has cached and counted. Cancel-safe.
    pub async fn stats(&self, node: &str) -> Result<NodeStats, PeerError> {
        let peer = self.peer(node)?;
        let within = self.shared.config.answer_timeout + self.shared.config.slack;
        let attempt = |link: Arc<Link>| async move {
            let mut client = link.client();
            let response = in_time(within, client.get_stats(v1::GetStatsRequest { protocol: PROTOCOL })).await?;
            let v1::GetStatsResponse { datasets, counters } =
                response.map_err(|status| link.miss(&status))?.into_inner();
            let datasets: Result<_, _> = datasets.into_iter().map(convert::stats_from_wire).collect();
            let datasets = datasets.map_err(|error| failed(Cause::WrongBlock, error))?;
            Ok(NodeStats { datasets, counters })
        };
        peer.ask(&peer.link, None, attempt).await
    }

    /// Who the node says it is. Cancel-safe.
    pub async fn info(&self, node: &str) -> Result<NodeInfo, PeerError> {
        let peer = self.peer(node)?;
        peer.ask(&peer.link, None, |link: Arc<Link>| async move { Ok(link.info().clone()) }).await
    }
}

async fn in_time<T>(within: Duration, work: impl Future<Output = T>) -> Result<T, Miss> {
    let outcome = tokio::time::timeout(within, work).await;
    outcome.map_err(|_| failed(Cause::TimedOut, format_args!("no answer within {within:?}")))
}
