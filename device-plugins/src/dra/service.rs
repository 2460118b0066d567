//! Answers the kubelet's calls about claims. A claim that cannot be prepared is an error of its own: the kubelet tries it again, and
//! its pod waits.

use std::collections::HashMap;
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
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};
use tracing::{info, warn};

use super::claim::{Allocated, Uid, allocated};
use super::claim_file::{Prepared, PreparedDevice};
use super::devices::offered;
use super::files::Files;
use super::health::Lists;
use super::prepared::{Given, prepare};
use crate::cdi::Found;
use crate::view::View;

/// The longest that the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The service. Its clones are the same one.
#[derive(Clone, Debug)]
pub struct Service(Arc<Inner>);

struct Inner {
    node: String,
    client: Client,
    views: watch::Receiver<Arc<View>>,
    files: Files,
    found: Found,
    /// Held while a file is looked at and written.
    turn: Mutex<()>,
    /// Counted up when claims were prepared or unprepared.
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
    /// The node's name, which is that of its pool.
    pub node: String,
    /// The runtime's folder for CDI files of programs.
    pub cdi: PathBuf,
    /// The CDI files of others.
    pub found: Found,
}

impl Service {
    /// A service of the newest of `views`, until `stop`. It counts `changes` up when claims were prepared or unprepared.
    pub fn new(
        settings: Settings,
        client: Client,
        views: watch::Receiver<Arc<View>>,
        changes: watch::Sender<u64>,
        stop: CancellationToken,
    ) -> Self {
        let Settings { node, cdi, found } = settings;
        let (files, turn) = (Files::new(cdi), Mutex::default());
        Self(Arc::new(Inner { node, client, views, files, found, turn, changes, stop }))
    }

    async fn prepare(&self, claim: &Claim) -> Result<Prepared, String> {
        let uid = uid(claim)?;
        let claims: Api<ResourceClaim> = Api::namespaced(self.0.client.clone(), &claim.namespace);
        let read = timeout(PATIENCE, claims.get(&claim.name)).await;
        let read = read.map_err(|_| "read the claim: the API server does not answer".to_owned())?;
        let read = read.map_err(|error| format!("read the claim: {error}"))?;
        let allocated = allocated(&read, &uid, &self.0.node).map_err(|refusal| refusal.to_string())?;
        let (inner, name) = (Arc::clone(&self.0), format!("{}/{}", claim.namespace, claim.name));
        let _turn = self.0.turn.lock().await;
        let prepared = spawn_blocking(move || inner.prepare(&uid, name, &allocated)).await;
        prepared.map_err(|error| format!("prepare the claim: {error}"))?
    }

    async fn unprepare(&self, claim: &Claim) -> Result<(), String> {
        let (inner, uid) = (Arc::clone(&self.0), uid(claim)?);
        let _turn = self.0.turn.lock().await;
        let removed = spawn_blocking(move || inner.files.remove(&uid)).await;
        let removed = removed.map_err(|error| format!("remove the claim's CDI file: {error}"))?;
        removed.map_err(|error| format!("remove the claim's CDI file: {error}"))
    }

    fn changed(&self) {
        self.0.changes.send_modify(|count| *count += 1);
    }
}

impl Inner {
    /// Blocks.
    fn prepare(&self, uid: &Uid, claim: String, allocated: &[Allocated]) -> Result<Prepared, String> {
        // A pod that runs keeps what it has, whatever has become of the devices.
        if let Some(prepared) = self.files.read(uid).filter(|prepared| prepared.is_of(allocated)) {
            return Ok(prepared);
        }
        let view = Arc::clone(&self.views.borrow());
        let offered = offered(&view);
        let given = allocated.iter().map(|allocated| {
            let device = &allocated.device;
            let offered = offered.get(device);
            let offered = offered.ok_or_else(|| format!("{} does not offer device {device} by DRA now", self.node))?;
            // An administrator may want to find out what is wrong with it.
            if let Some(fault) = view.faults.get(offered.key).filter(|_| !allocated.admin) {
                let (message, ends) = (&fault.message, &fault.ends);
                return Err(format!("device {device} is out of service: {message}; it is back once {ends}"));
            }
            Ok(Given { allocated: allocated.clone(), key: offered.key, resource: offered.resource })
        });
        let given = given.collect::<Result<Vec<Given<'_>>, String>>()?;
        let (prepared, file) = prepare(&view.machine, uid, claim, &given, &self.found.names());
        self.files.write(uid, &file).map_err(|error| format!("write the claim's CDI file: {error}"))?;
        info!(claim = prepared.claim, devices = ?prepared.devices, "prepared a claim");
        Ok(prepared)
    }
}

fn uid(claim: &Claim) -> Result<Uid, String> {
    Uid::new(&claim.uid).ok_or_else(|| format!("{:?} is no uid of a claim", claim.uid))
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
                warn!(namespace = claim.namespace, claim = claim.name, error, "a claim is not prepared");
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
            let error = self.unprepare(&claim).await.err().unwrap_or_default();
            if error.is_empty() {
                info!(namespace = claim.namespace, claim = claim.name, "unprepared a claim");
            } else {
                warn!(namespace = claim.namespace, claim = claim.name, error, "a claim is not unprepared");
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
