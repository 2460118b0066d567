//! The daemon's servers: gRPC on a unix socket, and HTTP on the admin address.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use larder_cachenode::node::{DatasetStats, MemberReport, NodeStats};
use larder_daemon_api::{SocketDir, v1};
use larder_dataset::{CacheId, Chain};
use larder_telemetry::Sample;
use larder_telemetry::admin::{Admin, AdminAddress};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};

use super::convert;
use super::core::Daemon;
use super::error::DaemonError;
use super::mounts::Mount;
use crate::mount::unmount;

/// The most requests that are processed concurrently; more wait.
const CONCURRENCY: usize = 64;

/// How long a daemon that has just started may be not ready. It becomes ready earlier once a keeper has connected and
/// each connection that the keeper holds was served or tried: those come first. The limit keeps one dataset that cannot
/// be opened from delaying readiness further.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves gRPC at `socket` until the daemon stops.
pub(super) async fn serve(daemon: Arc<Daemon>, socket: PathBuf) -> anyhow::Result<()> {
    let listener = listen(&socket).with_context(|| format!("listen at {} (--run-dir)", socket.display()))?;
    if let Some(store) = daemon.store.clone() {
        tokio::task::spawn_blocking(move || store.ready()).await?;
    }
    let stopping = daemon.stopping().clone();
    let service = v1::daemon_server::DaemonServer::with_interceptor(Service(daemon), same_user);
    tonic::transport::Server::builder()
        .concurrency_limit_per_connection(CONCURRENCY)
        .add_service(service)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopping.cancelled_owned())
        .await
        .context("serve gRPC")
}

/// Binds a temporary name and renames it, so that a client never finds a socket that does not listen yet or that other
/// users may open.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let fresh = socket.with_extension("new");
    let _ = std::fs::remove_file(&fresh);
    let dir = SocketDir::open(&fresh)?;
    let listener = UnixListener::bind(dir.short_path())?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&fresh, socket)?;
    Ok(listener)
}

/// Accepts requests from root and from the user that the daemon runs as.
fn same_user(request: Request<()>) -> Result<Request<()>, Status> {
    let uid = request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred).map(|cred| cred.uid());
    match uid {
        Some(uid) if uid == 0 || uid == rustix::process::geteuid().as_raw() => Ok(request),
        _ => Err(Status::permission_denied("larderd serves root and the user that it runs as")),
    }
}

struct Service(Arc<Daemon>);

#[tonic::async_trait]
impl v1::daemon_server::Daemon for Service {
    async fn get_info(&self, _: Request<v1::GetInfoRequest>) -> Result<Response<v1::GetInfoResponse>, Status> {
        Ok(Response::new(v1::GetInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            cache_dir: self.0.node.config().cache_dir.display().to_string(),
        }))
    }

    async fn prepare(&self, request: Request<v1::PrepareRequest>) -> Result<Response<v1::PrepareResponse>, Status> {
        let v1::PrepareRequest { dataset, wait_ms, pod } = request.into_inner();
        let missing = || DaemonError::Invalid { field: "dataset", what: "is missing".to_owned() };
        let wait = Duration::from_millis(wait_ms.into());
        let outcome = self.0.prepare(&dataset.ok_or_else(missing)?, pod, wait).await?;
        Ok(Response::new(v1::PrepareResponse { outcome: Some(outcome) }))
    }

    async fn mount(&self, request: Request<v1::MountRequest>) -> Result<Response<v1::MountResponse>, Status> {
        let prepared = self.0.mount(request.into_inner()).await?;
        Ok(Response::new(v1::MountResponse { prepared: Some(prepared) }))
    }

    async fn unmount(&self, request: Request<v1::UnmountRequest>) -> Result<Response<v1::UnmountResponse>, Status> {
        let v1::UnmountRequest { dir, lazy } = request.into_inner();
        let dir = PathBuf::from(dir);
        // The newest: an earlier one at this folder was unmounted while it was in use, and still has readers.
        let mounts = self.0.mounts.now().mounts;
        let mount = mounts.iter().rfind(|mount| mount.dir.as_ref() == Some(&dir));
        let number = mount.ok_or_else(|| DaemonError::NoMount { dir: dir.display().to_string() })?.number;
        let unmounted = tokio::task::spawn_blocking(move || unmount(&dir, lazy)).await.map_err(DaemonError::Panic)?;
        unmounted.map_err(DaemonError::from)?;
        let mounts = &self.0.mounts;
        if !lazy {
            mounts.wait_until(|state| state.mounts.iter().all(|mount| mount.number != number)).await?;
            self.0.node.drained().await;
        }
        let leaving = self.0.stop_when_idle && mounts.now().mounts.is_empty();
        Ok(Response::new(v1::UnmountResponse { leaving }))
    }

    async fn list_mounts(&self, _: Request<v1::ListMountsRequest>) -> Result<Response<v1::ListMountsResponse>, Status> {
        let info = |mount: &Arc<Mount>| v1::MountInfo {
            mount: mount.id.clone(),
            name: mount.summary.name.clone(),
            snapshot: mount.summary.snapshot.clone(),
            origin: mount.summary.origin.clone(),
            dir: mount.dir.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default(),
            trouble: self.0.node.identity_trouble(&mount.request).unwrap_or_default(),
        };
        let mounts = self.0.mounts.now().mounts.iter().map(info).collect();
        Ok(Response::new(v1::ListMountsResponse { mounts }))
    }

    async fn list_nodes(&self, _: Request<v1::ListNodesRequest>) -> Result<Response<v1::ListNodesResponse>, Status> {
        let reports = self.0.node.members().await.map_err(DaemonError::from)?;
        Ok(Response::new(v1::ListNodesResponse { nodes: reports.into_iter().map(node_info).collect() }))
    }

    async fn list_caches(&self, _: Request<v1::ListCachesRequest>) -> Result<Response<v1::ListCachesResponse>, Status> {
        let caches = self.0.node.caches().await.map_err(DaemonError::from)?;
        Ok(Response::new(v1::ListCachesResponse { caches: caches.iter().map(convert::cache_info).collect() }))
    }

    async fn drop_cache(
        &self,
        request: Request<v1::DropCacheRequest>,
    ) -> Result<Response<v1::DropCacheResponse>, Status> {
        let id = cache_id(&request.into_inner().id)?;
        self.0.node.drop_cache(id).await.map_err(DaemonError::from)?;
        Ok(Response::new(v1::DropCacheResponse {}))
    }

    async fn pin_cache(&self, request: Request<v1::PinCacheRequest>) -> Result<Response<v1::PinCacheResponse>, Status> {
        let v1::PinCacheRequest { id, pinned } = request.into_inner();
        self.0.node.pin_cache(cache_id(&id)?, pinned).await.map_err(DaemonError::from)?;
        Ok(Response::new(v1::PinCacheResponse {}))
    }
}

fn cache_id(text: &str) -> Result<CacheId, DaemonError> {
    text.parse().map_err(|_| DaemonError::Invalid { field: "id", what: "is not 64 hex digits".to_owned() })
}

/// A member of the cluster, with its report or the reason why it sent none.
fn node_info(MemberReport { member, stats }: MemberReport) -> v1::NodeInfo {
    let (stats, error) = match stats {
        Ok(stats) => (stats, String::new()),
        Err(error) => (NodeStats::default(), Chain(&error).to_string()),
    };
    let cached = |dataset: DatasetStats| v1::CachedDataset {
        snapshot: dataset.cache.to_string(),
        name: dataset.name,
        blocks: dataset.blocks_cached,
        bytes: dataset.bytes_cached,
        capacity_bytes: dataset.capacity_bytes,
    };
    v1::NodeInfo {
        name: member.name,
        address: member.address.to_string(),
        weight: member.weight,
        zone: member.zone,
        error,
        datasets: stats.datasets.into_iter().map(cached).collect(),
        counters: stats.counters,
    }
}

/// Serves /metrics, /healthz and /readyz.
pub(super) async fn serve_admin(daemon: Arc<Daemon>, at: AdminAddress) -> anyhow::Result<()> {
    let (stopping, address) = (daemon.stopping().clone(), at.address);
    larder_telemetry::admin::serve(at, daemon, stopping.cancelled_owned())
        .await
        .with_context(|| format!("serve the admin address {address} (--admin-address)"))
}

impl Daemon {
    /// The metrics that are not those of its node.
    fn own_samples(&self) -> Vec<Sample> {
        let state = self.mounts.now();
        vec![
            Sample::new("daemon_mounts", state.mounts.len() as u64),
            Sample::new("daemon_connections_taken_total", state.connections_taken),
            Sample::new("daemon_quota_refusals_total", self.quota_refusals.load(Ordering::Relaxed)),
        ]
    }
}

impl Admin for Daemon {
    fn healthy(&self) -> Result<(), String> {
        self.mounts.heartbeat().check("the loop that owns the mounts")
    }

    fn ready(&self) -> Result<(), String> {
        if self.stopping().is_cancelled() {
            return Err("stopping".to_owned());
        }
        // A service has no keeper: the mounts that an earlier process left are offers from the start.
        let are_here = if self.store.is_some() { self.offers.now().is_empty() } else { self.offers.all_tried() };
        if are_here || self.started.elapsed() > KEEPER_TIMEOUT {
            Ok(())
        } else {
            Err("starting: mounts of an earlier larderd may be handed over, which takes 10 s at most".to_owned())
        }
    }

    fn samples(&self) -> Vec<Sample> {
        [self.node.samples(false), self.own_samples()].concat()
    }

    fn named_samples(&self) -> Vec<Sample> {
        [self.node.samples(true), self.own_samples()].concat()
    }
}

#[cfg(test)]
mod tests {
    use larder_cachenode::home::Home;
    use larder_cachenode::importing::Importer;
    use larder_cachenode::node::NodeConfig;
    use larder_origin::OriginConfig;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::super::core::DaemonConfig;
    use super::super::descriptor_store::DescriptorStore;
    use super::*;
    use crate::pool::Pool;

    #[tokio::test]
    async fn a_service_does_not_wait_for_a_keeper_to_be_ready() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, _systemd) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        let (store, _) = DescriptorStore::new("larderd.service", socket, 9, Vec::new());
        let node = NodeConfig {
            cache_dir: folder.path().join("cache"),
            more_cache_dirs: Vec::new(),
            cache_bytes: None,
            keep_free_percent: 0,
            home: Home::new(folder.path().join("home")),
            origin: OriginConfig::default(),
            importer: Importer::Here,
            peers: None,
            memory: Arc::default(),
            socket: None,
        };
        let config = DaemonConfig {
            node,
            run_dirs: vec![folder.path().to_owned()],
            admin: None,
            threads: 1,
            verify_always: false,
            store: Some(store),
            stop_when_idle: false,
        };
        let daemon = Daemon::open(config, Pool::start(1).unwrap()).unwrap();
        assert_eq!(daemon.ready(), Ok(()));
    }
}
