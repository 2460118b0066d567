//! A node's cache: its store, its open datasets, their reservations, and the peers that it shares them with.
//!
//! The cast: [`NodeConfig`] configures it; [`Node`] opens datasets; `find` finds their manifests and origins; `budget`
//! decides how much of the cache each of them gets, and `follow` changes that when the list of nodes changes; `opening`
//! opens them, `adoption` has them adopt blocks of earlier snapshots, and `open` is the table of those that are
//! open; `promises` keeps room for datasets whether or not they are, and [`caches`] lets a person drop or pin
//! those in the cache; `cluster` serves them to peers; `quotas` holds namespaces to their limits; `credentials`
//! rereads the node's own credentials.
//!
//! Invariants: a dataset is open at most once, however many users it has. Credentials are in memory only.

mod adoption;
mod budget;
pub mod caches;
mod cluster;
mod credentials;
mod error;
mod find;
mod follow;
mod one_each;
mod open;
mod opening;
mod promises;
mod quotas;
mod report;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use larder_dataset::Placement;
use larder_dataset::environment::PEER_TOKEN;
use larder_origin::OriginConfig;
use larder_peers::Token;
use larder_store::{Store, StoreConfig, StoreCounters};
use larder_telemetry::Sample;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::counters::store_values;
use crate::fetch::DiskThreads;
use crate::history::History;
use crate::home::Home;
use crate::importing::Importer;
use crate::memory::MemoryBudget;
use crate::request::DatasetRequest;
use crate::sharing::Sharing;
use budget::Budget;
use cluster::Cluster;
use find::Finder;
use one_each::OneEach;
use open::{OpenDatasets, check_placement, check_settings, is_changed_by, renew};

pub use cluster::{MemberReport, PeerConfig};
pub use error::{CacheRefused, ErrorKind, NodeError};
pub use find::{Found, Prepared};
pub use larder_peers::{DatasetStats, NodeStats};
pub use larder_store::{Promise, Quota, StoreError};
pub use open::{OpenDataset, User};
pub use report::{CacheReport, CachedSnapshot};

/// How long a start waits for another process to close the cache.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a change of a reservation waits for the dataset that is being opened.
const CHANGE_LATER_MOST: Duration = Duration::from_secs(60);

/// Interval between two attempts to open the cache.
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// How long a stop waits for the blocks in flight to reach the cache.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The cache folder.
    pub cache_dir: PathBuf,
    /// Further cache folders, on other disks.
    pub more_cache_dirs: Vec<PathBuf>,
    /// Bytes that all datasets together may take on the disks; `None`: four fifths of the free disk space.
    pub cache_bytes: Option<u64>,
    /// The part of each whole disk that the cache leaves free, in percent.
    pub keep_free_percent: u8,
    /// The folder of manifests.
    pub home: Home,
    /// The settings for origins, where a request has none of its own.
    pub origin: OriginConfig,
    /// Lists origins that have no manifest yet.
    pub importer: Importer,
    /// The peers, if the node shares its cache.
    pub peers: Option<PeerConfig>,
    /// Memory for the data in flight of all datasets.
    pub memory: Arc<MemoryBudget>,
    /// The socket of the daemon around this node, shown in the statistics.
    pub socket: Option<PathBuf>,
}

/// A node's cache.
#[derive(Debug)]
pub struct Node {
    config: NodeConfig,
    runtime: Handle,
    store: Store,
    disk_threads: DiskThreads,
    open: Arc<OpenDatasets>,
    /// Held while reservations change and while a dataset is opened; not while one is opened that keeps the reservation
    /// that it had, so that a restart opens several at a time. Never while a manifest is walked through.
    /// It belongs to the thread that does this, not to the caller, which may stop waiting.
    opening: Arc<tokio::sync::Mutex<()>>,
    /// The lock of each cache that is being opened, so that none is opened twice. Taken before `opening`.
    opening_each: OneEach,
    finder: Arc<Finder>,
    cluster: Option<Cluster>,
    /// Sends when the node's own credentials have changed.
    own_credentials: watch::Sender<()>,
    stopping: CancellationToken,
}

impl Node {
    /// Opens the cache; waits up to 5 s for another process to close it. Blocks; must be called within a runtime.
    pub fn open(config: NodeConfig) -> Result<Arc<Self>, StoreError> {
        let started = Instant::now();
        let store = loop {
            let keep_free_percent = config.keep_free_percent;
            let more_dirs = config.more_cache_dirs.clone();
            let store = StoreConfig { keep_free_percent, more_dirs, ..StoreConfig::new(&config.cache_dir) };
            match Store::open(store, Arc::new(StoreCounters::default())) {
                Err(StoreError::InUse { .. }) if started.elapsed() < LOCK_TIMEOUT => std::thread::sleep(LOCK_RETRY),
                opened => break opened?,
            }
        };
        info!(cache_dir = %config.cache_dir.display(), more = ?config.more_cache_dirs, "cache open");
        let runtime = Handle::current();
        let NodeConfig { home, cache_dir, more_cache_dirs, origin, importer, .. } = config.clone();
        let cache_dirs = [vec![cache_dir], more_cache_dirs].concat();
        let mut finder = Finder::new(home, cache_dirs, origin, importer, runtime.clone());
        recover(&store, &mut finder);
        config.importer.limit(&store.quotas());
        Ok(Arc::new(Self {
            cluster: config.peers.clone().map(Cluster::new),
            finder: Arc::new(finder),
            open: OpenDatasets::new(runtime.clone(), History::start(config.home.dir(), &runtime)),
            opening: Arc::default(),
            opening_each: OneEach::default(),
            disk_threads: DiskThreads::new(store.disks()),
            store,
            runtime,
            config,
            own_credentials: watch::Sender::default(),
            stopping: CancellationToken::new(),
        }))
    }

    /// The configuration that it was opened with.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Sets the number of threads that answer the kernel for one mount, of which a disk that hangs leaves some to the
    /// others.
    pub fn set_threads(&self, threads: usize) {
        self.store.set_threads(threads);
    }

    /// The runtime that it was opened in.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Cancelled to stop the node: no dataset is opened after that.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Has reservations follow the free room of the disk and its credentials their files, and shares the cache with its
    /// peers, if it has any, until [`Self::stopping`] is cancelled. Errors: the address cannot be used, or the server
    /// ended.
    pub async fn run(self: &Arc<Self>) -> anyhow::Result<()> {
        let Some(cluster) = &self.cluster else {
            tokio::join!(self.follow_room(), self.follow_credentials());
            return Ok(());
        };
        let follow = async {
            tokio::join!(
                cluster.follow(self.stopping.clone()),
                cluster.follow_others(&self.open, self.stopping.clone()),
                self.follow_members(cluster.membership()),
                self.follow_room(),
                self.follow_credentials(),
            );
            Ok(())
        };
        tokio::try_join!(cluster.serve(Arc::clone(&self.open), self.stopping.clone()), follow).map(|_| ())
    }

    fn budget(&self) -> Budget<'_> {
        let config = &self.config;
        Budget { store: &self.store, total_bytes: config.cache_bytes, keep_free_percent: config.keep_free_percent }
    }

    /// Finds a dataset and checks that its credentials may read it. Waits at most `wait`; an import continues after
    /// that. Cancel-safe.
    pub async fn prepare(&self, request: &DatasetRequest, wait: Duration) -> Result<Prepared, NodeError> {
        self.check_sharing(request)?;
        self.finder.prepare(request, wait).await
    }

    /// Finds a dataset for a caller that has resolved it already and may read its manifest.
    pub async fn find(&self, request: &DatasetRequest) -> Result<Found, NodeError> {
        self.check_sharing(request)?;
        self.finder.find(request).await
    }

    /// Finds the dataset that was served under `id` before. Sends no request to the origin: cached files can be served
    /// while it is down. Does not check for peers either: a node that had peers before a restart and has none now must
    /// serve its readers.
    pub async fn find_again(&self, id: &str, request: &DatasetRequest) -> Result<Found, NodeError> {
        self.finder.find_again(id, request).await
    }

    /// Notes that the keeper holds the connections of these mounts and of no others. A dataset that was open when the
    /// last process ended and that none of them shows counts as closed from now on. Blocks on the disk.
    pub fn keep_only(&self, mounts: &HashSet<String>) {
        self.keep_connections(|mount| mounts.contains(mount));
    }

    /// Notes that the keeper no longer holds a connection of this mount. Blocks on the disk.
    pub fn let_go(&self, mount: &str) {
        self.keep_connections(|other| other != mount);
    }

    /// Removes the kept manifests that are needed no more: those kept longer ago than `kept_least` whose datasets are
    /// neither cached nor open, and of which `is_mounted` says that they are not mounted. Blocks on the disk.
    pub fn collect_manifests(&self, kept_least: Duration, is_mounted: impl Fn(&str) -> bool) {
        let is_needed = |id: &str| is_mounted(id) || self.open.has(id);
        match self.finder.kept().collect(kept_least, is_needed) {
            Ok(0) => {}
            Ok(removed) => {
                info!(removed, "removed the manifests of snapshots that are no longer mounted or cached")
            }
            // Nothing can be removed from a home that is read-only either.
            Err(error) => debug!(%error, "cannot remove unused manifests yet"),
        }
    }

    fn keep_connections(&self, is_left: impl Fn(&str) -> bool) {
        if self.store.keep_connections(is_left) {
            self.open.follow_again();
        }
    }

    /// Checks that an open dataset can serve this request too, and gives it the room that the request wants, as far as
    /// there is some. False if the dataset is not open. Its policy stays as it is. Waits for no opening, which the disk
    /// may hold up: the room then changes when that has ended. Errors: `InUse`, with another placement.
    pub async fn joins(self: &Arc<Self>, found: &Found, request: &DatasetRequest) -> Result<bool, NodeError> {
        let Some(open) = self.open.join(&found.id, User::Mount) else { return Ok(false) };
        check_placement(&open, request)?;
        if !is_changed_by(&open, request) {
            check_settings(&open, request, User::Connection)?;
            return Ok(true);
        }
        let (node, request) = (Arc::clone(self), request.clone());
        let change = move |opening: OwnedMutexGuard<()>| {
            let _opening = opening;
            node.join_settings(&open, &request)
        };
        match Arc::clone(&self.opening).try_lock_owned() {
            Ok(opening) => tokio::task::spawn_blocking(move || change(opening)).await??,
            Err(_) => drop(self.runtime.spawn(Arc::clone(self).change_later(change))),
        }
        Ok(true)
    }

    /// Runs a change once no dataset is being opened. Gives up after a minute: callers that repeat it must not pile up.
    async fn change_later(
        self: Arc<Self>,
        change: impl FnOnce(OwnedMutexGuard<()>) -> Result<(), NodeError> + Send + 'static,
    ) {
        let locked = tokio::time::timeout(CHANGE_LATER_MOST, Arc::clone(&self.opening).lock_owned());
        let changed = match self.stopping.run_until_cancelled(locked).await {
            Some(Ok(opening)) => match tokio::task::spawn_blocking(move || change(opening)).await {
                Ok(changed) => changed,
                Err(error) => Err(error.into()),
            },
            Some(Err(_)) => {
                warn!("the room of a dataset is not adjusted to another volume: one has been opening for a minute");
                return;
            }
            None => return,
        };
        if let Err(error) = changed {
            warn!(%error, "cannot adjust the room of a dataset to another volume");
        }
    }

    /// Makes a dataset, if it is open, use the request's credentials. Sends no request to the origin.
    pub fn renew(&self, id: &str, request: &DatasetRequest) -> Result<(), NodeError> {
        let Some(open) = self.open.join(id, User::Mount) else { return Ok(()) };
        let origin = self.finder.origin(id, open.shared_manifest(), request)?;
        renew(&open, origin, self.token(request)?);
        Ok(())
    }

    /// Sets the labels of the node. Mirrors that are near by them are read first from now on.
    pub fn set_labels(&self, labels: BTreeMap<String, String>) {
        self.finder.labels().set(labels);
    }

    /// Why the origin of a request gives no keys for a pod's identity any more, if it does not.
    pub fn identity_trouble(&self, request: &DatasetRequest) -> Option<String> {
        self.finder.sessions().trouble(request.owner())
    }

    /// The cache contents that each member of the cluster reports. Errors: `NoPeers`.
    pub async fn members(&self) -> Result<Vec<MemberReport>, NodeError> {
        self.cluster.as_ref().ok_or(NodeError::NoPeers)?.report(&self.open).await
    }

    /// Counters and gauges, by their names in the table of metrics. Counters include those of closed datasets.
    pub fn values(&self) -> BTreeMap<&'static str, u64> {
        let mut values = self.open.sums();
        values.extend(store_values(self.store.counters()));
        values.extend(self.config.memory.values());
        values.extend(self.finder.mirror_counters().values());
        values.extend(self.cluster.iter().flat_map(Cluster::values));
        values
    }

    /// All metrics of the node: [`Self::values`], and those with labels, with the names of datasets or without.
    pub fn samples(&self, with_names: bool) -> Vec<Sample> {
        let mut samples: Vec<Sample> =
            self.values().into_iter().map(|(name, value)| Sample::new(name, value)).collect();
        samples.extend(self.open.samples(with_names));
        for (scheme, usage) in self.config.origin.limits.usage() {
            let scheme = [("scheme", scheme.as_str())];
            samples.push(Sample::with("origin_concurrency_limit", scheme, usage.places as u64));
            samples.push(Sample::with("origin_requests_in_flight", scheme, usage.in_flight as u64));
            samples.push(Sample::with("origin_requests_waiting", scheme, usage.waiting as u64));
        }
        samples.extend(self.cluster.iter().flat_map(Cluster::samples));
        samples
    }

    /// Counts for how long readers waited, and divides what they read into passes. A process that has readers calls
    /// this about once a second. `without_cpu` is for how long the threads that serve them had no CPU since the last
    /// call.
    pub fn look_at_readers(&self, without_cpu: Duration) {
        self.open.look_at_readers(without_cpu);
    }

    /// True if no closed dataset still has blocks in flight.
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
        // All at once: each may wait for an origin or a disk that hangs.
        let drains = self.open.all().into_iter().map(|dataset| async move {
            if tokio::time::timeout(DRAIN_TIMEOUT, dataset.drain()).await.is_err() {
                warn!(
                    dataset = dataset.name(),
                    "the cache closes before all blocks in flight are written: they will be fetched again"
                );
            }
        });
        join_all(drains).await;
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, self.drained()).await;
        self.open.close_history().await;
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

    /// How the dataset is shared with the peers. `None`: not at all, because its placement is `local` or the node has
    /// no peers.
    fn sharing(&self, found: &Found, request: &DatasetRequest) -> Result<Option<Arc<Sharing>>, NodeError> {
        let placement = request.spec.placement.unwrap_or_default();
        let token = self.token(request)?;
        if placement == Placement::Local {
            return Ok(None);
        }
        let Some(cluster) = &self.cluster else {
            warn!(
                source = request.spec.source, %placement,
                "the node has no peers (--peers): it caches the dataset for itself alone"
            );
            return Ok(None);
        };
        let sharing = cluster.sharing(found.key.id(), placement, token);
        Ok(Some(Arc::new(sharing.of_origin(self.finder.origin_hash(&found.manifest, request)?))))
    }

    /// The token that peers must present to read the dataset: the one among its credentials, else this node's own. So a
    /// tenant with credentials of its own does not open the dataset to more peers.
    fn token(&self, request: &DatasetRequest) -> Result<Option<Token>, NodeError> {
        let own = || self.finder.own_variables().get(PEER_TOKEN).map(parse_token).transpose();
        given_token(request)?.map_or_else(own, |token| Ok(Some(token)))
    }
}

/// Finds out by the kept manifests what the store does not know, after an upgrade or the loss of files. Datasets of
/// which it is not known whether connections show them are kept for all mounts that have a manifest: the keeper says
/// which of these exist. Those of which neither a key nor a manifest says who cached them are dropped now: later, the
/// manifest of the next reader would count.
fn recover(store: &Store, finder: &mut Finder) {
    let datasets = store.datasets();
    if datasets.iter().all(|info| info.is_keyed && info.connections.is_some()) {
        return;
    }
    let kept = finder.kept().all();
    for info in datasets {
        let (cache, snapshot) = (info.cache(), info.key.snapshot());
        let mounts: BTreeSet<String> =
            kept.iter().filter(|(_, of)| *of == snapshot).map(|(mount, _)| mount.clone()).collect();
        if !info.is_keyed && mounts.is_empty() {
            match store.release(&cache) {
                Ok(false) => {}
                Ok(true) => info!(
                    %snapshot,
                    "an earlier version cached the snapshot, and nothing says for whom: its blocks are dropped"
                ),
                Err(error) => warn!(%snapshot, %error, "cannot drop what an earlier version cached"),
            }
        } else if info.connections.is_none() {
            store.found_connections(&cache, mounts);
        }
    }
    finder.set_kept_before(kept);
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
