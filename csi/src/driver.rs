//! The whole driver: opens its state and serves its sockets until stopped.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use larder_csi_api::csi::controller_server::ControllerServer;
use larder_csi_api::csi::identity_server::IdentityServer;
use larder_csi_api::csi::node_server::NodeServer;
use larder_daemon_api::socket::{GRPC_SOCKET, HANDOVER_SOCKET};
use larder_dataset::written::Rules;
use larder_kubelet::registration::{Answer, Plugin};
use larder_kubelet::socket::listen;
use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Uid};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tracing::{error, info, warn};

use crate::admin::DriverAdmin;
use crate::calls::Calls;
use crate::controller::ControllerService;
use crate::daemon::Daemon;
use crate::datasets::Datasets;
use crate::driver_name::DRIVER_NAME;
use crate::fdkeeper::{FdKeeper, KeeperCounters, KeeperError};
use crate::identity::IdentityService;
use crate::mounter::Mounter;
use crate::node::{Given, Mounts, Node};
use crate::node_service::NodeService;
use crate::records::Records;
use crate::startup_taint::StartupTaint;
use crate::target_path::TargetRoots;
use crate::volumes::Volumes;

/// How long a stop waits for running calls, and for a larderd that is being replaced at the same time, whose image may
/// have to be pulled: if none has come by then, the node's pods lose their mounts. The kubelet kills the process five
/// seconds later.
const STOP_TIMEOUT: Duration = Duration::from_secs(115);

/// The pause before larderd is asked again whether this process may stop.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a start waits for an earlier process to end.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// All settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// The driver's CSI socket.
    pub endpoint: PathBuf,
    /// The path of that socket in the kubelet's mount namespace.
    pub kubelet_endpoint: PathBuf,
    /// The kubelet's folder, which contains the FUSE mounts and the registration socket.
    pub kubelet_dir: PathBuf,
    /// Additional folders that may contain targets.
    pub target_roots: Vec<PathBuf>,
    /// The node's name.
    pub node_id: String,
    /// True to report the node as a topology segment.
    pub topology: bool,
    /// The folders that may contain larderd's sockets, the preferred one first.
    pub run_dirs: Vec<PathBuf>,
    /// Folders to create for larderd, such as its cache folder.
    pub daemon_dirs: Vec<PathBuf>,
    /// The folder for records and volumes.
    pub state_dir: PathBuf,
    /// The administrator's datasets file.
    pub datasets: Option<PathBuf>,
    /// The user that larderd runs as.
    pub daemon_uid: u32,
    /// The kernel's read-ahead per file, in KiB.
    pub read_ahead_kib: u64,
    /// Folders that `file://` may name.
    pub file_roots: Vec<PathBuf>,
    /// The address of /metrics, /healthz and /readyz.
    pub admin_address: Option<SocketAddr>,
    /// How long a publish waits for the listing of an origin.
    pub prepare_wait: Duration,
    /// True to remove the startup taint of the node.
    pub startup_taint: bool,
}

/// The driver, open but not serving.
#[derive(Debug)]
pub struct Driver {
    pub node: Arc<Node>,
    pub volumes: Arc<Volumes>,
    pub counters: Arc<KeeperCounters>,
    calls: Calls,
    config: Config,
    /// The lock that keeps a second process out of the state folder.
    _lock: OwnedFd,
}

impl Driver {
    /// Creates the folders, loads the records, and starts connecting to larderd. Blocks. Must be called within a tokio
    /// runtime.
    pub fn open(config: Config) -> anyhow::Result<Self> {
        let rules = Rules { file_roots: config.file_roots.clone() };
        for dir in config.daemon_dirs.iter().chain(&config.run_dirs) {
            if let Err(error) = give(dir, config.daemon_uid) {
                // Only logged: the node's mounts need this process even if a disk has failed. larderd runs without the
                // folder, or reports which folder it needs.
                error!(%error, dir = %dir.display(), "cannot create a directory for larderd (--daemon-dir, --run-dir)");
            }
        }
        let state = |name: &str| config.state_dir.join(name);
        let lock = lock(&config.state_dir)
            .with_context(|| format!("lock the state directory {}", config.state_dir.display()))?;
        let records = Records::open(&state("targets")).context("open the records of targets")?;
        let volumes = Volumes::open(&state("volumes"), rules.clone()).context("open the volumes")?;
        let mounts = config.kubelet_dir.join("plugins").join(DRIVER_NAME).join("mounts");
        let mounter = Mounter::new(&mounts, config.daemon_uid, config.read_ahead_kib)
            .with_context(|| format!("create the directory {}", mounts.display()))?;
        let counters = Arc::new(KeeperCounters::default());
        let sockets = |name| config.run_dirs.iter().map(|dir| dir.join(name)).collect::<Vec<_>>();
        let keeper = FdKeeper::start(sockets(HANDOVER_SOCKET), config.daemon_uid, Arc::clone(&counters))
            .context("start the keeper of connections")?;
        let roots = std::iter::once(&config.kubelet_dir).chain(&config.target_roots).cloned().collect();
        let node = Node {
            node_id: config.node_id.clone(),
            topology: config.topology,
            roots: TargetRoots::new(roots),
            datasets: Datasets::new(config.datasets.clone(), rules.clone()),
            rules,
            daemon: Daemon::new(sockets(GRPC_SOCKET), config.prepare_wait),
            mounts: Arc::new(Mounts::new(records, mounter, keeper)),
            swept: AtomicBool::new(false),
            given: Given::default(),
        };
        let (node, volumes) = (Arc::new(node), Arc::new(volumes));
        Ok(Self { node, volumes, counters, calls: Calls::default(), config, _lock: lock })
    }

    /// The node service for the CSI socket.
    pub fn node_service(&self) -> NodeService {
        NodeService { node: Arc::clone(&self.node), calls: self.calls.clone() }
    }

    /// Serves until `stop`, then waits for running calls. Mounts stay. Returns an error if the kubelet rejects the
    /// driver, or if a service or the keeper ends.
    pub async fn serve(self, stop: CancellationToken) -> anyhow::Result<()> {
        let (endpoint, path) = (&self.config.endpoint, self.config.kubelet_dir.join("plugins_registry"));
        let (_csi, incoming) = listen(endpoint).with_context(|| format!("listen at {}", endpoint.display()))?;
        let path = path.join(format!("{DRIVER_NAME}-reg.sock"));
        let (_registration, kubelet) = listen(&path).with_context(|| format!("listen at {}", path.display()))?;
        info!(endpoint = %endpoint.display(), node = %self.node.node_id, "serving");

        let identity = IdentityService { node: Arc::clone(&self.node) };
        let controller = ControllerService { volumes: Arc::clone(&self.volumes), calls: self.calls.clone() };
        let driver = Server::builder()
            .add_service(IdentityServer::new(identity))
            .add_service(ControllerServer::new(controller))
            .add_service(NodeServer::new(self.node_service()))
            .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
        let answers = watch::Sender::new(Answer::None);
        let mut answered = answers.subscribe();
        let plugin = Plugin {
            kind: "CSIPlugin",
            name: DRIVER_NAME,
            endpoint: self.config.kubelet_endpoint.clone(),
            versions: &["1.0.0"],
        };
        let registration =
            larder_kubelet::registration::serve(plugin, kubelet, answers, stop.clone().cancelled_owned());

        let mut tasks = JoinSet::new();
        tasks.spawn(async move { driver.await.context("serve the CSI socket") });
        tasks.spawn(async move { registration.await.context("serve the registration socket") });
        let startup = self.config.startup_taint.then(|| Arc::new(StartupTaint::new(self.node.node_id.clone())));
        if let Some(startup) = startup.clone() {
            let (node, stop) = (Arc::clone(&self.node), stop.clone());
            tasks.spawn(async move {
                let answers = || async { node.is_ready() && node.daemon.answers().await };
                let _ = stop.run_until_cancelled(startup.keep_off(answers)).await;
                Ok(())
            });
        }
        if let Some(address) = self.config.admin_address {
            let (node, counters) = (Arc::clone(&self.node), Arc::clone(&self.counters));
            let admin = Arc::new(DriverAdmin { node, counters, calls: self.calls.clone(), startup });
            let serving = larder_telemetry::admin::serve(address, admin, stop.clone().cancelled_owned());
            tasks.spawn(async move { serving.await.with_context(|| format!("serve the admin address {address}")) });
        }
        let sweeping = tokio::spawn(Arc::clone(&self.node).keep_clean());
        let watching = Arc::clone(&self.node);
        let keeper_ended = async move {
            let mut look = tokio::time::interval(Duration::from_secs(1));
            while watching.mounts.keeper.is_running() {
                look.tick().await;
            }
        };
        let outcome = tokio::select! {
            // `biased`: after a stop the services end as well, and that is not an error.
            biased;
            () = stop.cancelled() => Ok(()),
            Some(ended) = tasks.join_next() => ended.context("a service panicked").flatten()
                .and_then(|()| bail!("a service ended early")),
            refused = answered.wait_for(|answer| matches!(answer, Answer::Refused(_))) => match refused.as_deref() {
                Ok(Answer::Refused(message)) => Err(anyhow::anyhow!("the kubelet refuses to register the driver: {message}")),
                _ => Err(anyhow::anyhow!("the registration service ended early")),
            },
            () = keeper_ended => Err(anyhow::anyhow!("the keeper of connections ended early")),
        };
        stop.cancel();
        let ended = tokio::time::timeout(STOP_TIMEOUT, async {
            while tasks.join_next().await.is_some() {}
            self.calls.finish().await;
            self.hand_over().await;
        });
        if ended.await.is_err() {
            warn!("stopping although calls are still running or larderd is not connected");
        }
        sweeping.abort();
        info!("stopped; mounts stay");
        outcome
    }

    /// Waits until a larderd that stays has all connections, since this process's descriptors close when it exits.
    async fn hand_over(&self) {
        let keeper = &self.node.mounts.keeper;
        if keeper.mounts().is_empty() {
            return;
        }
        let mut session = keeper.session();
        while let Ok(count) = session.wait_for(|session| session.settled).await.map(|session| session.count) {
            match keeper.leave().await {
                Ok(()) => return,
                // As in an upgrade of both: the next larderd needs the connections.
                Err(KeeperError::Refused { reason }) => {
                    info!(reason, "larderd does not take the connections; waiting for the next one");
                    let _ = session.wait_for(|session| !session.settled || session.count > count).await;
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

/// Creates a folder that larderd owns. Does not write if larderd owns it already, since the disk may have become
/// read-only.
fn give(dir: &Path, uid: u32) -> io::Result<()> {
    if std::fs::metadata(dir).is_ok_and(|found| found.is_dir() && found.uid() == uid) {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
    rustix::fs::chown(dir, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o750))
}

/// Locks the folder, and waits while another process holds its lock.
fn lock(dir: &Path) -> io::Result<OwnedFd> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let fd = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let started = std::time::Instant::now();
    loop {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(fd),
            Err(rustix::io::Errno::WOULDBLOCK) if started.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "another larder-csi process holds its lock"));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: K2
    #[test]
    fn a_stop_waits_for_a_new_larderd_for_as_long_as_the_kubelet_lets_it() {
        let manifest = include_str!("../../deploy/larder-csi.yaml");
        let grace = manifest.split_once("terminationGracePeriodSeconds: ").expect("a grace period").1;
        let grace = grace.split_whitespace().next().and_then(|seconds| seconds.parse().ok()).expect("seconds");
        assert_eq!(STOP_TIMEOUT + Duration::from_secs(5), Duration::from_secs(grace));
    }

    #[test]
    fn a_folder_that_larderd_has_closed_to_others_stays_closed() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = rustix::process::geteuid().as_raw();
        let dir = folder.path().join("a/cache");
        let mode = || std::fs::metadata(&dir).expect("a folder").mode() & 0o777;
        for _ in 0..2 {
            give(&dir, own).expect("give");
            assert_eq!(mode() & 0o007, 0, "never open to all");
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).expect("close");
            give(&dir, own).expect("give again");
            assert_eq!(mode(), 0o700);
        }
    }
}
