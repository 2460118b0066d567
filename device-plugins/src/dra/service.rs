//! Answers the kubelet's calls about claims. Each claim has its own result: the kubelet retries a claim that could not
//! be prepared, and only its pod waits.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::future::join_all;
use k8s_openapi::api::resource::v1::ResourceClaim;
use larder_kube::{Api, Client};
use larder_kubelet::dra::dra_plugin_server::DraPlugin;
use larder_kubelet::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use larder_kubelet::dra_health::dra_resource_health_server::DraResourceHealth;
use larder_kubelet::dra_health::{NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};
use tracing::{info, warn};

use super::claim::{Allocated, Refusal, Uid, allocated};
use super::claim_file::{Prepared, PreparedDevice};
use super::devices::offered;
use super::files::Files;
use super::health::Lists;
use super::prepared::{Given, prepare};
use crate::cdi::Found;
use crate::grant::check_named;
use crate::view::View;

/// The timeout of a read from the API server.
const PATIENCE: Duration = Duration::from_secs(10);

/// The service. Clones share one state.
#[derive(Clone, Debug)]
pub struct Service(Arc<Inner>);

struct Inner {
    node: String,
    client: Client,
    views: watch::Receiver<Arc<View>>,
    files: Files,
    found: Found,
    gpus_by_cdi_only: bool,
    /// Held while a claim's file is read and written, so that concurrent calls do not interleave.
    turn: Mutex<()>,
    /// Incremented after claims were prepared or unprepared.
    changes: watch::Sender<u64>,
    stop: CancellationToken,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("node", &self.node).field("files", &self.files).finish_non_exhaustive()
    }
}

/// What the service works with.
#[derive(Debug)]
pub struct Settings {
    /// The node's name, which is also the name of its pool.
    pub node: String,
    /// The runtime's directory for generated CDI files.
    pub cdi: PathBuf,
    /// The CDI files of other programs.
    pub found: Found,
    /// Whether GPUs that no CDI file names are refused.
    pub gpus_by_cdi_only: bool,
}

impl Service {
    /// Serves the newest of `views` until `stop`, and increments `changes` after claims were prepared or unprepared.
    pub fn new(
        settings: Settings,
        client: Client,
        views: watch::Receiver<Arc<View>>,
        changes: watch::Sender<u64>,
        stop: CancellationToken,
    ) -> Self {
        let Settings { node, cdi, found, gpus_by_cdi_only } = settings;
        let (files, turn) = (Files::new(cdi), Mutex::default());
        Self(Arc::new(Inner { node, client, views, files, found, gpus_by_cdi_only, turn, changes, stop }))
    }

    async fn prepare(&self, claim: &Claim) -> Result<Prepared, ClaimError> {
        let uid = uid(claim)?;
        let claims: Api<ResourceClaim> = Api::namespaced(self.0.client.clone(), &claim.namespace);
        let read = timeout(PATIENCE, claims.get(&claim.name)).await;
        let read = read.map_err(|_| ClaimError::Silent)?.map_err(|error| ClaimError::Read(Box::new(error)))?;
        let allocated = allocated(&read, &uid, &self.0.node)?;
        let (inner, name) = (Arc::clone(&self.0), format!("{}/{}", claim.namespace, claim.name));
        let _turn = self.0.turn.lock().await;
        let prepared = spawn_blocking(move || inner.prepare(&uid, name, &allocated)).await;
        prepared.map_err(ClaimError::Task)?
    }

    async fn unprepare(&self, claim: &Claim) -> Result<(), ClaimError> {
        let (inner, uid) = (Arc::clone(&self.0), uid(claim)?);
        let _turn = self.0.turn.lock().await;
        let removed = spawn_blocking(move || inner.files.remove(&uid)).await;
        removed.map_err(ClaimError::Task)?.map_err(ClaimError::Remove)
    }

    fn changed(&self) {
        self.0.changes.send_modify(|count| *count += 1);
    }
}

impl Inner {
    /// Prepares one claim. Blocks.
    fn prepare(&self, uid: &Uid, claim: String, allocated: &[Allocated]) -> Result<Prepared, ClaimError> {
        // A running pod keeps its devices, even if they are out of service now.
        if let Some(prepared) = self.files.read(uid).filter(|prepared| prepared.is_of(allocated)) {
            return Ok(prepared);
        }
        let view = Arc::clone(&self.views.borrow());
        let offered = offered(&view);
        let given = allocated.iter().map(|allocated| {
            let device = &allocated.device;
            let offered = offered.get(device);
            let node = || self.node.clone();
            let offered = offered.ok_or_else(|| ClaimError::NotOffered { node: node(), device: device.clone() })?;
            // Admin access is for diagnosis, so it is also allowed on a device that is out of service.
            if let Some(fault) = view.faults.get(offered.key).filter(|_| !allocated.admin) {
                let (message, recovery) = (fault.message.clone(), fault.recovery.clone());
                return Err(ClaimError::OutOfService { device: device.clone(), message, recovery });
            }
            Ok(Given { allocated: allocated.clone(), key: offered.key, resource: offered.resource })
        });
        let given = given.collect::<Result<Vec<Given<'_>>, ClaimError>>()?;
        let vendor = self.found.names();
        if self.gpus_by_cdi_only {
            check_named(&view.machine, &given.iter().map(|given| given.key).collect(), &vendor)?;
        }
        let (prepared, file) = prepare(&view.machine, uid, claim, &given, &vendor);
        self.files.write(uid, &file).map_err(ClaimError::Write)?;
        info!(claim = prepared.claim, devices = ?prepared.devices, "claim prepared");
        Ok(prepared)
    }
}

fn uid(claim: &Claim) -> Result<Uid, ClaimError> {
    Uid::new(&claim.uid).ok_or_else(|| ClaimError::Uid(claim.uid.clone()))
}

/// Why a claim was not prepared or not unprepared. The kubelet shows the text in an event of the pod and retries.
#[derive(Debug, thiserror::Error)]
enum ClaimError {
    #[error("{0:?} is not the uid of a claim")]
    Uid(String),
    #[error("read the claim: the API server does not answer")]
    Silent,
    #[error("read the claim: {0}")]
    Read(Box<larder_kube::Error>),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("{node} does not offer device {device} through DRA now")]
    NotOffered { node: String, device: String },
    #[error("device {device} is out of service: {message}; it returns to service once {recovery}")]
    OutOfService { device: String, message: String, recovery: String },
    #[error(transparent)]
    NotNamed(#[from] crate::grant::Refusal),
    #[error("write the claim's CDI file: {0}")]
    Write(io::Error),
    #[error("remove the claim's CDI file: {0}")]
    Remove(io::Error),
    #[error("the task of the claim failed: {0}")]
    Task(JoinError),
}

#[async_trait]
impl DraPlugin for Service {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        let answer = async |claim: &Claim| match self.prepare(claim).await {
            Ok(prepared) => {
                let device = |device: PreparedDevice| Device {
                    request_names: vec![device.request],
                    pool_name: self.0.node.clone(),
                    device_name: device.device,
                    cdi_device_ids: device.cdi,
                    share_id: device.share,
                };
                let devices = prepared.devices.into_iter().map(device).collect();
                (claim.uid.clone(), NodePrepareResourceResponse { devices, error: String::new() })
            }
            Err(error) => {
                let error = error.to_string();
                warn!(namespace = claim.namespace, claim = claim.name, error, "claim not prepared");
                (claim.uid.clone(), NodePrepareResourceResponse { devices: Vec::new(), error })
            }
        };
        let claims: HashMap<_, _> = join_all(claims.iter().map(answer)).await.into_iter().collect();
        self.changed();
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let error = self.unprepare(&claim).await.err().map(|error| error.to_string()).unwrap_or_default();
            if error.is_empty() {
                info!(namespace = claim.namespace, claim = claim.name, "claim unprepared");
            } else {
                warn!(namespace = claim.namespace, claim = claim.name, error, "claim not unprepared");
            }
            claims.insert(claim.uid, NodeUnprepareResourceResponse { error });
        }
        self.changed();
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}

#[async_trait]
impl DraResourceHealth for Service {
    type NodeWatchResourcesStream = Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let Inner { node, views, stop, .. } = &*self.0;
        let lists = Lists { pool: node.clone(), views: views.clone(), stop: stop.clone(), sent: None };
        let stream = futures::stream::unfold(lists, |mut lists| async {
            let devices = lists.next().await?;
            Some((Ok(NodeWatchResourcesResponse { devices }), lists))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

#[cfg(test)]
mod tests;
