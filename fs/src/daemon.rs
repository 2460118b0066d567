//! The node daemon: one cache, many mounts.
//!
//! The cast: [`DaemonConfig`] says how; [`Daemon`] owns the store and the mounts; `prepare` finds datasets for who asks;
//! `room` decides what part of the cache each gets; `service` answers gRPC, `handover` takes connections from the keeper and
//! tells which are held; `status` is the only place where an error becomes a gRPC code.
//!
//! Invariants: a dataset is open at most once, however many mounts show it. A mount is in the list as long as the kernel
//! may ask for it. Credentials are in memory only.

mod handover;
mod peers;
mod prepare;
mod room;
mod service;
mod status;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_daemon_api::v1;
use larder_dataset::Placement;
use larder_origin::{Env, Origin, OriginConfig};
use larder_store::{PolicyKind, Store, StoreConfig, StoreCounters, StoreError};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

pub use peers::PeerConfig;
pub use status::DaemonError;

use crate::connection::{ServeConfig, Serving, serve};
use crate::dataset::{CacheSpec, Dataset, DatasetConfig};
use crate::home::Home;
use crate::manifest_file::MappedManifest;
use crate::mount::{MountConfig, Mounted, mount, unmount};
use crate::sharing::Sharing;
use crate::source::short_hash;
use room::Room;

/// The gRPC socket in the run folder.
pub const SOCKET: &str = "larderd.sock";

/// The handover socket in the run folder.
pub const HANDOVER_SOCKET: &str = "handover.sock";

/// The variable whose value opens a dataset to other nodes.
const PEER_TOKEN: &str = "LARDER_PEER_TOKEN";

/// How long a daemon that was just started counts as not ready unless a keeper has come: its connections come first.
const KEEPER_PATIENCE: Duration = Duration::from_secs(10);

/// How often is looked whether a mount has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long a stop waits for blocks that are on their way into the cache.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);

/// How long a start waits for another process that is leaving the cache.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// How a daemon runs.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// The cache folder.
    pub cache_dir: PathBuf,
    /// Bytes of all datasets together that the cache may keep; `None`: four fifths of what the disk has free.
    pub cache_bytes: Option<u64>,
    /// Where manifests are kept.
    pub home: Home,
    /// Where the sockets are.
    pub run_dir: PathBuf,
    /// Where /metrics, /healthz and /readyz are served, if at all.
    pub admin: Option<SocketAddr>,
    /// How origins are reached unless a mount says otherwise.
    pub origin: OriginConfig,
    /// The nodes that share their caches with this one, if any do.
    pub peers: Option<PeerConfig>,
    /// Threads that serve the kernel, for each mount that does not say.
    pub threads: usize,
    /// Stop when the last mount has ended.
    pub stop_when_idle: bool,
}

/// The daemon. Cheap to share; dropped it leaves mounts dead, so [`Daemon::stop`] comes first.
#[derive(Debug)]
pub struct Daemon {
    config: DaemonConfig,
    runtime: Handle,
    store: Store,
    mounts: Mutex<Vec<Arc<Mount>>>,
    /// The other nodes.
    cluster: Option<peers::Cluster>,
    /// Held while a dataset is opened or a mount is made, so that none is made twice.
    opening: tokio::sync::Mutex<()>,
    jobs: prepare::Jobs,
    /// Datasets whose last mount has ended, until their blocks are in the cache.
    draining: TaskTracker,
    had_mounts: AtomicBool,
    /// A keeper has come and has offered what it holds, if one comes at all.
    keeper_seen: AtomicBool,
    started: Instant,
    counters: DaemonCounters,
    stopping: CancellationToken,
}

/// One mount, or one connection that was handed over.
#[derive(Debug)]
struct Mount {
    id: String,
    dataset: Arc<Dataset>,
    /// What it was asked for as, with the newest credentials that proved good.
    spec: Mutex<v1::Dataset>,
    session: Mutex<Option<Session>>,
    /// What the keeper needs to get back.
    held: Option<Held>,
    dir: Option<PathBuf>,
}

/// What the daemon itself counts.
#[derive(Debug, Default)]
struct DaemonCounters {
    connections_taken: AtomicU64,
}

#[derive(Debug)]
struct Held {
    fd: OwnedFd,
    init: Vec<u8>,
}

#[derive(Debug)]
enum Session {
    Mounted(Mounted),
    Serving(Serving),
    /// No mount: other nodes alone read it, as long as the daemon runs.
    Held,
}

impl Session {
    fn is_over(&self) -> bool {
        match self {
            Self::Mounted(mounted) => mounted.is_over(),
            Self::Serving(serving) => serving.is_over(),
            Self::Held => false,
        }
    }

    fn wait(self) -> std::io::Result<()> {
        match self {
            Self::Mounted(mounted) => mounted.wait(),
            Self::Serving(serving) => serving.wait(),
            Self::Held => Ok(()),
        }
    }
}

impl Mount {
    fn is_over(&self) -> bool {
        lock(&self.session).as_ref().is_none_or(Session::is_over)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The policy asked for, if any.
fn policy_of(spec: &v1::Dataset) -> Result<Option<PolicyKind>, DaemonError> {
    match spec.policy.as_str() {
        "" => Ok(None),
        policy => policy.parse().map(Some).map_err(|error| DaemonError::invalid("policy", error)),
    }
}

/// How the dataset's blocks are to be spread, if that is said.
fn placement_of(spec: &v1::Dataset) -> Result<Option<Placement>, DaemonError> {
    match spec.placement.as_str() {
        "" => Ok(None),
        placement => placement.parse().map(Some).map_err(|error| DaemonError::invalid("placement", error)),
    }
}

/// A dataset that is open is shared with whoever asks for the same settings, or for none.
fn check_settings(open: &Dataset, spec: &v1::Dataset) -> Result<(), DaemonError> {
    let usage = open.cache_usage();
    if policy_of(spec)?.is_some_and(|policy| policy != usage.policy) {
        return Err(DaemonError::Served { what: "policy", has: usage.policy.to_string() });
    }
    // Room for more than there is, is room for all there is.
    let all = open.manifest().totals().bytes;
    if spec.cache_bytes.is_some_and(|bytes| bytes.min(all) != usage.capacity_bytes.min(all)) {
        return Err(DaemonError::Served { what: "cache size", has: format!("{} bytes", usage.capacity_bytes) });
    }
    let placement = open.sharing().map_or(Placement::Local, Sharing::placement);
    if placement_of(spec)?.is_some_and(|wanted| wanted != placement) {
        return Err(DaemonError::Served { what: "placement", has: placement.to_string() });
    }
    Ok(())
}

/// Has an open dataset read with what proved good just now: the credentials of its first reader may have been replaced
/// since, and so may its token.
fn renew(open: &Dataset, origin: Arc<dyn Origin>, spec: &v1::Dataset) -> Result<(), DaemonError> {
    open.replace_origin(origin);
    if let (Some(sharing), Some(token)) = (open.sharing(), peers::given_token(spec)?) {
        sharing.replace_token(token);
    }
    Ok(())
}

/// The name of a mount: one for a snapshot and the server that it is read from.
fn mount_id(manifest: &MappedManifest, endpoint: &str) -> String {
    short_hash(&[&manifest.snapshot().to_string(), endpoint])
}

impl Daemon {
    /// Opens the cache; waits a while if another process is just leaving it. Blocks; must be called within a runtime.
    pub fn open(config: DaemonConfig) -> Result<Arc<Self>, StoreError> {
        let started = Instant::now();
        let store = loop {
            match Store::open(StoreConfig::new(&config.cache_dir), Arc::new(StoreCounters::default())) {
                Err(StoreError::InUse { .. }) if started.elapsed() < LOCK_PATIENCE => {
                    std::thread::sleep(LOOK_EVERY);
                }
                opened => break opened?,
            }
        };
        info!(cache_dir = %config.cache_dir.display(), "cache open");
        Ok(Arc::new(Self {
            cluster: config.peers.clone().map(peers::Cluster::new),
            config,
            runtime: Handle::current(),
            store,
            mounts: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            jobs: prepare::Jobs::default(),
            draining: TaskTracker::new(),
            had_mounts: AtomicBool::new(false),
            keeper_seen: AtomicBool::new(false),
            started: Instant::now(),
            counters: DaemonCounters::default(),
            stopping: CancellationToken::new(),
        }))
    }

    /// Serves the sockets, until [`Self::stopping`] is cancelled or, if so configured, the last mount has ended.
    /// Errors: a socket or the admin address cannot be had, or a server ended.
    pub async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(service::serve(Arc::clone(&self), self.config.run_dir.join(SOCKET)));
        tasks.spawn(handover::serve(Arc::clone(&self), self.config.run_dir.join(HANDOVER_SOCKET)));
        if let Some(address) = self.config.admin {
            tasks.spawn(service::serve_admin(Arc::clone(&self), address));
        }
        tasks.spawn(peers::serve(Arc::clone(&self)));
        tasks.spawn(peers::Cluster::follow(Arc::clone(&self)));
        tasks.spawn(Arc::clone(&self).reap());
        let outcome = tokio::select! {
            () = self.stopping.cancelled() => Ok(()),
            Some(ended) = tasks.join_next() => ended.map_err(anyhow::Error::from).flatten(),
        };
        self.stopping.cancel();
        for socket in [SOCKET, HANDOVER_SOCKET] {
            let _ = std::fs::remove_file(self.config.run_dir.join(socket));
        }
        tasks.shutdown().await;
        outcome
    }

    /// Cancelled when the daemon is to stop.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Ends its own mounts, waiting for their readers to end what they have open; leaves connections that were handed over
    /// to the keeper; closes the cache.
    pub async fn stop(&self) -> anyhow::Result<()> {
        let mounts: Vec<Arc<Mount>> = lock(&self.mounts).clone();
        for mount in &mounts {
            if let Some(dir) = &mount.dir
                && !mount.is_over()
            {
                info!(dir = %dir.display(), "stopping");
                // Files may be in use: the mount goes out of sight, and its readers get to the end of what they have open.
                if let Err(error) = unmount(dir, true) {
                    warn!(%error, "cannot unmount");
                }
            }
        }
        for mount in &mounts {
            while mount.dir.is_some() && !mount.is_over() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            if tokio::time::timeout(DRAIN_PATIENCE, mount.dataset.drain()).await.is_err() {
                warn!(mount = mount.id, "some blocks on their way into the cache are lost");
            }
        }
        let _ = tokio::time::timeout(DRAIN_PATIENCE, self.drained()).await;
        self.store.close()?;
        info!("cache closed");
        Ok(())
    }

    /// How the origin of `spec` is reached.
    fn origin_config(&self, spec: &v1::Dataset) -> OriginConfig {
        let ours = &self.config.origin;
        let millis = |ms: u64, ours| if ms == 0 { ours } else { Duration::from_millis(ms) };
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        OriginConfig {
            endpoint: text(&spec.endpoint).or_else(|| ours.endpoint.clone()),
            region: text(&spec.region).or_else(|| ours.region.clone()),
            anonymous: spec.anonymous,
            attempt_timeout: millis(spec.attempt_timeout_ms, ours.attempt_timeout),
            deadline: millis(spec.read_deadline_ms, ours.deadline),
            concurrency: match spec.origin_concurrency {
                0 => ours.concurrency,
                n => n.min(4096) as usize,
            },
            // Credentials that were given are all there are: what they cannot do must not fall back to ours.
            env: match &spec.credentials {
                Some(given) => given.variables.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
                None => ours.env.clone(),
            },
            ..ours.clone()
        }
    }

    /// The dataset behind `manifest`, opened unless a mount has it already. Called with `opening` held.
    async fn open_dataset(
        self: &Arc<Self>,
        id: &str,
        manifest: Arc<MappedManifest>,
        origin: Arc<dyn Origin>,
        spec: &v1::Dataset,
    ) -> Result<Arc<Dataset>, DaemonError> {
        let policy = policy_of(spec)?;
        let open = lock(&self.mounts).iter().find(|mount| mount.id == id).map(|mount| Arc::clone(&mount.dataset));
        if let Some(dataset) = open {
            check_settings(&dataset, spec)?;
            renew(&dataset, origin, spec)?;
            return Ok(dataset);
        }
        let sharing = self.sharing(&manifest, spec)?;
        let daemon = Arc::clone(self);
        let origin_config = self.origin_config(spec);
        let (wanted, id) = (spec.cache_bytes, id.to_owned());
        let open = move || {
            let room =
                Room { store: &daemon.store, cache_dir: &daemon.config.cache_dir, budget: daemon.config.cache_bytes };
            let policy = policy.unwrap_or_default();
            let reservation_bytes = room.reserve(&manifest, wanted, policy)?;
            info!(mount = id, reservation_bytes, %policy, "dataset open");
            let cache = CacheSpec { reservation_bytes, policy, seed: u64::from(std::process::id()) };
            let config = DatasetConfig { read_deadline: origin_config.deadline, ..DatasetConfig::DEFAULT };
            let dataset = Dataset::open(manifest, &daemon.store, cache, origin, sharing, &daemon.runtime, config)?;
            dataset.served_at(socket_in(&daemon.config.run_dir));
            Ok(dataset)
        };
        tokio::task::spawn_blocking(open).await.map_err(DaemonError::Panic)?
    }

    /// Mounts a dataset at a folder of this machine. The mount is ready when this returns.
    pub async fn mount(self: &Arc<Self>, request: v1::MountRequest) -> Result<v1::Prepared, DaemonError> {
        let spec = request.dataset.unwrap_or_default();
        self.check_sharing(&spec)?;
        let found = self.find(&spec).await?;
        let _opening = self.opening.lock().await;
        self.refuse_when_stopping()?;
        let dataset = self.open_dataset(&found.id, found.manifest, found.origin, &spec).await?;
        let mut config = MountConfig::new(PathBuf::from(&request.dir));
        config.allow_other |= request.allow_other;
        config.threads = if request.threads == 0 { self.config.threads } else { request.threads.min(256) as usize };
        if request.read_ahead_bytes != 0 {
            config.read_ahead_bytes = request.read_ahead_bytes;
        }
        let shown = Arc::clone(&dataset);
        let mounted = tokio::task::spawn_blocking(move || mount(shown, &config)).await.map_err(DaemonError::Panic)?;
        let mounted = match mounted {
            Ok(mounted) => mounted,
            Err(error) => {
                self.close_unless_shown(dataset).await;
                return Err(error.into());
            }
        };
        let dir = mounted.path().to_owned();
        let mount = Mount {
            id: found.id,
            dataset,
            spec: Mutex::new(spec),
            session: Mutex::new(Some(Session::Mounted(mounted))),
            held: None,
            dir: Some(dir),
        };
        let prepared = self.prepared(&mount.id, &mount.dataset, true);
        self.show(mount);
        Ok(prepared)
    }

    /// Opens a dataset for other nodes alone, as long as the daemon runs.
    pub async fn hold(self: &Arc<Self>, spec: v1::Dataset) -> Result<(), DaemonError> {
        self.check_sharing(&spec)?;
        let found = self.find(&spec).await?;
        let _opening = self.opening.lock().await;
        self.refuse_when_stopping()?;
        let dataset = self.open_dataset(&found.id, found.manifest, found.origin, &spec).await?;
        info!(mount = found.id, source = spec.source, "dataset held for other nodes");
        self.show(Mount {
            id: found.id,
            dataset,
            spec: Mutex::new(spec),
            session: Mutex::new(Some(Session::Held)),
            held: None,
            dir: None,
        });
        Ok(())
    }

    /// Serves a connection whose mount the keeper made.
    async fn offer(self: &Arc<Self>, connection: v1::Connection, fd: OwnedFd) -> Result<(), DaemonError> {
        let spec = connection.dataset.unwrap_or_default();
        let found = self.find_again(&connection.mount, &spec).await?;
        let _opening = self.opening.lock().await;
        self.refuse_when_stopping()?;
        let dataset = self.open_dataset(&found.id, found.manifest, found.origin, &spec).await?;
        let config = ServeConfig { threads: self.config.threads, max_background: 1024 };
        let (shown, init) = (Arc::clone(&dataset), connection.init.clone());
        let serve = move || Ok((fd.try_clone()?, serve(shown, fd, &init, config)?));
        let served = tokio::task::spawn_blocking(serve).await.map_err(DaemonError::Panic)?;
        let (fd, serving) = match served {
            Ok(served) => served,
            Err(source) => {
                self.close_unless_shown(dataset).await;
                return Err(DaemonError::Connection { source });
            }
        };
        info!(mount = found.id, "connection taken");
        self.show(Mount {
            id: found.id,
            dataset,
            spec: Mutex::new(spec),
            session: Mutex::new(Some(Session::Serving(serving))),
            held: Some(Held { fd, init: connection.init }),
            dir: None,
        });
        self.counters.connections_taken.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A dataset that was opened for a mount that then failed.
    async fn close_unless_shown(&self, dataset: Arc<Dataset>) {
        if !lock(&self.mounts).iter().any(|mount| Arc::ptr_eq(&mount.dataset, &dataset)) {
            dataset.drain().await;
        }
    }

    fn refuse_when_stopping(&self) -> Result<(), DaemonError> {
        if self.stopping.is_cancelled() { Err(DaemonError::Stopping) } else { Ok(()) }
    }

    fn prepared(&self, id: &str, dataset: &Dataset, served: bool) -> v1::Prepared {
        let stats = dataset.stats().dataset;
        v1::Prepared {
            mount: id.to_owned(),
            name: stats.name,
            snapshot: stats.snapshot,
            files: stats.files.into(),
            bytes: stats.bytes,
            served,
        }
    }

    /// Takes mounts that have ended off the list, and gives the dataset's place in the store back once what is on its way
    /// there has arrived.
    async fn reap(self: Arc<Self>) -> anyhow::Result<()> {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            look.tick().await;
            let ended: Vec<Arc<Mount>> = lock(&self.mounts).iter().filter(|mount| mount.is_over()).cloned().collect();
            for mount in ended {
                lock(&self.mounts).retain(|other| !Arc::ptr_eq(other, &mount));
                let session = lock(&mount.session).take();
                if let Some(Err(error)) = session.map(Session::wait) {
                    warn!(mount = mount.id, %error, "the mount's session failed");
                }
                info!(mount = mount.id, dir = ?mount.dir, "unmounted");
                let daemon = Arc::clone(&self);
                self.draining.spawn(async move {
                    daemon.close_unless_shown(Arc::clone(&mount.dataset)).await;
                });
            }
            if self.config.stop_when_idle && self.had_mounts.load(Ordering::Relaxed) {
                let _opening = self.opening.lock().await;
                if lock(&self.mounts).is_empty() && self.draining.is_empty() {
                    self.stopping.cancel();
                    return Ok(());
                }
            }
        }
    }

    /// Waits until a mount that has ended has given its place in the cache back.
    async fn drained(&self) {
        while !self.draining.is_empty() {
            tokio::time::sleep(LOOK_EVERY / 5).await;
        }
    }

    fn show(&self, mount: Mount) {
        self.had_mounts.store(true, Ordering::Relaxed);
        lock(&self.mounts).push(Arc::new(mount));
    }
}

/// The variables of this process that say how an origin is reached and who asks.
pub fn origin_variables() -> v1::Credentials {
    const PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];
    // Profile files are looked for at home.
    let wanted =
        |name: &str| ["HOME", PEER_TOKEN].contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    v1::Credentials {
        variables: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| wanted(name))
            .collect(),
    }
}

/// Segments, sockets and RocksDB take file descriptors; the soft limit is often 1,024.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        warn!(%error, "cannot raise the limit of open files");
    }
}

/// The environment of this process, for a daemon that was given no other.
pub fn origin_of_process() -> OriginConfig {
    OriginConfig { env: Env::of_process(), ..OriginConfig::default() }
}

/// The gRPC socket of the daemon that owns `run_dir`.
pub fn socket_in(run_dir: &Path) -> PathBuf {
    run_dir.join(SOCKET)
}
