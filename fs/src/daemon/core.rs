//! A node with mounts.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_cachenode::node::{Found, Node, NodeConfig, NodeError, Prepared, StoreError};
use larder_cachenode::request::DatasetRequest;
use larder_daemon_api::socket::GRPC_SOCKET;
use larder_daemon_api::v1;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::convert;
use super::error::DaemonError;
use super::mounts::{Connection, Mount, Mounts};
use crate::connection::ServeConfig;
use crate::mount::{MountConfig, unmount};

/// How long a stop waits for mounts that are being made.
const MAKING_TIMEOUT: Duration = Duration::from_secs(5);

/// How a daemon runs.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// Its cache.
    pub node: NodeConfig,
    /// Where the sockets are.
    pub run_dir: PathBuf,
    /// Where /metrics, /healthz and /readyz are served, if at all.
    pub admin: Option<SocketAddr>,
    /// Threads that serve the kernel, for each mount that states no number.
    pub threads: usize,
    /// Stop when the last mount has ended.
    pub stop_when_idle: bool,
}

/// The daemon. When it is dropped its mounts are dead, so [`Daemon::stop`] comes first.
#[derive(Debug)]
pub struct Daemon {
    pub(super) node: Arc<Node>,
    pub(super) mounts: Mounts,
    pub(super) run_dir: PathBuf,
    pub(super) admin: Option<SocketAddr>,
    threads: usize,
    pub(super) stop_when_idle: bool,
    pub(super) started: Instant,
    /// The number of keepers that are connected; a newer one replaces an older one.
    pub(super) keepers: watch::Sender<usize>,
}

impl Daemon {
    /// Opens the cache; waits up to 5 s if another process is just closing it. Blocks; must be called within a runtime.
    pub fn open(config: DaemonConfig) -> Result<Arc<Self>, StoreError> {
        let DaemonConfig { node, run_dir, admin, threads, stop_when_idle } = config;
        let node = Node::open(NodeConfig { socket: Some(run_dir.join(GRPC_SOCKET)), ..node })?;
        let (mounts, owner) = Mounts::new(Arc::clone(&node), stop_when_idle);
        node.runtime().spawn(owner.run());
        let (started, keepers) = (Instant::now(), watch::Sender::new(0));
        Ok(Arc::new(Self { node, mounts, run_dir, admin, threads, stop_when_idle, started, keepers }))
    }

    /// Cancelled when the daemon is to stop.
    pub fn stopping(&self) -> &CancellationToken {
        self.node.stopping()
    }

    /// Ends its own mounts, waiting for their readers to finish with the files that they have open; leaves connections that
    /// were handed over to the keeper; closes the cache. Mounts that are still being made are waited for 5 s.
    pub async fn stop(&self) -> anyhow::Result<()> {
        self.stopping().cancel();
        let deadline = tokio::time::Instant::now() + MAKING_TIMEOUT;
        let mut states = self.mounts.watch();
        let mut detached = HashSet::new();
        loop {
            let state = states.borrow_and_update().clone();
            let own = state.mounts.iter().filter_map(|mount| Some((mount.number, mount.dir.as_ref()?)));
            for (number, dir) in own.clone() {
                if detached.insert(number) {
                    info!(dir = %dir.display(), "stopping");
                    // Files may be in use: the mount disappears from the tree, and its readers finish what they have open.
                    if let Err(error) = unmount(dir, true) {
                        warn!(%error, "cannot unmount");
                    }
                }
            }
            let changed = match (own.count(), state.jobs) {
                (0, 0) => break,
                (0, _) => tokio::time::timeout_at(deadline, states.changed()).await,
                _ => Ok(states.changed().await),
            };
            // Out of time, or the owner is gone: the cache is closed all the same.
            if !matches!(changed, Ok(Ok(()))) {
                warn!("stopping without waiting for all mounts");
                break;
            }
        }
        self.node.close().await?;
        Ok(())
    }

    /// Mounts a dataset at a folder of this machine. The mount is ready when this returns.
    pub async fn mount(&self, request: v1::MountRequest) -> Result<v1::Prepared, DaemonError> {
        let wanted = convert::request(&request.dataset.unwrap_or_default())?;
        let found = self.node.find(&wanted).await?;
        let mut config = MountConfig::new(PathBuf::from(&request.dir));
        config.allow_other |= request.allow_other;
        config.threads = if request.threads == 0 { self.threads } else { request.threads.min(256) as usize };
        if request.read_ahead_bytes != 0 {
            config.read_ahead_bytes = request.read_ahead_bytes;
        }
        let prepared = prepared(&found, true)?;
        self.mounts.mount(found, wanted, config).await?;
        Ok(prepared)
    }

    /// Finds a dataset for a caller that will hand over its connection.
    pub(super) async fn prepare(
        &self,
        dataset: &v1::Dataset,
        wait: Duration,
    ) -> Result<v1::prepare_response::Outcome, DaemonError> {
        let request = convert::request(dataset)?;
        match self.node.prepare(&request, wait).await? {
            Prepared::Importing { files_listed } => {
                Ok(v1::prepare_response::Outcome::Importing(v1::Importing { files_listed }))
            }
            Prepared::Ready(found) => {
                let served = self.join_served(&found, &request).await?;
                Ok(v1::prepare_response::Outcome::Prepared(prepared(&found, served)?))
            }
        }
    }

    /// True if a connection shows the dataset already, which then uses the request's credentials. Errors: `InUse`, if other
    /// settings are requested.
    async fn join_served(&self, found: &Found, request: &DatasetRequest) -> Result<bool, DaemonError> {
        let shows = |mount: &Arc<Mount>| mount.id == found.id && mount.connection.is_some();
        if !self.mounts.now().mounts.iter().any(shows) || !self.node.renew(found, request)? {
            return Ok(false);
        }
        self.mounts.renewed(&found.id, request).await?;
        Ok(true)
    }

    /// Notes that a keeper has offered all that it holds: what is served now, and the mounts that were `refused`. Blocks; not for
    /// the runtime's threads.
    pub(super) fn keeper_has_offered(&self, refused: &HashSet<String>) {
        let mounts = self.mounts.now().mounts;
        let served = mounts.iter().filter(|mount| mount.connection.is_some()).map(|mount| &mount.id);
        self.node.keep_only(&served.chain(refused).cloned().collect());
        self.mounts.keeper_has_offered();
    }

    /// Serves a connection whose mount the keeper made.
    pub(super) async fn offer(&self, offered: v1::Connection, fd: OwnedFd) -> Result<(), DaemonError> {
        let request = convert::request(&offered.dataset.unwrap_or_default())?;
        let found = self.node.find_again(&offered.mount, &request).await?;
        let config = ServeConfig { threads: self.threads, max_background: 1024 };
        self.mounts.offer(found, request, Connection { fd, init: offered.init }, config).await?;
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
