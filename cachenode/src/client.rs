//! Reads blocks from other nodes, and goes round those that fail.
//!
//! The cast: [`Peers`] is all other nodes; a `Peer` is one, with its `Health` and its `Link`s, the connections to it.
//!
//! A peer is *up*, *down* or *on trial*. Any failure that is the peer's own takes it down: reads of it that are under way fail
//! then too, and new ones fail at once. In the background it is probed, after a pause that doubles; a probe that succeeds,
//! which is a connection and an answer to `GetInfo`, puts it on trial: one read at a time is let through, and the first that
//! ends well brings it up. So a peer that is dead, or answers probes but not reads, costs one timeout for each pause, never
//! one for each read. What a peer refuses is not a failure: it says so, and so it works.
//!
//! Patience: the header of an answer must come within [`PeersConfig::answer_timeout`], since it waits for nothing but the
//! node. The rest must come at [`PeersConfig::rate_least`] on the whole, with [`PeersConfig::origin_patience`] more where the
//! peer may have to ask the origin. The peer is told how long that is, and refuses what it cannot have by then; one that does
//! not even do that is down. A peer that goes silent is found out by pings meanwhile.
//!
//! Invariants: bytes handed out have the length asked for and the checksum they came with; a read that is dropped ends its
//! stream; no lock is held across an await but the one that makes one connection for all who want it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use larder_cachenode_api::{PIECE_BYTES, PROTOCOL, v1};
use larder_dataset::{BlockIndex, SnapshotId, crc32c};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Code, Request, Status};
use tracing::{debug, info, warn};

use crate::blocks::{DatasetStats, ReadError, StoredBlocks, Token, Want};
use crate::chain::chain;
use crate::convert;
use crate::counters::{Cause, PeerCounters};
use crate::membership::{Membership, Node};
use crate::tls::Security;
use link::{Link, LinkError};

mod link;

/// Datasets whose refusal is remembered, for each peer.
const REFUSALS_MOST: usize = 1024;

/// The longest text of a peer that is passed on.
const MESSAGE_CHARS_MOST: usize = 200;

/// How patient one is with peers.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// For a connection and its TLS handshake. Default: 500 ms.
    pub connect_timeout: Duration,
    /// For the first sign of an answer, which waits for no disk and no origin; and for silence, after which a ping is
    /// sent that must be answered within twice as long. Default: 1 s.
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
    /// Connections to each peer, used in turn. Default: 1.
    pub connections: usize,
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
            connections: 1,
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

/// Why a peer did not give what was wanted. Whatever it is, the origin may have it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PeerError {
    /// The peer failed before, and nothing was asked of it, or the read was given up because another failed.
    #[error("the node {node} is bypassed")]
    Bypassed {
        /// Which node.
        node: String,
    },
    /// There is no such node in the cluster, or it is this one.
    #[error("there is no peer {node}")]
    NoSuchNode {
        /// Which node.
        node: String,
    },
    /// What was wanted cannot be: a mistake of the one who asks.
    #[error("{what}")]
    Invalid {
        /// What is wrong.
        what: String,
    },
    /// The peer works, and does not give it.
    #[error("the node {node} refuses")]
    Refused {
        /// Which node.
        node: String,
        /// Why.
        source: ReadError,
    },
    /// The peer failed, and is bypassed from now on.
    #[error("the node {node} failed ({}): {what}", cause.name())]
    Failed {
        /// Which node.
        node: String,
        /// What it is counted as.
        cause: Cause,
        /// What happened, for people.
        what: String,
    },
}

impl PeerError {
    /// How the peer failed, if it did.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Failed { cause, .. } => Some(*cause),
            Self::Bypassed { .. } | Self::NoSuchNode { .. } | Self::Invalid { .. } | Self::Refused { .. } => None,
        }
    }

    /// How the peer refused, if it did.
    pub fn refusal(&self) -> Option<&ReadError> {
        match self {
            Self::Refused { source, .. } => Some(source),
            Self::Bypassed { .. } | Self::NoSuchNode { .. } | Self::Invalid { .. } | Self::Failed { .. } => None,
        }
    }
}

/// Why an attempt at a peer did not succeed.
#[derive(Debug)]
enum Miss {
    /// The peer is at fault.
    Failed(Failure),
    /// It answered that it will not.
    Refused(ReadError),
    /// What was asked cannot be.
    Invalid(String),
}

/// What a peer did wrong.
#[derive(Debug)]
struct Failure {
    cause: Cause,
    what: String,
}

fn failed(cause: Cause, what: impl std::fmt::Display) -> Miss {
    Miss::Failed(Failure { cause, what: what.to_string() })
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
        let shared = Shared { config, security, counters, went_down: Notify::new(), tasks: TaskTracker::new() };
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

    /// The ranges of blocks that the node has or gets, in the order wanted: each exactly `len` bytes whose checksum was right,
    /// or why not. At most 1024 wants and 64 MiB. `forwarded`: the node asks no other node. The whole fails if the peer
    /// fails, is bypassed, or refuses the dataset. Cancel-safe: dropping it ends the stream.
    pub async fn read(
        &self,
        node: &str,
        snapshot: SnapshotId,
        token: Option<&Token>,
        wants: &[Want],
        forwarded: bool,
    ) -> Result<Vec<Result<Bytes, PeerError>>, PeerError> {
        let bytes = convert::check_wants(wants).map_err(|error| PeerError::Invalid { what: error.to_string() })?;
        let peer = self.peer(node)?;
        let patience = self.shared.config.patience(bytes, forwarded);
        let request = v1::ReadRequest {
            protocol: PROTOCOL,
            snapshot: Bytes::copy_from_slice(&snapshot.0),
            wants: wants
                .iter()
                .map(|want| v1::Want { block: want.block.0, start: want.start, len: want.len })
                .collect(),
            deadline_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
            forwarded,
        };
        // The peer is told to give up at `patience`. One that works has said so before this is over.
        let most = patience + self.shared.config.answer_timeout;
        let (asked_peer, request) = (&peer, &request);
        let attempt = |link: Arc<Link>| async move {
            tokio::time::timeout(most, asked_peer.read_over(&link, request, snapshot, token, wants))
                .await
                .unwrap_or_else(|_| Err(failed(Cause::TimedOut, format_args!("not all bytes within {most:?}"))))
        };
        let outcomes = peer.ask(Some(snapshot), attempt).await?;
        let mut timed_out = false;
        let outcomes: Vec<_> = outcomes
            .into_iter()
            .map(|outcome| {
                outcome.map_err(|source| {
                    timed_out |= source == ReadError::TimedOut;
                    PeerError::Refused { node: node.to_owned(), source }
                })
            })
            .collect();
        let bytes = outcomes.iter().flatten().map(|bytes: &Bytes| bytes.len() as u64).sum();
        self.shared.counters.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        peer.was_slow(timed_out);
        Ok(outcomes)
    }

    /// Which of `blocks` blocks from `first` the node has in its store; at most 1,048,576. Cancel-safe.
    pub async fn have(
        &self,
        node: &str,
        snapshot: SnapshotId,
        token: Option<&Token>,
        first: BlockIndex,
        blocks: u32,
    ) -> Result<StoredBlocks, PeerError> {
        let peer = self.peer(node)?;
        let request = v1::HaveRequest {
            protocol: PROTOCOL,
            snapshot: Bytes::copy_from_slice(&snapshot.0),
            first_block: first.0,
            blocks,
        };
        let within = self.shared.config.answer_timeout + self.shared.config.slack;
        let (asked_peer, request) = (&peer, &request);
        let attempt = |link: Arc<Link>| async move {
            let mut request = Request::new(request.clone());
            convert::set_token(request.metadata_mut(), token);
            let mut client = link.client();
            let response = in_time(within, client.have(request)).await?;
            match response.map_err(|status| link.miss(&status))?.into_inner().outcome {
                Some(v1::have_response::Outcome::Stored(bits)) => StoredBlocks::from_bits(first, blocks, &bits)
                    .ok_or_else(|| failed(Cause::WrongBlock, "it told of other blocks than it was asked about")),
                Some(v1::have_response::Outcome::Refusal(refusal)) => Err(asked_peer.refused(snapshot, refusal)),
                None => Err(failed(Cause::WrongBlock, "it answered nothing")),
            }
        };
        peer.ask(Some(snapshot), attempt).await
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
        peer.ask(None, attempt).await
    }

    /// Who the node says it is. Cancel-safe.
    pub async fn info(&self, node: &str) -> Result<NodeInfo, PeerError> {
        let peer = self.peer(node)?;
        peer.ask(None, |link: Arc<Link>| async move { Ok(link.info().clone()) }).await
    }
}

async fn in_time<T>(within: Duration, work: impl Future<Output = T>) -> Result<T, Miss> {
    let outcome = tokio::time::timeout(within, work).await;
    outcome.map_err(|_| failed(Cause::TimedOut, format_args!("no answer within {within:?}")))
}

/// Whether a peer can be read from.
#[derive(Debug)]
enum Health {
    Up,
    /// A probe went well. One read at a time is let through, and this says if one is under way.
    Trial {
        busy: bool,
    },
    Down {
        next_probe: Instant,
        probing: bool,
    },
    /// Not a member any more.
    Gone,
}

#[derive(Debug)]
struct State {
    health: Health,
    /// Cancelled when the peer goes down, and another one from then on.
    period: CancellationToken,
    /// Failures since it last worked.
    failures: u32,
    /// Reads in a row that it refused as timed out.
    slow: u32,
    failure: Option<(Cause, String)>,
}

/// Another node.
#[derive(Debug)]
struct Peer {
    name: String,
    address: SocketAddr,
    shared: Arc<Shared>,
    state: Mutex<State>,
    slots: Vec<Slot>,
    next_slot: AtomicUsize,
    /// Which datasets it refused to us, and when.
    refusals: Mutex<HashMap<SnapshotId, (ReadError, Instant)>>,
}

/// The place of a connection.
#[derive(Debug, Default)]
struct Slot {
    link: ArcSwapOption<Link>,
    /// Held by whoever makes the connection, for all.
    connecting: tokio::sync::Mutex<()>,
}

impl Slot {
    /// Gives the connection up. Reads that are under way over it may end.
    fn forget(&self, link: &Arc<Link>) {
        self.link.rcu(|now| now.clone().filter(|now| !Arc::ptr_eq(now, link)));
    }
}

/// Leave to ask a peer.
struct Pass<'a> {
    peer: &'a Peer,
    period: CancellationToken,
    on_trial: bool,
    judged: AtomicBool,
}

impl Peer {
    fn new(node: &Node, shared: Arc<Shared>) -> Self {
        let state = State { health: Health::Up, period: CancellationToken::new(), failures: 0, slow: 0, failure: None };
        let slots = (0..shared.config.connections.max(1)).map(|_| Slot::default()).collect();
        Self {
            name: node.name.clone(),
            address: node.address,
            shared,
            state: Mutex::new(state),
            slots,
            next_slot: AtomicUsize::new(0),
            refusals: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_refusals(&self) -> MutexGuard<'_, HashMap<SnapshotId, (ReadError, Instant)>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_up(&self) -> bool {
        matches!(self.lock().health, Health::Up | Health::Trial { busy: false })
    }

    fn status(&self) -> PeerStatus {
        let up = self.is_up();
        PeerStatus { name: self.name.clone(), address: self.address, up, failure: self.lock().failure.clone() }
    }

    fn bypassed(&self) -> PeerError {
        self.shared.counters.bypassed.fetch_add(1, Ordering::Relaxed);
        PeerError::Bypassed { node: self.name.clone() }
    }

    /// It is no member any more: what is under way fails.
    fn leave(&self) {
        let mut state = self.lock();
        state.health = Health::Gone;
        state.period.cancel();
        drop(state);
        self.close_links();
    }

    fn close_links(&self) {
        for slot in &self.slots {
            if let Some(link) = slot.link.swap(None) {
                link.close();
            }
        }
    }

    fn enter(&self) -> Result<Pass<'_>, PeerError> {
        let mut state = self.lock();
        let on_trial = match &mut state.health {
            Health::Up => false,
            Health::Trial { busy } if !*busy => {
                *busy = true;
                true
            }
            Health::Trial { .. } | Health::Down { .. } | Health::Gone => {
                drop(state);
                return Err(self.bypassed());
            }
        };
        Ok(Pass { peer: self, period: state.period.clone(), on_trial, judged: AtomicBool::new(false) })
    }

    /// Asks the peer, if it is fit to be asked: makes `attempt` over a connection, and again over a new one if it broke under
    /// a connection that had worked before, as one does whose peer was started anew. Judges the peer by the outcome.
    async fn ask<T, A: Future<Output = Result<T, Miss>>>(
        &self,
        snapshot: Option<SnapshotId>,
        attempt: impl Fn(Arc<Link>) -> A,
    ) -> Result<T, PeerError> {
        if let Some(source) = snapshot.and_then(|snapshot| self.known_refusal(snapshot)) {
            return Err(PeerError::Refused { node: self.name.clone(), source });
        }
        let pass = self.enter()?;
        self.shared.counters.reads.fetch_add(1, Ordering::Relaxed);
        let work = async {
            let slot = &self.slots[self.next_slot.fetch_add(1, Ordering::Relaxed) % self.slots.len()];
            let link = self.link(slot).await?;
            let had_worked = link.has_worked();
            match attempt(Arc::clone(&link)).await {
                Err(Miss::Failed(Failure { cause: Cause::Broken, what })) if had_worked => {
                    debug!(node = %self.name, what, "the connection broke; try a new one");
                    slot.forget(&link);
                    let link = self.link(slot).await?;
                    attempt(Arc::clone(&link)).await.inspect(|_| link.worked())
                }
                outcome => outcome.inspect(|_| link.worked()),
            }
        };
        let outcome = tokio::select! {
            outcome = work => outcome,
            () = pass.period.cancelled() => return Err(self.bypassed()),
        };
        match outcome {
            Ok(outcome) => {
                pass.went_well();
                Ok(outcome)
            }
            Err(Miss::Refused(ReadError::Stopping)) => {
                let failure = Failure { cause: Cause::Stopping, what: "it is stopping".to_owned() };
                Err(pass.failed(failure))
            }
            Err(Miss::Refused(source)) => {
                pass.went_well();
                Err(PeerError::Refused { node: self.name.clone(), source })
            }
            Err(Miss::Invalid(what)) => {
                pass.went_well();
                Err(PeerError::Invalid { what })
            }
            Err(Miss::Failed(failure)) => Err(pass.failed(failure)),
        }
    }

    /// The slot's connection, after making it if there is none.
    async fn link(&self, slot: &Slot) -> Result<Arc<Link>, Miss> {
        let ready = || slot.link.load_full().filter(|link| !link.is_closed());
        if let Some(link) = ready() {
            return Ok(link);
        }
        let _connecting = slot.connecting.lock().await;
        if let Some(link) = ready() {
            return Ok(link);
        }
        let link = self.connect().await.map_err(Miss::Failed)?;
        slot.link.store(Some(Arc::clone(&link)));
        Ok(link)
    }

    async fn connect(&self) -> Result<Arc<Link>, Failure> {
        let outcome = Link::connect(self.address, &self.shared.config, &self.shared.security, &self.shared.tasks).await;
        let (cause, what) = match outcome {
            Ok(link) => {
                self.shared.counters.connections.fetch_add(1, Ordering::Relaxed);
                return Ok(Arc::new(link));
            }
            Err(LinkError::Connect { what }) => (Cause::Connect, what),
            Err(error @ LinkError::TimedOut { .. }) => (Cause::TimedOut, error.to_string()),
            Err(error @ LinkError::Protocol { .. }) => (Cause::OtherProtocol, error.to_string()),
        };
        Err(Failure { cause, what })
    }

    /// One read over a connection.
    async fn read_over(
        &self,
        link: &Link,
        request: &v1::ReadRequest,
        snapshot: SnapshotId,
        token: Option<&Token>,
        wants: &[Want],
    ) -> Result<Vec<Result<Bytes, ReadError>>, Miss> {
        let mut sent = Request::new(request.clone());
        convert::set_token(sent.metadata_mut(), token);
        let mut client = link.client();
        let opening = async {
            let mut stream = client.read(sent).await.map_err(|status| link.miss(&status))?.into_inner();
            let first = stream.next().await;
            Ok((stream, first))
        };
        let (mut stream, first) = in_time(self.shared.config.answer_timeout, opening).await??;
        match first.transpose().map_err(|status| link.miss(&status))?.and_then(|first| first.part) {
            Some(v1::read_response::Part::Header(header)) => {
                if header.protocol != PROTOCOL {
                    return Err(failed(
                        Cause::OtherProtocol,
                        format_args!("it answers in protocol {}", header.protocol),
                    ));
                }
                if *header.snapshot != snapshot.0 {
                    return Err(failed(Cause::WrongBlock, "it answers with another snapshot"));
                }
            }
            Some(_) => return Err(failed(Cause::WrongBlock, "its answer has no header")),
            None => return Err(failed(Cause::Truncated, "its answer is empty")),
        }
        let mut outcomes = Vec::with_capacity(wants.len());
        for (number, want) in wants.iter().enumerate() {
            let mut got = Assembly::new(number as u32, *want);
            let outcome = loop {
                let next = stream.next().await.transpose().map_err(|status| link.miss(&status))?;
                match next.map(|next| next.part) {
                    Some(Some(v1::read_response::Part::Piece(piece))) => {
                        if let Some(whole) = got.add(piece).map_err(Miss::Failed)? {
                            break Ok(whole);
                        }
                    }
                    Some(Some(v1::read_response::Part::Refusal(refusal))) if refusal.want == number as u32 => {
                        // Bytes came, and not fast enough: that is the peer or the way to it, not its origin.
                        if got.begun() && convert::read_error(refusal.clone()) == ReadError::TimedOut {
                            return Err(failed(Cause::TimedOut, "it is too slow"));
                        }
                        match self.refused(snapshot, refusal) {
                            Miss::Refused(
                                error @ (ReadError::UnknownDataset | ReadError::Denied | ReadError::Stopping),
                            ) => return Err(Miss::Refused(error)),
                            Miss::Refused(error) => break Err(error),
                            other => return Err(other),
                        }
                    }
                    Some(_) => return Err(failed(Cause::WrongBlock, "it answers something else than was asked")),
                    None => return Err(failed(Cause::Truncated, "its answer ends too early")),
                }
            };
            outcomes.push(outcome);
        }
        match stream.next().await.transpose().map_err(|status| link.miss(&status))? {
            None => Ok(outcomes),
            Some(_) => Err(failed(Cause::WrongBlock, "it answers more than was asked")),
        }
    }

    /// Takes note of a refusal.
    fn refused(&self, snapshot: SnapshotId, mut refusal: v1::Refusal) -> Miss {
        if let Some((end, _)) = refusal.message.char_indices().nth(MESSAGE_CHARS_MOST) {
            refusal.message.truncate(end);
        }
        let error = convert::read_error(refusal);
        self.shared.counters.refused_by_peers.add(&error);
        if matches!(error, ReadError::UnknownDataset | ReadError::Denied) {
            let mut refusals = self.lock_refusals();
            if refusals.len() >= REFUSALS_MOST {
                refusals.clear();
            }
            refusals.insert(snapshot, (error.clone(), Instant::now()));
        }
        Miss::Refused(error)
    }

    fn known_refusal(&self, snapshot: SnapshotId) -> Option<ReadError> {
        let mut refusals = self.lock_refusals();
        let (error, since) = refusals.get(&snapshot)?;
        if since.elapsed() < self.shared.config.refusal_memory {
            return Some(error.clone());
        }
        refusals.remove(&snapshot);
        None
    }

    /// Takes note of whether a read was refused because it took too long; a peer that does so again and again is down.
    fn was_slow(&self, timed_out: bool) {
        let mut state = self.lock();
        if !timed_out {
            state.slow = 0;
            if matches!(state.health, Health::Up) {
                state.failures = 0;
            }
            return;
        }
        let most = self.shared.config.slow_in_a_row.max(1);
        state.slow = (state.slow + 1).min(most);
        if state.slow == most && matches!(state.health, Health::Up) {
            // One more is enough, as long as none goes well.
            state.slow = most - 1;
            let what = "it has what is wanted too late, again and again".to_owned();
            self.go_down(state, Failure { cause: Cause::TimedOut, what }, true);
        }
    }

    /// Takes the peer down.
    fn go_down(&self, mut state: MutexGuard<'_, State>, failure: Failure, cut: bool) {
        let Failure { cause, what } = failure;
        self.shared.counters.add_error(cause);
        state.failures = state.failures.saturating_add(1);
        let pause = self.shared.config.backoff(state.failures);
        let first = state.failure.is_none();
        state.failure = Some((cause, what.clone()));
        state.health = Health::Down { next_probe: Instant::now() + pause, probing: false };
        let period = std::mem::replace(&mut state.period, CancellationToken::new());
        drop(state);
        // What a stopping peer has begun it ends well.
        if cut {
            period.cancel();
            self.close_links();
        }
        if first {
            self.shared.counters.went_down.fetch_add(1, Ordering::Relaxed);
            warn!(node = %self.name, address = %self.address, cause = cause.name(), what, "bypass a peer");
        } else {
            debug!(node = %self.name, cause = cause.name(), what, "the peer fails again");
        }
        self.shared.went_down.notify_one();
    }

    /// When it is to be probed next, if it is down.
    fn probe_due(&self, now: Instant) -> Option<Instant> {
        match &mut self.lock().health {
            Health::Down { next_probe, probing } if !*probing => {
                *probing = *next_probe <= now;
                Some(*next_probe)
            }
            Health::Up | Health::Trial { .. } | Health::Down { .. } | Health::Gone => None,
        }
    }

    /// Connects anew, which asks the peer who it is; then it is on trial.
    async fn probe(self: Arc<Self>) {
        let outcome = self.connect().await;
        let mut state = self.lock();
        if !matches!(state.health, Health::Down { .. }) {
            if let Ok(link) = outcome {
                link.close();
            }
            return;
        }
        match outcome {
            Ok(link) => {
                state.health = Health::Trial { busy: false };
                if let Some(old) = self.slots[0].link.swap(Some(link)) {
                    old.close();
                }
            }
            Err(Failure { cause, what }) => {
                state.failures = state.failures.saturating_add(1);
                let pause = self.shared.config.backoff(state.failures);
                state.health = Health::Down { next_probe: Instant::now() + pause, probing: false };
                debug!(node = %self.name, cause = cause.name(), what, "the peer is still unfit");
                state.failure = Some((cause, what));
            }
        }
    }
}

impl Pass<'_> {
    /// The peer works.
    fn went_well(&self) {
        self.judged.store(true, Ordering::Relaxed);
        let mut state = self.peer.lock();
        if self.on_trial && matches!(state.health, Health::Trial { .. }) {
            state.health = Health::Up;
            if state.slow == 0 {
                state.failures = 0;
            }
            state.failure = None;
            drop(state);
            self.peer.shared.counters.came_back.fetch_add(1, Ordering::Relaxed);
            info!(node = %self.peer.name, "a bypassed peer works again");
        }
    }

    /// The peer does not work. Of several reads that fail with it, the first takes it down.
    fn failed(&self, failure: Failure) -> PeerError {
        self.judged.store(true, Ordering::Relaxed);
        if self.period.is_cancelled() {
            return self.peer.bypassed();
        }
        let error = PeerError::Failed {
            node: self.peer.name.clone(),
            cause: failure.cause,
            what: failure.what.chars().take(MESSAGE_CHARS_MOST).collect(),
        };
        let state = self.peer.lock();
        if matches!(state.health, Health::Up | Health::Trial { .. }) {
            let cut = failure.cause != Cause::Stopping;
            self.peer.go_down(state, failure, cut);
        } else {
            drop(state);
            self.peer.shared.counters.add_error(failure.cause);
        }
        error
    }
}

impl Drop for Pass<'_> {
    /// A trial whose reader went away says nothing of the peer: another may try.
    fn drop(&mut self) {
        if self.on_trial
            && !self.judged.load(Ordering::Relaxed)
            && let Health::Trial { busy } = &mut self.peer.lock().health
        {
            *busy = false;
        }
    }
}

/// A range that comes in pieces.
#[derive(Debug)]
struct Assembly {
    number: u32,
    want: Want,
    /// What came so far, unless it came in one piece.
    bytes: BytesMut,
}

impl Assembly {
    fn new(number: u32, want: Want) -> Self {
        Self { number, want, bytes: BytesMut::new() }
    }

    fn begun(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Takes the next piece. All of the range, when this was the last one.
    fn add(&mut self, piece: v1::Piece) -> Result<Option<Bytes>, Failure> {
        let failure = |cause, what: &str| Failure { cause, what: what.to_owned() };
        let have = self.bytes.len() as u32;
        if (piece.want, piece.block, piece.offset) != (self.number, self.want.block.0, self.want.start + have) {
            return Err(failure(Cause::WrongBlock, "it sends another range than was asked for"));
        }
        let left = (self.want.len - have) as usize;
        if piece.data.is_empty() || piece.data.len() > left.min(PIECE_BYTES as usize) {
            return Err(failure(Cause::WrongBlock, "it sends a piece of the wrong length"));
        }
        if crc32c(&piece.data) != piece.crc32c {
            return Err(failure(Cause::WrongBytes, "the checksum of what it sent is wrong"));
        }
        if piece.data.len() == self.want.len as usize {
            return Ok(Some(piece.data));
        }
        if self.bytes.is_empty() {
            self.bytes.reserve(self.want.len as usize);
        }
        self.bytes.extend_from_slice(&piece.data);
        let whole = self.bytes.len() == self.want.len as usize;
        Ok(whole.then(|| std::mem::take(&mut self.bytes).freeze()))
    }
}

/// What a gRPC status says of a peer. A connection that broke is told from a peer that says no by the code, which only
/// a peer chooses among these.
fn judge(status: &Status, fault: Option<&str>) -> Miss {
    let said: String = status.message().chars().take(MESSAGE_CHARS_MOST).collect();
    match status.code() {
        Code::FailedPrecondition | Code::Unimplemented => failed(Cause::OtherProtocol, said),
        Code::InvalidArgument => Miss::Invalid(said),
        Code::ResourceExhausted => Miss::Refused(ReadError::Unavailable { message: said }),
        Code::DeadlineExceeded => failed(Cause::TimedOut, said),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Aborted
        | Code::OutOfRange
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => {
            failed(Cause::Broken, fault.map_or_else(|| format!("{said} ({})", chain(status)), str::to_owned))
        }
    }
}
