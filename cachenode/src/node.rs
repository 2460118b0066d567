//! A node's cache: its store, its open datasets, their reservations, and the peers that it shares them with.
//!
//! The cast: [`NodeConfig`] configures it; [`Node`] opens datasets; `find` finds their manifests and origins; `budget` decides
//! how much of the cache each of them gets; `open` is the table of open datasets; `cluster` serves them to peers.
//!
//! Invariants: a dataset is open at most once, however many users it has. Credentials are in memory only.

mod budget;
mod cluster;
mod error;
mod find;
mod open;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_dataset::environment::PEER_TOKEN;
use larder_dataset::{Placement, SnapshotId};
use larder_origin::OriginConfig;
use larder_peers::{Membership, Token};
use larder_store::{Store, StoreConfig, StoreCounters};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::counters::store_values;
use crate::dataset::{CacheSpec, Dataset};
use crate::fetch::FetchConfig;
use crate::home::Home;
use crate::ownership::OwnedBlocks;
use crate::request::DatasetRequest;
use crate::sharing::Sharing;
use budget::{Budget, Claim, Share};
use cluster::Cluster;
use find::Finder;
use open::{OpenDatasets, check_placement, check_settings, renew};

pub use cluster::{MemberReport, PeerConfig};
pub use error::{ErrorKind, NodeError};
pub use find::{Found, Prepared};
pub use larder_peers::{DatasetStats, NodeStats};
pub use larder_store::StoreError;
pub use open::{OpenDataset, User};

/// How long a start waits for another process to close the cache.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between two attempts to open the cache.
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// How long the list of nodes must have been known before reservations follow it: it may change a few times in a row.
const MEMBERS_SETTLE: Duration = Duration::from_secs(1);

/// How long a stop waits for the blocks in flight to reach the cache.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The cache folder.
    pub cache_dir: PathBuf,
    /// Bytes that all datasets together may take on the disk; `None`: four fifths of the free disk space.
    pub cache_bytes: Option<u64>,
    /// The part of the whole disk that the cache leaves free, in percent.
    pub keep_free_percent: u8,
    /// The folder of manifests.
    pub home: Home,
    /// The settings for origins, where a request has none of its own.
    pub origin: OriginConfig,
    /// The peers, if the node shares its cache.
    pub peers: Option<PeerConfig>,
    /// The socket of the daemon around this node, shown in the statistics.
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
    /// Opens the cache; waits up to 5 s for another process to close it. Blocks; must be called within a runtime.
    pub fn open(config: NodeConfig) -> Result<Arc<Self>, StoreError> {
        let started = Instant::now();
        let store = loop {
            let keep_free_percent = config.keep_free_percent;
            let store = StoreConfig { keep_free_percent, ..StoreConfig::new(&config.cache_dir) };
            match Store::open(store, Arc::new(StoreCounters::default())) {
                Err(StoreError::InUse { .. }) if started.elapsed() < LOCK_TIMEOUT => std::thread::sleep(LOCK_RETRY),
                opened => break opened?,
            }
        };
        info!(cache_dir = %config.cache_dir.display(), "cache open");
        let runtime = Handle::current();
        let finder = Finder::new(config.home.clone(), config.origin.clone(), runtime.clone());
        recover_connections(&store, &finder)?;
        Ok(Arc::new(Self {
            cluster: config.peers.clone().map(Cluster::new),
            finder: Arc::new(finder),
            open: OpenDatasets::new(runtime.clone()),
            opening: tokio::sync::Mutex::default(),
            store,
            runtime,
            config,
            stopping: CancellationToken::new(),
        }))
    }

    /// The configuration that it was opened with.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The runtime that it was opened in.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Cancelled to stop the node: no dataset is opened after that.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Shares the cache with its peers, until [`Self::stopping`] is cancelled. Errors: the address cannot be used, or the
    /// server ended.
    pub async fn share(self: &Arc<Self>) -> anyhow::Result<()> {
        let Some(cluster) = &self.cluster else {
            self.stopping.cancelled().await;
            return Ok(());
        };
        let follow = async {
            tokio::join!(cluster.follow(self.stopping.clone()), self.follow_members(cluster.membership()));
            Ok(())
        };
        tokio::try_join!(cluster.serve(Arc::clone(&self.open), self.stopping.clone()), follow).map(|_| ())
    }

    /// Makes reservations follow the list of nodes, where nobody stated a size.
    async fn follow_members(self: &Arc<Self>, mut members: Membership) {
        let follow = async {
            while members.changed().await.is_ok() {
                tokio::time::sleep(MEMBERS_SETTLE).await;
                // Before a rebuild has counted it, it is not known what a cache holds.
                while self.open.all().iter().any(|dataset| dataset.cache_usage().rebuilding) {
                    tokio::time::sleep(MEMBERS_SETTLE).await;
                }
                members.mark_unchanged();
                let _opening = self.opening.lock().await;
                let node = Arc::clone(self);
                if let Err(error) = tokio::task::spawn_blocking(move || node.follow_owned()).await {
                    warn!(%error, "reservations do not follow the list of nodes");
                }
            }
            // The watcher has stopped. The last list stays.
            self.stopping.cancelled().await;
        };
        self.stopping.run_until_cancelled(follow).await;
    }

    /// Leaves out what is being rebuilt: it was opened after the list had changed.
    fn follow_owned(&self) {
        let counted = self.open.all().into_iter().filter(|dataset| !dataset.cache_usage().rebuilding);
        let mut owned: Vec<_> = counted.filter_map(|it| Some((it.owned_bytes()?, it))).collect();
        // Those that give room back come first.
        owned.sort_by_key(|(bytes, dataset)| *bytes > dataset.cache_usage().capacity_bytes);
        for (bytes, dataset) in owned {
            if let Err(error) = self.budget().follow_owned(&dataset, bytes) {
                warn!(dataset = dataset.name(), %error, "the reservation does not follow the list of nodes");
            }
        }
    }

    fn budget(&self) -> Budget<'_> {
        let config = &self.config;
        Budget { store: &self.store, cache_dir: &config.cache_dir, total_bytes: config.cache_bytes }
    }

    /// Finds a dataset and checks that its credentials may read it. Waits at most `wait`; an import continues after that.
    /// Cancel-safe.
    pub async fn prepare(&self, request: &DatasetRequest, wait: Duration) -> Result<Prepared, NodeError> {
        self.check_sharing(request)?;
        self.finder.prepare(request, wait).await
    }

    /// Finds a dataset for a caller that has resolved it already and may read its manifest.
    pub async fn find(&self, request: &DatasetRequest) -> Result<Found, NodeError> {
        self.check_sharing(request)?;
        self.finder.find(request).await
    }

    /// Finds the dataset that was served under `id` before. Sends no request to the origin: cached files can be served while it
    /// is down. Does not check for peers either: a node that had peers before a restart and has none now must serve its readers.
    pub async fn find_again(&self, id: &str, request: &DatasetRequest) -> Result<Found, NodeError> {
        self.finder.find_again(id, request).await
    }

    /// Opens a dataset that was found, or joins its other users. Errors: `Stopping`; for a [`User::Mount`] also `InUse` if it is
    /// open with other settings, and `NoRoom`.
    pub async fn open_dataset(
        self: &Arc<Self>,
        found: Found,
        request: &DatasetRequest,
        user: User,
    ) -> Result<OpenDataset, NodeError> {
        let _opening = self.opening.lock().await;
        if self.stopping.is_cancelled() {
            return Err(NodeError::Stopping);
        }
        if let Some(open) = self.open.join(&found.id, user) {
            check_settings(&open, request, user)?;
            renew(&open, found.origin, self.token(request)?);
            if user == User::Connection {
                let (dataset, id) = (Arc::clone(open.dataset()), found.id);
                tokio::task::spawn_blocking(move || dataset.hold(&id)).await?;
            }
            return Ok(open);
        }
        let sharing = self.sharing(&found, request)?;
        let deadline = self.finder.origin_config(request).deadline;
        let (node, spec) = (Arc::clone(self), request.spec.clone());
        let open = move || {
            let config = &node.config;
            let owned = sharing.as_ref().filter(|_| spec.cache_bytes.is_none());
            let owned = owned.map(|sharing| OwnedBlocks::new(Arc::clone(&found.manifest), Arc::clone(sharing)));
            let owned_bytes = owned.and_then(|owned| owned.share_bytes());
            let claim = Claim { manifest: &found.manifest, spec: &spec, owned_bytes, exactly: user == User::Mount };
            let Share { promised, bytes: reservation_bytes, policy } = node.budget().reserve(claim)?;
            info!(mount = found.id, reservation_bytes, wanted_bytes = promised.wanted_bytes, %policy, "dataset open");
            let cache = CacheSpec { reservation_bytes, promised, policy, seed: u64::from(std::process::id()) };
            let dataset = Dataset::open(
                found.manifest,
                &node.store,
                cache,
                found.origin,
                sharing,
                &node.runtime,
                FetchConfig { read_deadline: deadline, ..FetchConfig::DEFAULT },
            )?;
            if spec.cache_bytes.is_none() {
                dataset.follow_owned();
            }
            if let Some(socket) = &config.socket {
                dataset.served_at(socket.clone());
            }
            if user == User::Connection {
                dataset.hold(&found.id);
            }
            Ok(node.open.add(found.id, dataset, user))
        };
        tokio::task::spawn_blocking(open).await?
    }

    /// Notes that the keeper holds the connections of these mounts and of no others. A dataset that was open when the last
    /// process ended and that none of them shows counts as closed from now on. Blocks on the disk.
    pub fn keep_only(&self, mounts: &HashSet<String>) {
        self.store.keep_connections(|mount| mounts.contains(mount));
    }

    /// Notes that the keeper holds no connection of this mount any more. Blocks on the disk.
    pub fn let_go(&self, mount: &str) {
        self.store.keep_connections(|other| other != mount);
    }

    /// Checks that an open dataset can serve this request too. False if the dataset is not open. Its size and its policy stay as
    /// they are. Errors: `InUse`, with another placement.
    pub fn joins(&self, found: &Found, request: &DatasetRequest) -> Result<bool, NodeError> {
        let Some(open) = self.open.join(&found.id, User::Mount) else { return Ok(false) };
        check_placement(&open, request)?;
        check_settings(&open, request, User::Connection)?;
        Ok(true)
    }

    /// Makes a dataset, if it is open, use the request's credentials. Sends no request to the origin.
    pub fn renew(&self, id: &str, request: &DatasetRequest) -> Result<(), NodeError> {
        let Some(open) = self.open.join(id, User::Mount) else { return Ok(()) };
        let origin = self.finder.origin(open.manifest(), request)?;
        renew(&open, origin, self.token(request)?);
        Ok(())
    }

    /// The cache contents that each member of the cluster reports. Errors: `NoPeers`.
    pub async fn members(&self) -> Result<Vec<MemberReport>, NodeError> {
        self.cluster.as_ref().ok_or(NodeError::NoPeers)?.report(&self.open).await
    }

    /// Counters and gauges, by their names in the table of metrics. Counters include those of closed datasets.
    pub fn values(&self) -> BTreeMap<&'static str, u64> {
        let mut values = self.open.sums();
        values.extend(store_values(self.store.counters()));
        values.extend(self.cluster.iter().flat_map(Cluster::values));
        values
    }

    /// True if no closed dataset has blocks in flight any more.
    pub fn is_drained(&self) -> bool {
        self.open.is_drained()
    }

    /// The number of closed datasets that still have blocks in flight.
    pub fn watch_draining(&self) -> watch::Receiver<usize> {
        self.open.watch_draining()
    }

    /// Waits until [`Self::is_drained`].
    pub async fn drained(&self) {
        // The sender lives as long as the node.
        let _ = self.watch_draining().wait_for(|draining| *draining == 0).await;
    }

    /// Waits a bounded time for the blocks in flight, and closes the cache.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.stopping.cancel();
        for dataset in self.open.all() {
            if tokio::time::timeout(DRAIN_TIMEOUT, dataset.drain()).await.is_err() {
                warn!(
                    dataset = dataset.name(),
                    "the cache closes before all blocks in flight are written: they will be fetched again"
                );
            }
        }
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, self.drained()).await;
        self.store.close()?;
        info!("cache closed");
        Ok(())
    }

    /// Checks that the dataset can be shared as requested.
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

    /// How the dataset is shared with the peers. `None`: not at all, because its placement is `local` or the node has no peers.
    fn sharing(&self, found: &Found, request: &DatasetRequest) -> Result<Option<Arc<Sharing>>, NodeError> {
        let placement = request.spec.placement.unwrap_or_default();
        let token = self.token(request)?;
        if placement == Placement::Local {
            return Ok(None);
        }
        let Some(cluster) = &self.cluster else {
            warn!(source = request.spec.source, %placement, "the node has no peers (--peers): it caches the dataset for itself alone");
            return Ok(None);
        };
        Ok(Some(cluster.sharing(found.manifest.snapshot(), placement, token)))
    }

    /// The token that peers must present to read the dataset: the one among its credentials, else this node's own. So a tenant
    /// with credentials of its own does not open the dataset to more peers.
    fn token(&self, request: &DatasetRequest) -> Result<Option<Token>, NodeError> {
        let own = || self.config.origin.env.get(PEER_TOKEN).map(parse_token).transpose();
        given_token(request)?.map_or_else(own, |token| Ok(Some(token)))
    }
}

/// Datasets of which it is not known whether connections show them, after an upgrade or the loss of files, are kept for all mounts
/// that have a manifest: the keeper says which of these exist.
fn recover_connections(store: &Store, finder: &Finder) -> Result<(), StoreError> {
    let unknown: Vec<_> = store.datasets()?.into_iter().filter(|info| info.connections.is_none()).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let mut mounts: HashMap<SnapshotId, BTreeSet<String>> = HashMap::new();
    for (mount, snapshot) in finder.kept_manifests() {
        mounts.entry(snapshot).or_default().insert(mount);
    }
    for info in unknown {
        store.found_connections(&info.snapshot, mounts.remove(&info.snapshot).unwrap_or_default());
    }
    Ok(())
}

/// The token among a dataset's credentials.
fn given_token(request: &DatasetRequest) -> Result<Option<Token>, NodeError> {
    let given = request.credentials.as_ref().and_then(|credentials| credentials.get(PEER_TOKEN));
    given.map(parse_token).transpose()
}

fn parse_token(text: &str) -> Result<Token, NodeError> {
    // `echo` and editors add a line end.
    let token = Token::new(text.trim_end_matches(['\n', '\r']));
    token.map_err(|error| NodeError::invalid(PEER_TOKEN, error))
}
