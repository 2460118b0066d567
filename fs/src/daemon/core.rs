//! The daemon: a node with mounts.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_cachenode::Credentials;
use larder_cachenode::node::{Found, Node, NodeConfig, NodeError, Prepared, StoreError};
use larder_cachenode::request::DatasetRequest;
use larder_daemon_api::handover::{Descriptors, is_alive, request_memory};
use larder_daemon_api::socket::GRPC_SOCKET;
use larder_daemon_api::v1;
use larder_dataset::Chain;
use larder_telemetry::TRACE_TARGET;
use larder_telemetry::admin::AdminAddress;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, info, trace_span, warn};

use super::convert;
use super::descriptor_store::{DescriptorStore, LeftMount};
use super::error::DaemonError;
use super::keepers::Keepers;
use super::mounts::{Connection, Mount, Mounts};
use super::offers::{Offer, Offers};
use crate::connection::ServeConfig;
use crate::fuse::BACKGROUND_MOST;
use crate::mount::{MountConfig, MountError, detach, is_mounted};
use crate::passthrough::Lender;
use crate::pool::Pool;

/// How long a stop waits for mounts that are being made, and for reads from connections that outlive this process. So
/// long a mount waits for its predecessor at the same folder, too.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause before a failed connection is retried. It doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// How often manifests that are no longer needed are removed.
const COLLECT_EVERY: Duration = Duration::from_secs(900);

/// The age below which an unneeded manifest is kept. A mount follows its Prepare within seconds, or minutes on a
/// machine that swaps. Until a keeper has listed its mounts, it may hold any mount; this process waits equally long for
/// one.
const KEPT_LEAST: Duration = Duration::from_secs(3600);
const KEPT_LEAST_WITHOUT_KEEPER: Duration = Duration::from_secs(7 * 24 * 3600);

/// The configuration of a daemon.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// The configuration of the cache.
    pub node: NodeConfig,
    /// The folders for the sockets. Each folder is used once it is writable. The first one must be writable from the
    /// start.
    pub run_dirs: Vec<PathBuf>,
    /// The address that serves /metrics, /healthz and /readyz; `None` serves none of them.
    pub admin: Option<AdminAddress>,
    /// The most threads that serve a mount at the same time, for each mount that sets no number.
    pub threads: usize,
    /// Verify each read of a mount whose connection was handed over, instead of letting the kernel read by itself what
    /// was verified once.
    pub verify_always: bool,
    /// The descriptor store of the service, which keeps the daemon's own mounts over restarts. Without one, they end
    /// with the process.
    pub store: Option<Arc<DescriptorStore>>,
    /// Stop after the last mount has ended.
    pub stop_when_idle: bool,
}

/// The daemon. Dropping it leaves dead mounts behind, so call [`Daemon::stop`] first.
#[derive(Debug)]
pub struct Daemon {
    pub(super) node: Arc<Node>,
    pub(super) mounts: Mounts,
    pub(super) offers: Offers,
    pub(super) run_dirs: Vec<PathBuf>,
    pub(super) admin: Option<AdminAddress>,
    threads: usize,
    verify_always: bool,
    pub(super) store: Option<Arc<DescriptorStore>>,
    pub(super) stop_when_idle: bool,
    pub(super) started: Instant,
    pub(super) keepers: Keepers,
    /// The number of volumes that were refused because of a quota.
    pub(super) quota_refusals: AtomicU64,
}

impl Daemon {
    /// Opens the cache for mounts that the threads of `pool` serve. Waits up to 5 s for another process that is closing
    /// the cache. Blocks; must be called within a runtime.
    pub fn open(config: DaemonConfig, pool: Arc<Pool>) -> Result<Arc<Self>, StoreError> {
        let DaemonConfig { node, run_dirs, admin, threads, verify_always, store, stop_when_idle } = config;
        let socket = run_dirs.first().map(|dir| dir.join(GRPC_SOCKET));
        let node = Node::open(NodeConfig { socket, ..node })?;
        node.set_threads(pool.most_of_one(threads));
        let (mounts, owner) = Mounts::new(Arc::clone(&node), pool, store.clone(), stop_when_idle);
        node.runtime().spawn(owner.run());
        Ok(Arc::new(Self {
            node,
            mounts,
            offers: Offers::default(),
            run_dirs,
            admin,
            threads,
            verify_always,
            store,
            stop_when_idle,
            started: Instant::now(),
            keepers: Keepers::default(),
            quota_refusals: AtomicU64::new(0),
        }))
    }

    /// The node, which owns the cache.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Cancelled when the daemon must stop.
    pub fn stopping(&self) -> &CancellationToken {
        self.node.stopping()
    }

    /// Waits, before a stop, for a keeper of the connections that were handed over, since this process's descriptors close
    /// when it exits: larder-csi may be replaced at the same time.
    pub async fn wait_for_keeper(&self) {
        // Offers are looked at before mounts, since an offer becomes a mount.
        let is_offered = self.offers.now().iter().any(|offer| offer.connection.own.is_none());
        let is_kept = |mount: &Arc<Mount>| mount.connection.is_some() && mount.own.is_none();
        let is_needed = is_offered || self.mounts.now().mounts.iter().any(is_kept);
        if is_needed && !self.keepers.stop_beside_one().await {
            warn!("stopping without a keeper: its mounts end");
        }
        self.keepers.stop();
    }

    /// Stops the daemon. Ends its own mounts and waits until readers have closed their open files, unless a restart of
    /// the service leaves them in its descriptor store. Leaves handed-over connections to the keeper. The reads in
    /// flight of mounts that stay are answered first. Closes the cache. Waits 5 s for mounts that are still being made
    /// and for reads; the next daemon answers the requests that remain.
    pub async fn stop(&self) -> anyhow::Result<()> {
        self.stopping().cancel();
        let end_mounts = async {
            if self.leaves_its_mounts().await {
                info!("the next process of the service serves its mounts");
            } else {
                self.end_mounts().await;
            }
        };
        let _ = tokio::join!(end_mounts, tokio::time::timeout(STOP_TIMEOUT, self.answer_reads()));
        self.node.close().await?;
        Ok(())
    }

    /// True if a later process gets the daemon's own mounts from the descriptor store.
    async fn leaves_its_mounts(&self) -> bool {
        let Some(store) = self.store.clone() else { return false };
        let asked = tokio::task::spawn_blocking(move || store.is_stopped_for_good());
        // Readers that would go on are worse off with a mount that ends than with one that stays.
        !matches!(tokio::time::timeout(STOP_TIMEOUT, asked).await, Ok(Ok(true)))
    }

    /// Waits until the reads from connections that outlive this process have been answered.
    async fn answer_reads(&self) {
        for requests in self.mounts.now().mounts.iter().filter_map(|mount| mount.requests.as_ref()) {
            requests.answered().await;
        }
    }

    async fn end_mounts(&self) {
        let deadline = tokio::time::Instant::now() + STOP_TIMEOUT;
        for own in self.offers.now().iter().filter_map(|offer| offer.connection.own.as_ref()) {
            info!(dir = %own.dir.display(), "stopping");
            detach(&own.dir);
        }
        let mut states = self.mounts.watch();
        let mut detached = HashSet::new();
        loop {
            let state = states.borrow_and_update().clone();
            let own = state.mounts.iter().filter_map(|mount| Some((mount.number, mount.dir.as_ref()?)));
            for (number, dir) in own.clone() {
                if detached.insert(number) {
                    info!(dir = %dir.display(), "stopping");
                    detach(dir);
                }
            }
            let changed = match (own.count(), state.jobs) {
                (0, 0) => break,
                (0, _) => tokio::time::timeout_at(deadline, states.changed()).await,
                _ => Ok(states.changed().await),
            };
            // The time is over, or the owner task has ended. Close the cache regardless.
            if !matches!(changed, Ok(Ok(()))) {
                warn!("stopping without waiting for all mounts");
                break;
            }
        }
    }

    /// Mounts a dataset at a folder of this machine. The mount is ready when this returns.
    pub async fn mount(&self, request: v1::MountRequest) -> Result<v1::Prepared, DaemonError> {
        let wanted = convert::request(&request.dataset.unwrap_or_default())?;
        let found = self.node.find(&wanted).await?;
        let mut config = MountConfig::new(PathBuf::from(&request.dir));
        if self.has_mounted(&found.id, &config.mountpoint).await? {
            return prepared(&found, true);
        }
        config.allow_other |= request.allow_other;
        config.ownership = wanted.spec.ownership;
        config.verify_always = request.verify_always;
        config.threads = if request.threads == 0 { self.threads } else { request.threads.min(256) as usize };
        if request.read_ahead_bytes != 0 {
            config.read_ahead_bytes = request.read_ahead_bytes;
        }
        let prepared = prepared(&found, true)?;
        self.mounts.mount(found, wanted, config).await?;
        Ok(prepared)
    }

    /// True if this service has mounted the dataset at `dir` already: a caller that got no answer from a process that
    /// was killed asks again. Waits for a mount that is not served yet, for 5 s at most. Errors: it is still not
    /// served. The job that makes mounts would wait at that folder, and all others behind it.
    async fn has_mounted(&self, id: &str, dir: &Path) -> Result<bool, DaemonError> {
        let is_at = |mount: &Mount| mount.own.is_some() && mount.dir.as_deref() == Some(dir);
        let is_left = |offer: &Arc<Offer>| offer.connection.own.as_ref().is_some_and(|own| own.dir == dir);
        let waits = || self.offers.now().iter().any(is_left);
        if waits() {
            let served = self.mounts.wait_until(|state| state.mounts.iter().any(|mount| is_at(mount)));
            let served = tokio::time::timeout(STOP_TIMEOUT, served).await.is_ok();
            if !served && waits() {
                let what = "has a mount of an earlier larderd that is not served yet; the log of larderd says why";
                return Err(MountError::Mountpoint { path: dir.to_owned(), what: what.into() }.into());
            }
        }
        let served = self.mounts.now().mounts.iter().any(|mount| mount.id == id && is_at(mount));
        // One that was unmounted while it was in use is served until its readers have closed their files.
        Ok(served && is_mounted(dir).unwrap_or(false))
    }

    /// Finds a dataset for a caller that will hand over its connection.
    pub(super) async fn prepare(
        &self,
        dataset: &v1::Dataset,
        pod: Option<v1::Pod>,
        wait: Duration,
    ) -> Result<v1::prepare_response::Outcome, DaemonError> {
        let span = trace_span!(target: TRACE_TARGET, "prepare", source = dataset.source);
        let prepared = self.prepare_admitted(dataset, pod, wait).instrument(span).await;
        if let Err(DaemonError::Node(NodeError::Quota { .. })) = &prepared {
            self.quota_refusals.fetch_add(1, Ordering::Relaxed);
        }
        prepared
    }

    async fn prepare_admitted(
        &self,
        dataset: &v1::Dataset,
        pod: Option<v1::Pod>,
        wait: Duration,
    ) -> Result<v1::prepare_response::Outcome, DaemonError> {
        let request = convert::request(dataset)?;
        // First: a pod that is refused causes no work.
        if let Some(pod) = pod {
            self.node.admit(&convert::pod(pod))?;
        }
        match self.node.prepare(&request, wait).await? {
            Prepared::Importing { files_listed } => {
                Ok(v1::prepare_response::Outcome::Importing(v1::Importing { files_listed }))
            }
            Prepared::Ready(found) => {
                let serves = |mount: &Arc<Mount>| mount.id == found.id && mount.connection.is_some();
                let served = self.mounts.now().mounts.iter().any(serves) && self.node.joins(&found, &request).await?;
                // A connection that failed before may be servable now.
                self.offers.try_again(&found.id);
                Ok(v1::prepare_response::Outcome::Prepared(prepared(&found, served)?))
            }
        }
    }

    /// Makes all later reads of a mount's dataset use these credentials.
    pub(super) async fn renew(&self, id: &str, credentials: Option<Credentials>) -> Result<(), DaemonError> {
        self.offers.renew(id, credentials.as_ref());
        self.renew_served(id, credentials).await
    }

    /// Like [`renew`](Self::renew), without the connections that are not served yet.
    pub(super) async fn renew_served(&self, id: &str, credentials: Option<Credentials>) -> Result<(), DaemonError> {
        let mounts = self.mounts.now().mounts;
        let Some(mount) = mounts.iter().rev().find(|mount| mount.id == id && mount.connection.is_some()) else {
            return Ok(());
        };
        let request = DatasetRequest { credentials, ..mount.request.clone() };
        self.node.renew(id, &request)?;
        self.mounts.renewed(id, &request).await
    }

    /// Has the datasets that are read with this process's own credentials use the newest of them.
    pub(super) async fn follow_own_credentials(self: Arc<Self>) -> anyhow::Result<()> {
        let mut own = self.node.own_credentials();
        loop {
            own.changed().await?;
            for mount in self.mounts.now().mounts.iter().filter(|mount| mount.request.credentials.is_none()) {
                if let Err(error) = self.node.renew(&mount.id, &mount.request) {
                    warn!(mount = mount.id, error = %Chain(&error), "the changed credentials cannot be used");
                }
            }
        }
    }

    /// Records which mounts the keeper holds, so that datasets kept for other mounts can be released. Blocks; do not
    /// call it on the runtime's threads.
    pub(super) fn keeper_holds(&self, mounts: HashSet<String>) {
        self.node.keep_only(&mounts);
        self.offers.hold(mounts, || self.mounts.now().mounts.iter().map(|mount| mount.id.clone()).collect());
    }

    /// Stops keeping datasets for a keeper that disconnected, except for connections that this process has. Blocks; do
    /// not call it on the runtime's threads.
    pub(super) fn keep_what_is_here(&self) {
        self.node.keep_only(&self.offers.now().iter().map(|offer| offer.mount.clone()).collect());
    }

    /// Forgets a mount that was unmounted. If it is being served, its session ends when the kernel releases the
    /// connection; until then it may have readers. Blocks; do not call it on the runtime's threads.
    pub(super) fn forget(&self, mount: &str) {
        self.offers.forget(mount);
        self.node.let_go(mount);
    }

    /// Periodically removes the manifests that are no longer needed.
    pub(super) async fn collect_manifests(self: Arc<Self>) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(COLLECT_EVERY).await;
            let daemon = Arc::clone(&self);
            tokio::task::spawn_blocking(move || {
                if daemon.offers.keeper_has_spoken() {
                    daemon.collect_kept_since(KEPT_LEAST);
                } else if daemon.started.elapsed() >= KEPT_LEAST_WITHOUT_KEEPER {
                    daemon.collect_kept_since(KEPT_LEAST_WITHOUT_KEEPER);
                }
            })
            .await?;
        }
    }

    /// Removes the manifests that are at least this old and no longer needed. Blocks; do not call it on the runtime's
    /// threads.
    pub(super) fn collect_kept_since(&self, kept_least: Duration) {
        let is_served = |id: &str| self.mounts.now().mounts.iter().any(|mount| mount.id == id);
        // Offers are checked before mounts, since an offer becomes a mount.
        self.node.collect_manifests(kept_least, |id| self.offers.need(id) || is_served(id));
    }

    /// Takes a connection whose mount the keeper made; this process holds it from now on. Errors: `Invalid`.
    pub(super) fn take(&self, offered: v1::Connection, descriptors: Descriptors) -> Result<Arc<Offer>, DaemonError> {
        let request = convert::request(&offered.dataset.unwrap_or_default())?;
        // A keeper of an earlier version sends no memory. Its successor takes over the one that is created here.
        let memory = descriptors.memory.map_or_else(request_memory, Ok);
        let memory = memory.map_err(|source| DaemonError::Connection { source })?;
        let lender = if self.verify_always { None } else { Lender::find(&self.run_dirs, &offered.mount) };
        let connection = Connection { fd: descriptors.fuse, memory, init: offered.init, lender, own: None };
        Ok(self.offers.add(offered.mount, connection, request))
    }

    /// Serves the mounts that an earlier process of the service left, as soon as they can be served. A mount that was
    /// unmounted meanwhile is forgotten.
    pub fn resume(self: &Arc<Self>, left: Vec<LeftMount>) {
        for LeftMount { own, fuse, memory, mount } in left {
            let dataset = mount.request.unwrap_or_default().dataset.unwrap_or_default();
            if !is_alive(&fuse) {
                own.forget();
                continue;
            }
            let request = match convert::request(&dataset) {
                Ok(request) => request,
                Err(error) => {
                    warn!(dir = %own.dir.display(), error = %Chain(&error), "a mount of an earlier larderd ends here");
                    detach(&own.dir);
                    own.forget();
                    continue;
                }
            };
            let lender = Lender::of_own(own.verify_always);
            let connection = Connection { fd: fuse, memory, init: mount.init, lender, own: Some(own) };
            let offer = self.offers.add(mount.mount, connection, request);
            self.node.runtime().spawn(Arc::clone(self).resume_one(offer));
        }
    }

    async fn resume_one(self: Arc<Self>, offer: Arc<Offer>) {
        let Some(outcome) = offer.gone.run_until_cancelled(self.try_offer(&offer)).await else { return };
        if let Err(error) = outcome {
            warn!(mount = offer.mount, error = %Chain(&error), "a mount of an earlier larderd cannot be served yet");
            self.keep_trying(offer).await;
        }
    }

    /// Serves a connection that was taken. If that fails, the connection is refused, unless the keeper holds it; then
    /// serving is retried until it succeeds or the mount ends.
    pub(super) async fn serve_offer(self: &Arc<Self>, offer: Arc<Offer>) -> Result<(), DaemonError> {
        let Some(outcome) = offer.gone.run_until_cancelled(self.try_offer(&offer)).await else { return Ok(()) };
        if self.offers.tried(&offer, outcome.is_ok()) {
            let error = outcome.as_ref().err().map(|error| Chain(error).to_string());
            warn!(mount = offer.mount, error, "a mount that pods use cannot be served yet");
            self.node.runtime().spawn(Arc::clone(self).keep_trying(offer));
        }
        outcome
    }

    async fn keep_trying(self: Arc<Self>, offer: Arc<Offer>) {
        let mut pause = PAUSE;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = offer.changed.notified() => {}
                () = offer.gone.cancelled() => {}
                () = self.stopping().cancelled() => return,
            }
            if !is_alive(&offer.connection.fd) {
                self.offers.give_up(&offer);
                if let Some(own) = offer.connection.own.clone() {
                    tokio::task::spawn_blocking(move || own.forget());
                }
            }
            match offer.gone.run_until_cancelled(self.try_offer(&offer)).await {
                None => return debug!(mount = offer.mount, "a mount ended before it could be served"),
                Some(Ok(())) => return info!(mount = offer.mount, "a mount that has readers is served again"),
                Some(Err(error)) => debug!(mount = offer.mount, error = %Chain(&error), "a mount cannot be served yet"),
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn try_offer(&self, offer: &Arc<Offer>) -> Result<(), DaemonError> {
        let request = offer.request();
        // Finding the dataset may query the origin, so it runs here. Mounting runs in a job, one at a time, and waits
        // only for the disk.
        let found = self.node.find_again(&offer.mount, &request).await?;
        let ownership = request.spec.ownership;
        let threads = offer.connection.own.as_ref().map_or(self.threads, |own| own.threads);
        let config = ServeConfig { threads, max_background: BACKGROUND_MOST, ownership };
        self.mounts.offer(found, request.clone(), Arc::clone(&offer.connection), config).await?;
        let mut used = request;
        while !self.offers.remove_served(offer, &used) {
            used = offer.request();
            if let Err(error) = self.renew_served(&offer.mount, used.credentials.clone()).await {
                warn!(mount = offer.mount, error = %Chain(&error), "new credentials of a dataset cannot be used");
            }
        }
        Ok(())
    }
}

fn prepared(found: &Found, served: bool) -> Result<v1::Prepared, DaemonError> {
    let (name, _) = found.manifest.name_and_origin().map_err(NodeError::from)?;
    let totals = found.manifest.totals();
    Ok(v1::Prepared {
        mount: found.id.clone(),
        name: name.to_owned(),
        snapshot: found.manifest.snapshot().to_string(),
        files: totals.files.into(),
        bytes: totals.bytes,
        served,
    })
}
