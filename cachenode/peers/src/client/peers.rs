//! All other nodes of the cluster, and the requests that can be sent to one of them.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use larder_cachenode_api::frame::RANGE_BYTES_MOST;
use larder_cachenode_api::{PROTOCOL, v1};
use larder_dataset::CacheId;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::config::PeersConfig;
use super::context::ClientContext;
use super::error::PeerError;
use super::error::{RequestError, failed};
use super::hedge_budget::HedgeBudget;
use super::lane::Lane;
use super::link::Link;
use super::peer::Peer;
use super::progress::ReadProgress;
use super::status::{NodeInfo, NodeStats, PeerStatus};
use crate::blocks::{AskedDataset, DatasetStats, OtherSnapshot};
use crate::convert;
use crate::counters::{Cause, PeerCounters};
use crate::membership::{Membership, Node};
use crate::read::{ReadError, ReadRequest};
use crate::tls::Security;

/// The other nodes of the cluster, shared by all readers. [`run`](Self::run) must be running.
#[derive(Debug)]
pub struct Peers {
    own_name: String,
    pub(super) context: Arc<ClientContext>,
    membership: Membership,
    peers: RwLock<HashMap<String, Arc<Peer>>>,
    pub(super) hedges: HedgeBudget,
}

impl Peers {
    /// Creates the peers without connecting to any. `own_name` is the name of this node, which is not a peer of itself.
    pub fn new(
        config: PeersConfig,
        own_name: impl Into<String>,
        security: Security,
        mut membership: Membership,
        counters: Arc<PeerCounters>,
    ) -> Arc<Self> {
        let hedges = HedgeBudget::new(config.hedge_burst, config.hedge_percent);
        let context = Arc::new(ClientContext::new(config, security, counters));
        let nodes = Arc::clone(&membership.borrow_and_update());
        let peers = Self { own_name: own_name.into(), context, membership, peers: RwLock::default(), hedges };
        peers.set_members(&nodes);
        Arc::new(peers)
    }

    /// Follows the membership and probes peers that are down. When `stopping` is cancelled, closes all connections and
    /// returns.
    pub async fn run(self: Arc<Self>, stopping: CancellationToken) {
        let mut membership = self.membership.clone();
        membership.mark_changed();
        let mut followed = true;
        let mut probes = JoinSet::new();
        loop {
            let due = self.start_probes(&mut probes);
            let until_due = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
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
                    // The watcher has stopped; the last list stays in use.
                    Err(_) => followed = false,
                },
                () = self.context.went_down.notified() => {}
                Some(_) = probes.join_next() => {}
                () = until_due => {}
            }
        }
        probes.shutdown().await;
        for peer in std::mem::take(&mut *self.lock_peers_mut()).into_values() {
            peer.leave();
        }
        self.context.tasks.close();
        self.context.tasks.wait().await;
    }

    /// Starts the probes that are due. Returns when the next one is due.
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

    /// Replaces the members. Nodes that stay keep their connections. A node with a new address is a new peer.
    fn set_members(&self, nodes: &[Node]) {
        let mut peers = self.lock_peers_mut();
        let mut gone = std::mem::take(&mut *peers);
        for node in nodes.iter().filter(|node| node.name != self.own_name) {
            let known = gone.remove(&node.name);
            let peer = match known {
                Some(known) if known.address == node.address => known,
                other => {
                    gone.extend(other.map(|other| (node.name.clone(), other)));
                    Arc::new(Peer::new(node, Arc::clone(&self.context)))
                }
            };
            peers.insert(node.name.clone(), peer);
        }
        drop(peers);
        for peer in gone.into_values() {
            debug!(peer = %peer.name, "the peer is no longer a member");
            peer.leave();
        }
    }

    pub(super) fn peer(&self, name: &str) -> Result<Arc<Peer>, PeerError> {
        let peer = self.lock_peers().get(name).cloned();
        peer.ok_or_else(|| PeerError::NoSuchPeer { peer: name.to_owned() })
    }

    /// The name of this node.
    pub fn own_name(&self) -> &str {
        &self.own_name
    }

    /// The members of the cluster, including this node if it is a member. Returns the same `Arc` until the list
    /// changes.
    pub fn nodes(&self) -> Arc<Vec<Node>> {
        Arc::clone(&self.membership.borrow())
    }

    /// True if a read from this peer would be sent now.
    pub fn is_up(&self, peer: &str) -> bool {
        self.lock_peers().get(peer).is_some_and(|peer| peer.is_up())
    }

    /// Waits until a peer refuses a dataset, or serves a dataset that it refused before. Only one caller at a time.
    /// Cancel-safe.
    pub async fn refusals_changed(&self) {
        self.context.refusals.notified().await;
    }

    /// The names of the peers that refused a dataset at the last request for it.
    pub fn refusers(&self, cache: CacheId) -> Vec<String> {
        let peers = self.lock_peers();
        let refusers = peers.values().filter(|peer| peer.refuses(cache));
        refusers.map(|peer| peer.name.clone()).collect()
    }

    /// The state of every peer, sorted by name.
    pub fn status(&self) -> Vec<PeerStatus> {
        let mut all: Vec<_> = self.lock_peers().values().map(|peer| peer.status()).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Reads a range of a block that the peer has or fetches. Returns exactly as many bytes as requested, with the
    /// right checksum. Bounded in time. Cancel-safe: dropping the read sends the peer a cancel.
    pub async fn read(&self, peer: &str, request: &ReadRequest) -> Result<Bytes, PeerError> {
        let peer = self.peer(peer)?;
        self.read_over(&peer, request, None).await
    }

    /// The implementation of `read`, with the progress of a read that another may overtake.
    pub(super) async fn read_over(
        &self,
        peer: &Peer,
        request: &ReadRequest,
        progress: Option<&Arc<ReadProgress>>,
    ) -> Result<Bytes, PeerError> {
        if !request.range.fits(RANGE_BYTES_MOST) {
            return Err(PeerError::Invalid { what: "no block can contain such a range".to_owned() });
        }
        let config = &self.context.config;
        let timeout = config.read_timeout(request);
        // The peer refuses after `timeout`; a working peer's refusal has arrived by this time.
        let most = timeout + config.answer_timeout;
        let read = |lane: Arc<Lane>| async move {
            tokio::time::timeout(most, lane.read(request, timeout, progress))
                .await
                .unwrap_or_else(|_| Err(failed(Cause::TimedOut, format_args!("not all bytes within {most:?}"))))
                .inspect_err(|error| {
                    if let RequestError::Refused(error) = error {
                        peer.refused(request.cache, error);
                    }
                })
        };
        let outcome = peer.ask(peer.lane(), Some(request.cache), read).await;
        match &outcome {
            Ok(bytes) => {
                self.context.counters.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                peer.was_slow(false);
                peer.served(request.cache);
            }
            Err(PeerError::Refused { source: ReadError::UnknownDataset | ReadError::Denied, .. }) => {}
            // A block that is not cached is no sign of how fast the peer reads one.
            Err(PeerError::Refused { .. }) if request.cached_only => {}
            Err(PeerError::Refused { source, .. }) => peer.was_slow(*source == ReadError::TimedOut),
            Err(_) => {}
        }
        outcome
    }

    /// Returns the peer's counters, and statistics of those requested datasets that the peer shares. Cancel-safe.
    pub async fn stats(&self, peer: &str, asked: &[AskedDataset]) -> Result<NodeStats, PeerError> {
        let peer = self.peer(peer)?;
        let within = self.context.config.answer_timeout + self.context.config.slack;
        let asked = &asked[..asked.len().min(convert::ASKED_MOST)];
        let get_stats = |link: Arc<Link>| async move {
            let mut client = link.client();
            let datasets = asked.iter().map(convert::asked_to_wire).collect();
            let response =
                in_time(within, client.get_stats(v1::GetStatsRequest { protocol: PROTOCOL, datasets })).await?;
            let v1::GetStatsResponse { datasets, counters, others } =
                response.map_err(|status| link.judge(&status))?.into_inner();
            let datasets: Result<Vec<DatasetStats>, _> = datasets.into_iter().map(convert::stats_from_wire).collect();
            let mut datasets = datasets.map_err(|error| failed(Cause::WrongBlock, error))?;
            // A node of version 0.1.0 ignores the request's list and returns all its datasets.
            datasets.retain(|dataset| asked.iter().any(|asked| asked.cache == dataset.cache));
            let others: Result<Vec<OtherSnapshot>, _> = others.iter().map(convert::other_from_wire).collect();
            let mut others = others.map_err(|error| failed(Cause::WrongBlock, error))?;
            others.retain(|other| asked.iter().any(|asked| asked.cache == other.asked));
            Ok(NodeStats { datasets, counters, others })
        };
        peer.ask(&peer.link, None, get_stats).await
    }

    /// Asks the peer for its name and version. Cancel-safe.
    pub async fn info(&self, peer: &str) -> Result<NodeInfo, PeerError> {
        let peer = self.peer(peer)?;
        peer.ask(&peer.link, None, |link: Arc<Link>| async move { Ok(link.info().clone()) }).await
    }
}

async fn in_time<T>(within: Duration, work: impl Future<Output = T>) -> Result<T, RequestError> {
    let outcome = tokio::time::timeout(within, work).await;
    outcome.map_err(|_| failed(Cause::TimedOut, format_args!("no answer within {within:?}")))
}
