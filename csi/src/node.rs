//! The node service: shows datasets at targets and takes them away.
//!
//! The cast: a [`Records`] entry says what is published where, the [`Mounter`] does it, the [`FdKeeper`] holds the
//! connections behind it, larderd ([`Daemon`]) serves them.
//!
//! Invariants: a bind exists only while its record does; a FUSE mount exists only while a record names it, or while the call
//! that makes it runs; targets are worked on by one call at a time, mounts are made and ended under their lock. After each
//! new session with larderd a sweep restores the second one, whatever was killed when.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use larder_csi_api::csi;
use larder_csi_api::csi::node_service_capability::rpc::Type as Rpc;
use larder_csi_api::csi::volume_usage::Unit;
use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};
use tracing::{debug, info, info_span, warn};

use crate::attributes::{AttributeError, Attributes, Rules, arguments_hash, check_capability, check_volume_id};
use crate::calls::{Calls, blocking};
use crate::daemon::{Daemon, DaemonError, Prepared};
use crate::datasets::{Datasets, GrantError};
use crate::fdkeeper::{Connection, FdKeeper, KeeperError, Session};
use crate::locks::{Busy, BusyTargets, MountLocks};
use crate::mount_id::MountId;
use crate::mounter::{BindError, Found, Mounter, MounterError};
use crate::records::{Record, Records};
use crate::secrets::credentials;
use crate::target_path::{TargetError, TargetPath, TargetRoots};

/// The key of the one topology segment, reported if the administrator wants it.
pub const TOPOLOGY_KEY: &str = "topology.larder.dev/node";

/// Why a volume was not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The request is wrong.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// The target cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The pod gets no such dataset.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// Another call works on the target.
    #[error("another call works on this target path")]
    Busy,
    /// Something else is published there.
    #[error("the target path shows volume {volume_id} already, or this one with other settings")]
    Taken {
        /// The volume that is there.
        volume_id: String,
    },
    /// It is not known yet which connections live.
    #[error("larderd has not been heard of yet; the node plugin waits for it")]
    Unready,
    /// larderd prepared nothing.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// larderd did not take the connection.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The kernel refused a mount.
    #[error(transparent)]
    Mount(#[from] MounterError),
    /// A record could not be written.
    #[error("write down what is published: {0}")]
    Record(#[source] io::Error),
    /// What was there before could not be taken away.
    #[error("take away what was there before: {0}")]
    Withdraw(#[from] UnpublishError),
}

impl From<BindError> for PublishError {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Target(error) => Self::Target(error),
            BindError::Mount(error) => Self::Mount(error),
        }
    }
}

/// Why a volume was not unpublished.
#[derive(Debug, thiserror::Error)]
pub enum UnpublishError {
    /// The request is wrong.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// The target cannot be cleaned.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Another call works on the target.
    #[error("another call works on this target path")]
    Busy,
    /// The FUSE mount could not be ended.
    #[error(transparent)]
    Mount(#[from] MounterError),
    /// A record could not be removed.
    #[error("forget what was published: {0}")]
    Record(#[source] io::Error),
}

/// Why there are no numbers.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// The request is wrong.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// It is not published there.
    #[error("volume {volume_id} is not published at that path")]
    Unknown {
        /// The volume.
        volume_id: String,
    },
}

/// What the node service works with.
#[derive(Debug)]
pub struct Node {
    /// What this node is called.
    pub node_id: String,
    /// Report the node as a topology segment.
    pub topology: bool,
    /// Where targets may lie.
    pub roots: TargetRoots,
    /// What attributes may say.
    pub rules: Rules,
    /// What pods were granted.
    pub datasets: Datasets,
    /// What is published.
    pub records: Records,
    /// Makes mounts.
    pub mounter: Mounter,
    /// Holds connections.
    pub keeper: FdKeeper,
    /// larderd.
    pub daemon: Daemon,
    pub(crate) progress: Progress,
}

/// What the node service keeps between calls.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    busy: BusyTargets,
    mounts: MountLocks,
    /// The first sweep is done: it is known which connections live.
    swept: AtomicBool,
}

impl Node {
    /// True if a publish can succeed: larderd is connected, and what was left behind is cleaned up.
    pub fn is_ready(&self) -> bool {
        self.progress.swept.load(Ordering::Acquire) && self.keeper.session().borrow().connected
    }

    /// Sweeps after each new session with larderd, for ever.
    pub async fn keep_clean(self: Arc<Self>) {
        let mut session = self.keeper.session();
        let mut last = 0;
        loop {
            let Session { connected, count } = *session.borrow_and_update();
            if connected && count > last {
                last = count;
                self.sweep().await;
            }
            if session.changed().await.is_err() {
                return;
            }
        }
    }

    /// Ends the mounts that no record names or whose connection is gone, and removes the records of targets that are gone.
    /// Logs what fails; the next sweep tries again.
    async fn sweep(self: &Arc<Self>) {
        for record in self.records.all() {
            let Ok(target) = self.roots.parse(&record.target.to_string_lossy()) else { continue };
            // Looked at before it is taken, so that no call on a pod that lives is turned away, and again after.
            if !is_gone(&target).await {
                continue;
            }
            let Some(busy) = self.progress.busy.take(&record.target) else { continue };
            let Some(record) = self.records.at(target.as_path()) else { continue };
            if is_gone(&target).await {
                info!(volume = %record.volume_id, "the pod's folder is gone, and with it what was published there");
                if let Err(error) = self.withdraw(&target, &record, &busy).await {
                    warn!(%error, volume = %record.volume_id, "cannot clean up");
                }
            }
        }
        let node = Arc::clone(self);
        let left_over = blocking(move || node.mounter.left_over()).await;
        let left_over = left_over.inspect_err(|error| warn!(%error, "cannot look for mounts")).unwrap_or_default();
        let all: BTreeSet<MountId> = self.keeper.mounts().into_iter().chain(left_over).collect();
        for mount in all {
            let _lock = self.progress.mounts.lock(&mount).await;
            let alive = self.keeper.connection(&mount).is_some_and(|connection| connection.is_alive());
            if alive && self.records.uses(&mount, None) {
                continue;
            }
            info!(%mount, alive, "end a mount that was left over");
            if let Err(error) = self.release(&mount).await {
                warn!(%error, %mount, "cannot clean up");
            }
        }
        self.progress.swept.store(true, Ordering::Release);
    }

    async fn publish(self: Arc<Self>, request: csi::NodePublishVolumeRequest) -> Result<(), PublishError> {
        check_volume_id(&request.volume_id)?;
        if request.target_path.is_empty() {
            return Err(AttributeError::Field { field: "target_path", what: "is missing".to_owned() }.into());
        }
        check_capability(request.volume_capability.as_ref())?;
        let target = self.roots.parse(&request.target_path)?;
        let attributes = Attributes::parse(&request.volume_context, &self.rules)?;
        let credentials = credentials(&request.secrets, attributes.inline)?;
        let arguments = arguments_hash(&request);
        let busy = self.progress.busy.take(target.as_path()).ok_or(PublishError::Busy)?;

        let found = self.look(&target).await?;
        let before = self.records.at(target.as_path());
        if let Found::Foreign { fs_type } = found {
            return Err(TargetError::Foreign { path: target.as_path().to_owned(), fs_type }.into());
        }
        if let (Some(before), Found::Ours(_)) = (&before, &found) {
            if before.volume_id != request.volume_id || before.arguments != arguments {
                return Err(PublishError::Taken { volume_id: before.volume_id.clone() });
            }
            if self.shows_live(&before.mount, &found).await? {
                debug!("published already");
                return Ok(());
            }
        }

        let mut dataset = blocking({
            let (node, attributes) = (Arc::clone(&self), attributes.clone());
            move || node.datasets.resolve(&attributes)
        })
        .await?;
        dataset.credentials = credentials;
        let prepared = self.daemon.prepare(dataset.clone()).await?;
        if !self.is_ready() {
            return Err(PublishError::Unready);
        }

        // A call that was killed half-way, a mount whose connection has died, or one of a lost state folder.
        match &before {
            Some(before) => self.withdraw(&target, before, &busy).await?,
            None if found != Found::Nothing => self.unbind(&target).await.map_err(UnpublishError::Target)?,
            None => {}
        }
        // The snapshot that larderd mounts again later must be the one that was found now.
        dataset.snapshot.clone_from(&prepared.snapshot);
        let record = Record {
            volume_id: request.volume_id,
            target: target.as_path().to_owned(),
            mount: prepared.mount.clone(),
            arguments,
            files: prepared.files,
            bytes: prepared.bytes,
            pod_namespace: attributes.pod.namespace,
            pod_uid: attributes.pod.uid,
        };
        let lock = self.progress.mounts.lock(&prepared.mount).await;
        let placed = self.place(&target, &prepared, dataset, record).await;
        if placed.is_err() {
            // The kubelet does not unpublish what was never published.
            self.undo(&target, &prepared.mount).await;
        }
        drop(lock);
        placed
    }

    /// Makes the FUSE mount if need be, and binds it. The caller holds the mount's lock, and undoes it when this fails.
    async fn place(
        self: &Arc<Self>,
        target: &TargetPath,
        prepared: &Prepared,
        dataset: larder_daemon_api::v1::Dataset,
        record: Record,
    ) -> Result<(), PublishError> {
        self.connect(prepared, dataset).await?;
        let (node, target, mount) = (Arc::clone(self), target.clone(), prepared.mount.clone());
        blocking(move || {
            node.records.put(record).map_err(PublishError::Record)?;
            Ok(node.mounter.bind(&mount, &target)?)
        })
        .await
    }

    async fn undo(self: &Arc<Self>, target: &TargetPath, mount: &MountId) {
        let (node, path) = (Arc::clone(self), target.clone());
        let cleaned = blocking(move || {
            node.mounter.unbind(&path)?;
            node.records.remove(path.as_path()).map_err(UnpublishError::Record)
        });
        if let Err(error) = cleaned.await {
            warn!(%error, "cannot take back what was begun");
        }
        if !self.records.uses(mount, None)
            && let Err(error) = self.release(mount).await
        {
            warn!(%error, "cannot take back the mount");
        }
    }

    /// Sees to it that there is a FUSE mount, and that larderd serves it. The caller holds the mount's lock.
    async fn connect(
        self: &Arc<Self>,
        prepared: &Prepared,
        dataset: larder_daemon_api::v1::Dataset,
    ) -> Result<(), PublishError> {
        let mount = &prepared.mount;
        if self.keeper.connection(mount).is_some_and(|connection| connection.is_alive()) {
            return Ok(());
        }
        // A dead mount is not shared with the new one; the pods that have it keep it, and must be restarted.
        self.release(mount).await?;
        let begun = blocking({
            let (node, prepared) = (Arc::clone(self), prepared.clone());
            move || node.mounter.begin(&prepared.mount, &prepared.name)
        })
        .await?;
        let connection = Connection { mount: mount.clone(), fd: begun.fd, dataset, init: begun.init };
        self.keeper.offer(connection).await?;
        let (node, mount) = (Arc::clone(self), mount.clone());
        blocking(move || node.mounter.raise_read_ahead(&mount)).await;
        Ok(())
    }

    /// Ends a mount, here and at larderd. The caller holds its lock. It does not need larderd, which hears of it in the
    /// next session if it is not there.
    async fn release(self: &Arc<Self>, mount: &MountId) -> Result<(), MounterError> {
        let connection = self.keeper.connection(mount);
        if let Err(error) = self.keeper.forget(mount).await {
            debug!(%error, %mount, "larderd does not hear that a mount is gone");
        }
        let ended = blocking({
            let (node, mount) = (Arc::clone(self), mount.clone());
            move || node.mounter.end(&mount)
        });
        let ended = ended.await;
        drop(connection);
        ended
    }

    async fn unpublish(self: Arc<Self>, request: csi::NodeUnpublishVolumeRequest) -> Result<(), UnpublishError> {
        check_volume_id(&request.volume_id)?;
        if request.target_path.is_empty() {
            return Err(AttributeError::Field { field: "target_path", what: "is missing".to_owned() }.into());
        }
        let target = self.roots.parse(&request.target_path)?;
        let busy = self.progress.busy.take(target.as_path()).ok_or(UnpublishError::Busy)?;
        match self.records.at(target.as_path()) {
            Some(record) if record.volume_id == request.volume_id => self.withdraw(&target, &record, &busy).await,
            Some(record) => {
                warn!(other = %record.volume_id, "the target shows another volume, which stays");
                Ok(())
            }
            // The state folder was lost, but the mount is ours.
            None => match self.look(&target).await {
                Ok(Found::Ours(_)) => Ok(self.unbind(&target).await?),
                Ok(Found::Nothing | Found::Foreign { .. }) | Err(_) => {
                    debug!("nothing is published there");
                    Ok(())
                }
            },
        }
    }

    /// Takes a volume away from its target, and ends the FUSE mount with the last of them. The record goes last, so that
    /// whatever fails is tried again.
    async fn withdraw(
        self: &Arc<Self>,
        target: &TargetPath,
        record: &Record,
        _busy: &Busy,
    ) -> Result<(), UnpublishError> {
        self.unbind(target).await?;
        let _lock = self.progress.mounts.lock(&record.mount).await;
        if !self.records.uses(&record.mount, Some(target.as_path())) {
            self.release(&record.mount).await?;
        }
        let (node, target) = (Arc::clone(self), target.clone());
        blocking(move || node.records.remove(target.as_path())).await.map_err(UnpublishError::Record)
    }

    async fn look(self: &Arc<Self>, target: &TargetPath) -> Result<Found, TargetError> {
        let (node, target) = (Arc::clone(self), target.clone());
        blocking(move || node.mounter.look(&target)).await
    }

    async fn unbind(self: &Arc<Self>, target: &TargetPath) -> Result<(), TargetError> {
        let (node, target) = (Arc::clone(self), target.clone());
        blocking(move || node.mounter.unbind(&target)).await
    }

    /// True if a target shows the FUSE mount that is served, not one that has died.
    async fn shows_live(self: &Arc<Self>, mount: &MountId, found: &Found) -> Result<bool, PublishError> {
        if !self.keeper.connection(mount).is_some_and(|connection| connection.is_alive()) {
            return Ok(false);
        }
        let (node, mount) = (Arc::clone(self), mount.clone());
        let device = blocking(move || node.mounter.device(&mount)).await?;
        Ok(device.is_some_and(|device| *found == Found::Ours(device)))
    }

    fn stats(&self, request: &csi::NodeGetVolumeStatsRequest) -> Result<csi::NodeGetVolumeStatsResponse, StatsError> {
        check_volume_id(&request.volume_id)?;
        if request.volume_path.is_empty() {
            return Err(AttributeError::Field { field: "volume_path", what: "is missing".to_owned() }.into());
        }
        let unknown = || StatsError::Unknown { volume_id: request.volume_id.clone() };
        let path = self.roots.parse(&request.volume_path).map_err(|_| unknown())?;
        let record = self.records.at(path.as_path()).filter(|record| record.volume_id == request.volume_id);
        let record = record.ok_or_else(unknown)?;
        let usage = |count: u64, unit: Unit| {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            csi::VolumeUsage { available: 0, total: count, used: count, unit: unit.into() }
        };
        Ok(csi::NodeGetVolumeStatsResponse {
            usage: vec![usage(record.bytes, Unit::Bytes), usage(record.files, Unit::Inodes)],
            volume_condition: None,
        })
    }

    /// A look at the session with larderd.
    pub fn session(&self) -> watch::Receiver<Session> {
        self.keeper.session()
    }
}

/// True if the pod's folder is gone, and with it the target.
async fn is_gone(target: &TargetPath) -> bool {
    let target = target.clone();
    blocking(move || matches!(target.open_parent(), Ok(None))).await
}

/// The node service on the wire.
#[derive(Clone, Debug)]
pub struct NodeService {
    /// What it serves.
    pub node: Arc<Node>,
    /// What runs.
    pub calls: Calls,
}

#[async_trait]
impl csi::node_server::Node for NodeService {
    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let span = info_span!("publish", volume = ?request.volume_id, target = ?request.target_path);
        let node = Arc::clone(&self.node);
        self.calls
            .run(span, async move { node.publish(request).await.map(|()| csi::NodePublishVolumeResponse {}) })
            .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let span = info_span!("unpublish", volume = ?request.volume_id, target = ?request.target_path);
        let node = Arc::clone(&self.node);
        self.calls
            .run(span, async move { node.unpublish(request).await.map(|()| csi::NodeUnpublishVolumeResponse {}) })
            .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let span = info_span!("stats", volume = ?request.volume_id);
        let node = Arc::clone(&self.node);
        self.calls.run(span, async move { node.stats(&request) }).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let rpc = csi::node_service_capability::Rpc { r#type: Rpc::GetVolumeStats.into() };
        let r#type = Some(csi::node_service_capability::Type::Rpc(rpc));
        let capabilities = vec![csi::NodeServiceCapability { r#type }];
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        let node_id = self.node.node_id.clone();
        // Cached data is a reason to prefer a node, not a condition to reach it; a segment binds volumes to nodes.
        let accessible_topology =
            self.node.topology.then(|| csi::Topology { segments: [(TOPOLOGY_KEY.to_owned(), node_id.clone())].into() });
        Ok(Response::new(csi::NodeGetInfoResponse { node_id, max_volumes_per_node: 0, accessible_topology }))
    }

    async fn node_stage_volume(
        &self,
        _: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes are not staged"))
    }

    async fn node_unstage_volume(
        &self,
        _: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        Err(Status::unimplemented("volumes are not staged"))
    }

    async fn node_expand_volume(
        &self,
        _: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("datasets have the size they have"))
    }
}
