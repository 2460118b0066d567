//! A node's cache: its store, the datasets that are open, the room they have, and the peers that it shares them with.
//!
//! The cast: [`NodeConfig`] configures it; [`Node`] opens datasets; `find` looks for them; `budget` decides how much of the
//! cache each gets; `open` is the table of open datasets; `cluster` serves them to peers.
//!
//! Invariants: a dataset is open at most once, however many users it has. Credentials are in memory only.

mod budget;
mod cluster;
mod error;
mod find;
mod open;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_dataset::Placement;
use larder_dataset::environment::PEER_TOKEN;
use larder_origin::OriginConfig;
use larder_peers::Token;
use larder_store::{Store, StoreConfig, StoreCounters};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::dataset::{CacheSpec, Dataset, DatasetConfig, store_values};
use crate::home::Home;
use crate::request::DatasetRequest;
use budget::Budget;
use cluster::Cluster;
use find::Finder;
use open::{OpenDatasets, check_settings, renew};

pub use cluster::{MemberReport, PeerConfig};
pub use error::{ErrorKind, NodeError};
pub use find::{Found, Prepared};
pub use larder_peers::{DatasetStats, NodeStats};
pub use larder_store::StoreError;
pub use open::OpenDataset;

/// How long a start waits for another process that is just closing the cache.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// How often it tries.
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// How long a stop waits for blocks on their way into the cache.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How a node runs.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The cache folder.
    pub cache_dir: PathBuf,
    /// Bytes of all datasets together that the cache may keep; `None`: four fifths of what the disk has free.
    pub cache_bytes: Option<u64>,
    /// Where manifests are kept.
    pub home: Home,
    /// How origins are reached unless a request says otherwise.
    pub origin: OriginConfig,
    /// The peers, if the node shares its cache.
    pub peers: Option<PeerConfig>,
    /// The socket of the daemon around this node, for its statistics.
    pub socket: Option<PathBuf>,
}

/// A node's cache.
#[derive(Debug)]
pub struct Node {
    config: NodeConfig,
    runtime: Handle,
    store: Store,
    open: Arc<OpenDatasets>,
    /// Held while a dataset is opened, so that none is opened twice.
    opening: tokio::sync::Mutex<()>,
    finder: Arc<Finder>,
    cluster: Option<Cluster>,
    stopping: CancellationToken,
}

impl Node {
    /// Opens the cache; waits up to 5 s if another process is just closing it. Blocks; must be called within a runtime.
    pub fn open(config: NodeConfig) -> Result<Arc<Self>, StoreError> {
        let started = Instant::now();
        let store = loop {
            match Store::open(StoreConfig::new(&config.cache_dir), Arc::new(StoreCounters::default())) {
                Err(StoreError::InUse { .. }) if started.elapsed() < LOCK_TIMEOUT => std::thread::sleep(LOCK_RETRY),
                opened => break opened?,
            }
        };
        info!(cache_dir = %config.cache_dir.display(), "cache open");
        let runtime = Handle::current();
        Ok(Arc::new(Self {
            cluster: config.peers.clone().map(Cluster::new),
            finder: Arc::new(Finder::new(config.home.clone(), config.origin.clone(), runtime.clone())),
            open: OpenDatasets::new(runtime.clone()),
            opening: tokio::sync::Mutex::default(),
            store,
            runtime,
            config,
            stopping: CancellationToken::new(),
        }))
    }

    /// How it runs.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The runtime that it was opened in.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Cancelled when the node is to stop: nothing is opened any more.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Shares the cache with its peers, until [`Self::stopping`] is cancelled. Errors: the address cannot be used, or the
    /// server ended.
    pub async fn share(&self) -> anyhow::Result<()> {
        let Some(cluster) = &self.cluster else {
            self.stopping.cancelled().await;
            return Ok(());
        };
        let following = async {
            cluster.follow(self.stopping.clone()).await;
            Ok(())
        };
        tokio::try_join!(cluster.serve(Arc::clone(&self.open), self.stopping.clone()), following).map(|_| ())
    }

    /// Finds a dataset and checks that its credentials may read it. Waits at most `wait`; an import goes on after that.
    /// Cancel-safe.
    pub async fn prepare(&self, request: &DatasetRequest, wait: Duration) -> Result<Prepared, NodeError> {
        self.check_sharing(request)?;
        self.finder.prepare(request, wait).await
    }

    /// Finds a dataset whose caller has resolved it already and may see the file.
    pub async fn find(&self, request: &DatasetRequest) -> Result<Found, NodeError> {
        self.check_sharing(request)?;
        self.finder.find(request).await
    }

    /// Finds the dataset that has been served under `id` before. The origin is not asked: cached files can be served while it
    /// is down. Nor are the peers checked: readers must not wait for peers that the node had before a restart.
    pub async fn find_again(&self, id: &str, request: &DatasetRequest) -> Result<Found, NodeError> {
        self.finder.find_again(id, request).await
    }

    /// Opens a dataset that was found, or joins its other users. Errors: `InUse` if it is open with other settings.
    pub async fn open_dataset(
        self: &Arc<Self>,
        found: Found,
        request: &DatasetRequest,
    ) -> Result<OpenDataset, NodeError> {
        let _opening = self.opening.lock().await;
        if self.stopping.is_cancelled() {
            return Err(NodeError::Stopping);
        }
        if let Some(open) = self.open.join(&found.id) {
            check_settings(&open, request)?;
            renew(&open, found.origin, given_token(request)?);
            return Ok(open);
        }
        let sharing = self.sharing(&found, request)?;
        let deadline = self.finder.origin_config(request).deadline;
        let (node, spec) = (Arc::clone(self), request.spec.clone());
        let open = move || {
            let config = &node.config;
            let budget = Budget { store: &node.store, cache_dir: &config.cache_dir, total_bytes: config.cache_bytes };
            let policy = spec.policy.unwrap_or_default();
            let reservation_bytes = budget.reserve(&found.manifest, spec.cache_bytes, policy)?;
            info!(mount = found.id, reservation_bytes, %policy, "dataset open");
            let cache = CacheSpec { reservation_bytes, policy, seed: u64::from(std::process::id()) };
            let dataset = Dataset::open(
                found.manifest,
                &node.store,
                cache,
                found.origin,
                sharing,
                &node.runtime,
                DatasetConfig { read_deadline: deadline, ..DatasetConfig::DEFAULT },
            )?;
            if let Some(socket) = &config.socket {
                dataset.served_at(socket.clone());
            }
            Ok(node.open.add(found.id, dataset))
        };
        tokio::task::spawn_blocking(open).await?
    }

    /// Checks that an open dataset can serve this request too, and lets it use the request's credentials. False if the dataset
    /// is not open.
    pub fn renew(&self, found: &Found, request: &DatasetRequest) -> Result<bool, NodeError> {
        let Some(open) = self.open.join(&found.id) else { return Ok(false) };
        check_settings(&open, request)?;
        renew(&open, Arc::clone(&found.origin), given_token(request)?);
        Ok(true)
    }

    /// What each member of the cluster has cached. Errors: `NoPeers`.
    pub async fn members(&self) -> Result<Vec<MemberReport>, NodeError> {
        self.cluster.as_ref().ok_or(NodeError::NoPeers)?.report(&self.open).await
    }

    /// Counters and gauges by their names in the table of metrics. Counters include those of closed datasets.
    pub fn values(&self) -> BTreeMap<&'static str, u64> {
        let mut values = self.open.sums();
        values.extend(store_values(self.store.counters()));
        values.extend(self.cluster.iter().flat_map(Cluster::values));
        values
    }

    /// True if no closed dataset has blocks on their way into the cache any more.
    pub fn is_drained(&self) -> bool {
        self.open.is_drained()
    }

    /// Changes when a closed dataset begins or ends to drain.
    pub fn watch_draining(&self) -> watch::Receiver<usize> {
        self.open.watch_draining()
    }

    /// Waits until [`Self::is_drained`].
    pub async fn drained(&self) {
        // The sender lives as long as the node.
        let _ = self.watch_draining().wait_for(|draining| *draining == 0).await;
    }

    /// Waits a bounded time for blocks on their way into the cache, and closes it.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.stopping.cancel();
        for dataset in self.open.all() {
            if tokio::time::timeout(DRAIN_TIMEOUT, dataset.drain()).await.is_err() {
                warn!(dataset = dataset.name(), "some blocks on their way into the cache are lost");
            }
        }
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, self.drained()).await;
        self.store.close()?;
        info!("cache closed");
        Ok(())
    }

    /// Whether the dataset can be shared as requested.
    fn check_sharing(&self, request: &DatasetRequest) -> Result<(), NodeError> {
        self.token(request)?;
        match request.spec.placement.unwrap_or_default() {
            placement if placement != Placement::Local && self.cluster.is_none() => {
                let what = format_args!("{placement} needs other nodes: start larderd with --peers");
                Err(NodeError::invalid("placement", what))
            }
            _ => Ok(()),
        }
    }

    /// How a dataset is shared, if it is.
    fn sharing(
        &self,
        found: &Found,
        request: &DatasetRequest,
    ) -> Result<Option<Arc<crate::sharing::Sharing>>, NodeError> {
        let placement = request.spec.placement.unwrap_or_default();
        let token = self.token(request)?;
        let Some(cluster) = &self.cluster else {
            if placement != Placement::Local {
                warn!(source = request.spec.source, %placement, "the node has no --peers any more: the dataset is cached here alone");
            }
            return Ok(None);
        };
        Ok(Some(cluster.sharing(found.manifest.snapshot(), placement, token)))
    }

    /// What opens the dataset to peers: the token that came with it, else this node's own, so that a tenant that brings other
    /// credentials opens it no further.
    fn token(&self, request: &DatasetRequest) -> Result<Option<Token>, NodeError> {
        let own = || self.config.origin.env.get(PEER_TOKEN).map(parse_token).transpose();
        given_token(request)?.map_or_else(own, |token| Ok(Some(token)))
    }
}

/// The token that came with a dataset's credentials.
fn given_token(request: &DatasetRequest) -> Result<Option<Token>, NodeError> {
    let given = request.credentials.as_ref().and_then(|credentials| credentials.get(PEER_TOKEN));
    given.map(parse_token).transpose()
}

fn parse_token(text: &str) -> Result<Token, NodeError> {
    // Line ends at the end come from `echo` and editors.
    let token = Token::new(text.trim_end_matches(['\n', '\r']));
    token.map_err(|error| NodeError::invalid(PEER_TOKEN, error))
}
