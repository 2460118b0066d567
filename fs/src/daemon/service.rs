//! The daemon's servers: gRPC on a unix socket, and the admin address.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use larder_daemon_api::{SocketDir, v1};
use larder_telemetry::admin::{Admin, Sample};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};

use super::{Daemon, DaemonError, KEEPER_PATIENCE, Mount, lock};
use crate::mount::unmount;

/// Requests that are worked on at once; more wait.
const CONCURRENCY: usize = 64;

/// Serves gRPC at `socket` until the daemon stops.
pub(super) async fn serve(daemon: Arc<Daemon>, socket: PathBuf) -> anyhow::Result<()> {
    let listener = listen(&socket).with_context(|| format!("listen at {} (--run-dir)", socket.display()))?;
    let stopping = daemon.stopping.clone();
    let service = v1::daemon_server::DaemonServer::with_interceptor(Service(daemon), same_user);
    tonic::transport::Server::builder()
        .concurrency_limit_per_connection(CONCURRENCY)
        .add_service(service)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopping.cancelled_owned())
        .await
        .context("serve gRPC")
}

/// Binds beside the name and renames: nobody meets a socket that does not listen, or that others may open.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let fresh = socket.with_extension("new");
    let _ = std::fs::remove_file(&fresh);
    let dir = SocketDir::open(&fresh)?;
    let listener = UnixListener::bind(dir.short_path())?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&fresh, socket)?;
    Ok(listener)
}

/// Root, and the user that the daemon runs as.
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
            cache_dir: self.0.config.cache_dir.display().to_string(),
        }))
    }

    async fn prepare(&self, request: Request<v1::PrepareRequest>) -> Result<Response<v1::PrepareResponse>, Status> {
        let v1::PrepareRequest { dataset, wait_ms } = request.into_inner();
        let dataset = dataset.ok_or_else(|| DaemonError::invalid("dataset", "is missing"))?;
        let outcome = match self.0.prepare(&dataset, Duration::from_millis(wait_ms.into())).await? {
            Ok(prepared) => v1::prepare_response::Outcome::Prepared(prepared),
            Err(files_listed) => v1::prepare_response::Outcome::Importing(v1::Importing { files_listed }),
        };
        Ok(Response::new(v1::PrepareResponse { outcome: Some(outcome) }))
    }

    async fn mount(&self, request: Request<v1::MountRequest>) -> Result<Response<v1::MountResponse>, Status> {
        // A caller who stops waiting must not leave half a mount behind.
        let (daemon, request) = (Arc::clone(&self.0), request.into_inner());
        let mounted = tokio::spawn(async move { daemon.mount(request).await });
        let prepared = mounted.await.map_err(DaemonError::Panic)??;
        Ok(Response::new(v1::MountResponse { prepared: Some(prepared) }))
    }

    async fn unmount(&self, request: Request<v1::UnmountRequest>) -> Result<Response<v1::UnmountResponse>, Status> {
        let v1::UnmountRequest { dir, lazy } = request.into_inner();
        let dir = PathBuf::from(dir);
        let mount = self.find(|mount| mount.dir.as_ref() == Some(&dir));
        let mount = mount.ok_or_else(|| DaemonError::NoMount { what: format!("at {}", dir.display()) })?;
        let unmounted = tokio::task::spawn_blocking(move || unmount(&dir, lazy)).await.map_err(DaemonError::Panic)?;
        unmounted.map_err(DaemonError::from)?;
        if !lazy {
            while lock(&self.0.mounts).iter().any(|other| Arc::ptr_eq(other, &mount)) {
                tokio::time::sleep(super::LOOK_EVERY / 5).await;
            }
            drop(mount);
            self.0.drained().await;
        }
        let leaving = self.0.config.stop_when_idle && lock(&self.0.mounts).is_empty();
        Ok(Response::new(v1::UnmountResponse { leaving }))
    }

    async fn list_mounts(&self, _: Request<v1::ListMountsRequest>) -> Result<Response<v1::ListMountsResponse>, Status> {
        let mounts = lock(&self.0.mounts)
            .iter()
            .map(|mount| {
                let stats = mount.dataset.stats().dataset;
                v1::MountInfo {
                    mount: mount.id.clone(),
                    name: stats.name,
                    snapshot: stats.snapshot,
                    origin: stats.origin,
                    dir: mount.dir.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default(),
                }
            })
            .collect();
        Ok(Response::new(v1::ListMountsResponse { mounts }))
    }

    async fn get_stats(&self, request: Request<v1::GetStatsRequest>) -> Result<Response<v1::GetStatsResponse>, Status> {
        let mount = self.by_id(request.into_inner().mount)?;
        let json = serde_json::to_string(&mount.dataset.stats())
            .map_err(|_| DaemonError::Internal { what: "the stats cannot be written as JSON" })?;
        Ok(Response::new(v1::GetStatsResponse { json }))
    }

    async fn list_nodes(&self, _: Request<v1::ListNodesRequest>) -> Result<Response<v1::ListNodesResponse>, Status> {
        Ok(Response::new(v1::ListNodesResponse { nodes: self.0.nodes().await? }))
    }

    async fn warm(&self, request: Request<v1::WarmRequest>) -> Result<Response<v1::WarmResponse>, Status> {
        self.by_id(request.into_inner().mount)?.dataset.start_warming();
        Ok(Response::new(v1::WarmResponse {}))
    }
}

impl Service {
    fn find(&self, wanted: impl Fn(&Mount) -> bool) -> Option<Arc<Mount>> {
        lock(&self.0.mounts).iter().find(|mount| wanted(mount)).cloned()
    }

    fn by_id(&self, id: String) -> Result<Arc<Mount>, DaemonError> {
        self.find(|mount| mount.id == id).ok_or(DaemonError::NoMount { what: id })
    }
}

/// Serves /metrics, /healthz and /readyz.
pub(super) async fn serve_admin(daemon: Arc<Daemon>, address: SocketAddr) -> anyhow::Result<()> {
    let stopping = daemon.stopping.clone();
    larder_telemetry::admin::serve(address, daemon, stopping.cancelled_owned())
        .await
        .with_context(|| format!("serve the admin address {address} (--admin-address)"))
}

impl Admin for Daemon {
    fn ready(&self) -> Result<(), String> {
        if self.stopping.is_cancelled() {
            return Err("stopping".to_owned());
        }
        if self.keeper_seen.load(Ordering::Relaxed) || self.started.elapsed() > KEEPER_PATIENCE {
            Ok(())
        } else {
            Err("waiting for the connections that larder-csi keeps".to_owned())
        }
    }

    /// Sums over the mounts. A dataset that several mounts show, and what the store counts for all, counts once.
    fn samples(&self) -> Vec<Sample> {
        let mut datasets: Vec<_> = lock(&self.mounts).iter().map(|mount| Arc::clone(&mount.dataset)).collect();
        let mounts = datasets.len() as u64;
        datasets.sort_by_key(Arc::as_ptr);
        datasets.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let mut sums = std::collections::BTreeMap::new();
        for dataset in &datasets {
            for (name, value) in dataset.values() {
                *sums.entry(name).or_insert(0) += value;
            }
        }
        sums.extend(crate::dataset::store_values(self.store.counters()));
        sums.insert("daemon_mounts", mounts);
        sums.insert("daemon_connections_taken_total", self.counters.connections_taken.load(Ordering::Relaxed));
        sums.extend(self.cluster.iter().flat_map(super::peers::Cluster::values));
        sums.into_iter().map(|(name, value)| Sample { name, value }).collect()
    }
}
