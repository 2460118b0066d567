//! The daemon among other nodes: what it knows of them, and what it gives to them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use anyhow::Context;
use larder_peers::{
    Ask, Blocks, Buffers, DatasetStats, Given, Membership, Node, NodeStats, PeerCounters, PeerError, Peers,
    PeersConfig, ReadError, Security, Server, ServerConfig, Token,
};
use larder_daemon_api::v1;
use larder_dataset::{Placement, SnapshotId};
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{info, warn};

use super::{Daemon, DaemonError, PEER_TOKEN, lock, placement_of};
use crate::chain::Chain;
use crate::dataset::{Dataset, PeerReadError};
use crate::fetch::{FetchError, ForPeer};
use crate::manifest_file::MappedManifest;
use crate::sharing::Sharing;

/// How this node shares its caches with others.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// This node's name among them.
    pub name: String,
    /// Where others reach its cache; `None`: it asks and is not asked.
    pub listen: Option<SocketAddr>,
    /// Who the nodes are. Whoever made it keeps it current.
    pub membership: Membership,
    /// How they know each other.
    pub security: Security,
}

/// The other nodes, as a daemon has them.
#[derive(Debug)]
pub(super) struct Cluster {
    config: PeerConfig,
    pub(super) peers: Arc<Peers>,
    counters: Arc<PeerCounters>,
}

impl Cluster {
    /// Knows the nodes that are named; asks none yet.
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

    /// What is counted, by its name in the table of metrics. `GetStats` and `ListNodes` tell more.
    pub(super) fn values(&self) -> [(&'static str, u64); 7] {
        let counters = &*self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("daemon_peer_reads_total", read(&counters.reads)),
            ("daemon_peer_read_bytes_total", read(&counters.read_bytes)),
            ("daemon_peer_failures_total", read(&counters.went_down)),
            ("daemon_peer_served_bytes_total", read(&counters.served_bytes)),
            ("daemon_peer_denied_total", counters.refused.of(&ReadError::Denied)),
            ("daemon_peer_not_let_in_total", read(&counters.not_let_in)),
            ("daemon_peer_under_way_bytes", read(&counters.under_way_bytes)),
        ]
    }

    /// Follows the nodes' coming and going, and the certificates, until told to stop.
    pub(super) async fn follow(daemon: Arc<Daemon>) -> anyhow::Result<()> {
        let stopping = daemon.stopping.clone();
        let Some(cluster) = &daemon.cluster else {
            stopping.cancelled().await;
            return Ok(());
        };
        let peers = Arc::clone(&cluster.peers).run(stopping.clone());
        match &cluster.config.security {
            Security::Tls(tls) => {
                tokio::join!(peers, Arc::clone(tls).watch(stopping));
            }
            Security::Plaintext => peers.await,
        }
        Ok(())
    }
}

/// Serves the caches of `daemon` to other nodes until it stops. Does nothing where nobody is to be served.
pub(super) async fn serve(daemon: Arc<Daemon>) -> anyhow::Result<()> {
    let Some((cluster, listen)) = daemon.cluster.as_ref().and_then(|it| Some((it, it.config.listen?))) else {
        daemon.stopping.cancelled().await;
        return Ok(());
    };
    let listener = TcpListener::bind(listen).await.with_context(|| format!("listen at {listen} (--peer-listen)"))?;
    info!(node = cluster.config.name, address = %listen, "serving other nodes");
    let blocks = Arc::new(Served { daemon: Arc::downgrade(&daemon), buffers: Arc::default() });
    let server = Server::new(
        ServerConfig::new(&cluster.config.name),
        cluster.config.security.clone(),
        blocks,
        Arc::clone(&cluster.counters),
        daemon.stopping.clone(),
    );
    server.serve(listener).await.context("serve other nodes")
}

impl Daemon {
    /// Whether the dataset can be shared as it is asked to be. Who offers a connection that has readers is not asked: they
    /// must not wait for other nodes that this daemon had in another life.
    pub(super) fn check_sharing(&self, spec: &v1::Dataset) -> Result<(), DaemonError> {
        self.peer_token(spec)?;
        match placement_of(spec)?.unwrap_or_default() {
            placement if placement != Placement::Local && self.cluster.is_none() => {
                let what = format_args!("{placement} needs other nodes: start larderd with --peers");
                Err(DaemonError::invalid("placement", what))
            }
            _ => Ok(()),
        }
    }

    /// How the dataset behind `manifest` is shared, if it is.
    pub(super) fn sharing(
        &self,
        manifest: &MappedManifest,
        spec: &v1::Dataset,
    ) -> Result<Option<Arc<Sharing>>, DaemonError> {
        let placement = placement_of(spec)?.unwrap_or_default();
        let token = self.peer_token(spec)?;
        let Some(cluster) = &self.cluster else {
            if placement != Placement::Local {
                warn!(source = spec.source, %placement, "there are no --peers any more: the dataset is this node's own");
            }
            return Ok(None);
        };
        let peers = Arc::clone(&cluster.peers);
        Ok(Some(Arc::new(Sharing::new(peers, manifest.snapshot(), placement, token))))
    }

    /// What opens the dataset to other nodes: the token that came with it, else this daemon's own, so that whoever brings
    /// other credentials opens it no further.
    fn peer_token(&self, spec: &v1::Dataset) -> Result<Option<Token>, DaemonError> {
        let own = || self.config.origin.env.get(PEER_TOKEN).map(parse_token).transpose();
        given_token(spec)?.map_or_else(own, |token| Ok(Some(token)))
    }

    /// Every node of the cluster, and what it tells about itself.
    pub(super) async fn nodes(self: &Arc<Self>) -> Result<Vec<v1::NodeInfo>, DaemonError> {
        let Some(cluster) = &self.cluster else { return Err(DaemonError::NoPeers) };
        let members = cluster.peers.nodes();
        // All at once: one that does not answer costs the wait for it once.
        let asked: Vec<_> = members
            .iter()
            .cloned()
            .map(|node| {
                let (daemon, peers) = (Arc::clone(self), Arc::clone(&cluster.peers));
                tokio::spawn(async move {
                    let told = if node.name == peers.own_name() {
                        let counters = daemon.cluster.iter().flat_map(|cluster| cluster.counters.values()).collect();
                        Ok(NodeStats { datasets: daemon.cached(), counters })
                    } else {
                        peers.stats(&node.name).await
                    };
                    node_info(node, told)
                })
            })
            .collect();
        let mut nodes = Vec::with_capacity(asked.len());
        for asked in asked {
            nodes.push(asked.await.map_err(DaemonError::Panic)?);
        }
        Ok(nodes)
    }

    /// What is cached of each dataset, sorted by snapshot.
    fn cached(&self) -> Vec<DatasetStats> {
        let mut cached: Vec<DatasetStats> = lock(&self.mounts)
            .iter()
            .map(|mount| {
                let (usage, manifest) = (mount.dataset.cache_usage(), mount.dataset.manifest());
                DatasetStats {
                    snapshot: manifest.snapshot(),
                    name: mount.dataset.name().to_owned(),
                    blocks_cached: usage.blocks_cached,
                    bytes_cached: usage.used_bytes,
                    capacity_bytes: usage.capacity_bytes,
                }
            })
            .collect();
        cached.sort_by_key(|dataset| dataset.snapshot.0);
        cached.dedup_by_key(|dataset| dataset.snapshot);
        cached
    }

    fn dataset_for(&self, snapshot: SnapshotId, token: Option<&Token>) -> Result<Arc<Dataset>, ReadError> {
        let open: Vec<Arc<Dataset>> = lock(&self.mounts)
            .iter()
            .filter(|mount| mount.dataset.manifest().snapshot() == snapshot)
            .map(|mount| Arc::clone(&mount.dataset))
            .collect();
        if open.is_empty() {
            return Err(ReadError::UnknownDataset);
        }
        let admits = |dataset: &&Arc<Dataset>| dataset.sharing().is_some_and(|sharing| sharing.admits(token));
        open.iter().find(admits).cloned().ok_or(ReadError::Denied)
    }
}

/// The token that came with a dataset's credentials.
pub(super) fn given_token(spec: &v1::Dataset) -> Result<Option<Token>, DaemonError> {
    let given = spec.credentials.as_ref().and_then(|credentials| credentials.variables.get(PEER_TOKEN));
    given.map(|token| parse_token(token)).transpose()
}

fn parse_token(text: &str) -> Result<Token, DaemonError> {
    // Line ends at the end come from `echo` and editors.
    let token = Token::new(text.trim_end_matches(['\n', '\r']));
    token.map_err(|error| DaemonError::invalid(PEER_TOKEN, error))
}

/// A daemon's datasets, as other nodes see them.
#[derive(Debug)]
struct Served {
    daemon: Weak<Daemon>,
    /// For what is read of the stores.
    buffers: Arc<Buffers>,
}

impl Served {
    fn daemon(&self) -> Result<Arc<Daemon>, ReadError> {
        self.daemon.upgrade().ok_or(ReadError::Stopping)
    }
}

#[tonic::async_trait]
impl Blocks for Served {
    async fn read(&self, ask: &Ask) -> Result<Given, ReadError> {
        let dataset = self.daemon()?.dataset_for(ask.snapshot, ask.token.as_ref())?;
        let range = ask.start..ask.start + ask.len;
        match dataset.read_for_peer(ask.block, range, ask.forwarded, &self.buffers).await {
            Ok(Some(ForPeer::Whole(bytes, crc))) => Ok(Given::Whole(bytes, crc)),
            Ok(Some(ForPeer::Arriving(first, rest))) => {
                let rest = ReceiverStream::new(rest).map(|piece| piece.map_err(|error| refusal(&error)));
                Ok(Given::Arriving(Box::pin(tokio_stream::once(Ok(first)).chain(rest))))
            }
            Ok(None) => Err(ReadError::unavailable("it is on its way here from another node")),
            Err(PeerReadError::NoSuchRange) => Err(ReadError::NoSuchRange),
            Err(PeerReadError::Fetch(error)) => Err(refusal(&error)),
        }
    }

    fn stats(&self) -> Vec<DatasetStats> {
        self.daemon().map(|daemon| daemon.cached()).unwrap_or_default()
    }
}

/// What another node is told when its block cannot be had.
fn refusal(error: &FetchError) -> ReadError {
    match error {
        FetchError::Gone { .. } => ReadError::Gone,
        FetchError::Stale { .. } => ReadError::Stale,
        FetchError::TimedOut { .. } => ReadError::TimedOut,
        FetchError::Stopped => ReadError::Stopping,
        // Who asks has credentials of its own, and may be luckier.
        FetchError::Denied { .. }
        | FetchError::Unavailable { .. }
        | FetchError::Corrupt { .. }
        | FetchError::Manifest(_) => ReadError::unavailable("its origin does not give it"),
    }
}

/// A node, with what it told or why it did not.
fn node_info(node: Node, told: Result<NodeStats, PeerError>) -> v1::NodeInfo {
    let (stats, error) = match told {
        Ok(stats) => (Some(stats), String::new()),
        Err(error) => (None, Chain(&error).to_string()),
    };
    let (datasets, counters) = stats.map(|stats| (stats.datasets, stats.counters)).unwrap_or_default();
    let cached = |dataset: DatasetStats| v1::CachedDataset {
        snapshot: dataset.snapshot.to_string(),
        name: dataset.name,
        blocks: dataset.blocks_cached,
        bytes: dataset.bytes_cached,
        capacity_bytes: dataset.capacity_bytes,
    };
    v1::NodeInfo {
        name: node.name,
        address: node.address.to_string(),
        weight: node.weight,
        zone: node.zone,
        error,
        datasets: datasets.into_iter().map(cached).collect(),
        counters,
    }
}
