//! The peers of a node: their membership, and the server through which they read from this node.
//!
//! The cast: [`Cluster`] is a node's view of its peers; [`Served`] is the peers' view of the node's open datasets.
//!
//! Invariants: a peer's request is answered by the store, by a fetch from the origin, or (by a second owner) by a read
//! from the first owner. It never waits for a node that may be waiting for this one. A hedge is answered by the store
//! or the window, or refused. Disagreement between nodes costs a GET, never a wrong byte.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use larder_dataset::{CacheId, Placement};
use larder_peers::{
    AskedDataset, BlockBytes, Blocks, Buffers, Cause, DatasetStats, Membership, Node as Member, NodeStats,
    OtherSnapshot, PeerCounters, PeerError, Peers, PeersConfig, ReadError, ReadRequest, Security, Server, ServerConfig,
    Token,
};
use larder_telemetry::Sample;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::error::NodeError;
use super::open::{OpenDatasets, PeerAccess};
use crate::sharing::Sharing;

/// How often peers that refuse datasets are asked what they share instead, at most.
const OTHERS_EVERY: Duration = Duration::from_secs(2);

/// How a node shares its cache with its peers.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// This node's name in the membership.
    pub name: String,
    /// The address at which peers reach its cache; `None`: it reads from them and serves none.
    pub listen: Option<SocketAddr>,
    /// Connections accepted from one address, at most.
    pub connections_each_most: usize,
    /// The members, kept current by its creator.
    pub membership: Membership,
    /// How peers authenticate each other.
    pub security: Security,
}

/// The report of a member of the cluster.
#[derive(Debug)]
pub struct MemberReport {
    /// The member.
    pub member: Member,
    /// Its cached datasets and counters, or the reason that it did not answer.
    pub stats: Result<NodeStats, PeerError>,
}

/// A node's view of its peers.
#[derive(Debug)]
pub(super) struct Cluster {
    config: PeerConfig,
    peers: Arc<Peers>,
    counters: Arc<PeerCounters>,
}

impl Cluster {
    /// Contacts no member yet.
    pub(super) fn new(config: PeerConfig) -> Self {
        let counters = Arc::new(PeerCounters::default());
        let peers = Peers::new(
            PeersConfig::default(),
            &config.name,
            config.security.clone(),
            config.membership.clone(),
            Arc::clone(&counters),
        );
        Self { config, peers, counters }
    }

    /// Counters and gauges, by their names in the table of metrics. `ListNodes` reports more.
    pub(super) fn values(&self) -> [(&'static str, u64); 9] {
        let counters = &*self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("daemon_peer_reads_total", read(&counters.reads)),
            ("daemon_peer_read_bytes_total", read(&counters.read_bytes)),
            ("daemon_peer_failures_total", read(&counters.went_down)),
            ("daemon_peer_hedges_held_back_total", read(&counters.hedges_held_back)),
            ("daemon_peer_served_bytes_total", read(&counters.served_bytes)),
            ("daemon_peer_denied_total", counters.refused.of(&ReadError::Denied)),
            ("daemon_peer_not_let_in_total", read(&counters.not_let_in)),
            ("daemon_peer_not_served_total", counters.not_served_by_peers()),
            ("daemon_peer_under_way_bytes", read(&counters.under_way_bytes)),
        ]
    }

    /// Counters with labels.
    pub(super) fn samples(&self) -> Vec<Sample> {
        let errors = Cause::ALL
            .map(|cause| Sample::with("peer_errors_total", [("cause", cause.name())], self.counters.errors(cause)));
        // Both refusals that reveal whether a dataset exists share one count, as between peers.
        let refusals = [("by_peers", &self.counters.refused_by_peers), ("of_peers", &self.counters.refused)];
        let refusals = refusals.into_iter().flat_map(|(direction, refusals)| {
            refusals.for_all().map(move |(reason, count)| {
                Sample::with("peer_refusals_total", [("direction", direction), ("reason", reason)], count)
            })
        });
        errors.into_iter().chain(refusals).collect()
    }

    /// Follows membership and certificates until cancelled.
    pub(super) async fn follow(&self, stopping: CancellationToken) {
        let peers = Arc::clone(&self.peers).run(stopping.clone());
        match &self.config.security {
            Security::Tls(tls) => {
                tokio::join!(peers, Arc::clone(tls).watch(stopping));
            }
            Security::Plaintext => peers.await,
        }
    }

    /// The members, kept current.
    pub(super) fn membership(&self) -> Membership {
        self.config.membership.clone()
    }

    /// Serves the open datasets to peers until cancelled. Without an address to listen at, only waits for that.
    pub(super) async fn serve(&self, open: Arc<OpenDatasets>, stopping: CancellationToken) -> anyhow::Result<()> {
        let Some(listen) = self.config.listen else {
            stopping.cancelled().await;
            return Ok(());
        };
        let listener =
            TcpListener::bind(listen).await.with_context(|| format!("listen at {listen} (--peer-listen)"))?;
        info!(node = self.config.name, address = %listen, "serving peers");
        let connections_each_most = self.config.connections_each_most;
        let server = Server::new(
            ServerConfig { connections_each_most, ..ServerConfig::new(&self.config.name) },
            self.config.security.clone(),
            Arc::new(Served { open, buffers: Arc::default() }),
            Arc::clone(&self.counters),
            stopping,
        );
        server.serve(listener).await.context("serve peers")
    }

    /// The blocks of a cache, distributed over the members by `placement`.
    pub(super) fn sharing(&self, cache: CacheId, placement: Placement, token: Option<Token>) -> Sharing {
        Sharing::new(Arc::clone(&self.peers), cache, placement, token)
    }

    /// Learns which peers share other snapshots of the origins of `open` datasets, whenever a peer has refused one,
    /// until cancelled.
    pub(super) async fn follow_others(&self, open: &OpenDatasets, stopping: CancellationToken) {
        let follow = async {
            loop {
                self.peers.refusals_changed().await;
                for dataset in open.all() {
                    let Some(sharing) = dataset.sharing() else { continue };
                    sharing.others().apply(dataset.name(), self.others(sharing.asked()).await);
                }
                // A dataset that is mounted on one node after the other is refused by those that are yet to mount it.
                tokio::time::sleep(OTHERS_EVERY).await;
            }
        };
        stopping.run_until_cancelled(follow).await;
    }

    /// Snapshots of the same origin, shared by the peers that refuse a dataset.
    async fn others(&self, asked: AskedDataset) -> BTreeMap<String, OtherSnapshot> {
        let mut others = BTreeMap::new();
        for peer in self.peers.refusers(asked.cache) {
            // A peer that does not answer is bypassed, and the log says so.
            if let Ok(stats) = self.peers.stats(&peer, std::slice::from_ref(&asked)).await {
                others.extend(stats.others.first().map(|other| (peer, *other)));
            }
        }
        others
    }

    /// Asks each member what it has cached of the datasets that this node shares. All are asked at once: several that
    /// do not answer cost one timeout.
    pub(super) async fn report(&self, own: &OpenDatasets) -> Result<Vec<MemberReport>, NodeError> {
        let members = self.peers.nodes();
        let asked: Arc<[AskedDataset]> = own.shared().into();
        let reports: Vec<_> = members
            .iter()
            .cloned()
            .map(|member| {
                let (peers, asked) = (Arc::clone(&self.peers), Arc::clone(&asked));
                let own = (member.name == peers.own_name()).then(|| NodeStats {
                    datasets: own.cached(),
                    counters: self.counters.values().into_iter().collect(),
                    others: Vec::new(),
                });
                tokio::spawn(async move {
                    let stats = match own {
                        Some(stats) => Ok(stats),
                        None => peers.stats(&member.name, &asked).await,
                    };
                    MemberReport { member, stats }
                })
            })
            .collect();
        let mut reported = Vec::with_capacity(reports.len());
        for report in reports {
            reported.push(report.await?);
        }
        Ok(reported)
    }
}

/// The peers' view of a node's open datasets: of those that it shares, each by its token, and of no other.
#[derive(Debug)]
struct Served {
    open: Arc<OpenDatasets>,
    /// Memory for reads from the store.
    buffers: Arc<Buffers>,
}

#[tonic::async_trait]
impl Blocks for Served {
    async fn read(&self, request: &ReadRequest) -> Result<BlockBytes, ReadError> {
        let dataset = match self.open.for_peer(request.cache, request.token.as_ref()) {
            PeerAccess::Granted(dataset) => dataset,
            PeerAccess::Denied => return Err(ReadError::Denied),
            PeerAccess::NotShared => return Err(ReadError::UnknownDataset),
        };
        dataset.read_for_peer(request, &self.buffers).await
    }

    fn stats(&self, asked: &[AskedDataset]) -> Vec<DatasetStats> {
        self.open.cached_for_peer(asked)
    }

    fn others(&self, asked: &[AskedDataset]) -> Vec<OtherSnapshot> {
        asked.iter().filter_map(|asked| self.open.other_for_peer(asked)).collect()
    }

    fn name(&self, cache: CacheId) -> Option<String> {
        self.open.name_of_shared(cache)
    }
}
