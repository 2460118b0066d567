//! A fake kubelet: device plugins register with it, and it follows their device lists.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use hyper_util::rt::TokioIo;
use larder_kubelet::deviceplugin::device_plugin_client::DevicePluginClient;
use larder_kubelet::deviceplugin::registration_server::{Registration, RegistrationServer};
use larder_kubelet::deviceplugin::{Empty, RegisterRequest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Request, Response, Status, async_trait};

/// A registered resource.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    /// The client of its plugin.
    pub(super) plugin: DevicePluginClient<Channel>,
    /// The IDs of its healthy devices.
    pub(super) ids: Vec<String>,
}

/// A listening kubelet. Dropping it closes its socket.
pub(super) struct Kubelet {
    /// The folder that plugins get as --kubelet-dir.
    pub(super) folder: PathBuf,
    resources: watch::Sender<BTreeMap<String, Resource>>,
    serving: JoinHandle<()>,
}

impl Kubelet {
    /// Starts the kubelet in a folder like `/var/lib/kubelet`, which must contain `device-plugins`. Must be called
    /// within a runtime.
    pub(super) fn start(folder: &Path) -> anyhow::Result<Self> {
        let resources = watch::Sender::default();
        let sockets = folder.join("device-plugins");
        let listener = UnixListener::bind(sockets.join("kubelet.sock")).context("make the kubelet's socket")?;
        let service = RegistrationServer::new(Service { sockets, resources: resources.clone() });
        let serving = Server::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener));
        // An error of the server is ignored here: the wait for resources then times out.
        let serving = tokio::spawn(async move { drop(serving.await) });
        Ok(Self { folder: folder.to_owned(), resources, serving })
    }

    /// All resources, as soon as they have `ids` IDs together; `None` if that takes longer than `within`.
    pub(super) async fn resources(&self, ids: usize, within: Duration) -> Option<BTreeMap<String, Resource>> {
        let mut resources = self.resources.subscribe();
        let all = |resources: &BTreeMap<String, Resource>| resources.values().map(|one| one.ids.len()).sum::<usize>();
        let waited = tokio::time::timeout(within, resources.wait_for(|now| all(now) == ids)).await;
        waited.ok()?.ok().map(|resources| resources.clone())
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[derive(Clone)]
struct Service {
    sockets: PathBuf,
    resources: watch::Sender<BTreeMap<String, Resource>>,
}

#[async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let RegisterRequest { resource_name: name, endpoint, .. } = request.into_inner();
        let mut plugin = dial(&self.sockets.join(endpoint)).await?;
        plugin.get_device_plugin_options(Empty {}).await?;
        let resources = self.resources.clone();
        tokio::spawn(async move {
            let Ok(lists) = plugin.list_and_watch(Empty {}).await else { return };
            let mut lists = lists.into_inner();
            while let Ok(Some(list)) = lists.message().await {
                let healthy = list.devices.into_iter().filter(|device| device.health == "Healthy");
                let resource = Resource { plugin: plugin.clone(), ids: healthy.map(|device| device.id).collect() };
                resources.send_modify(|resources| _ = resources.insert(name.clone(), resource));
            }
        });
        Ok(Response::new(Empty {}))
    }
}

async fn dial(socket: &Path) -> Result<DevicePluginClient<Channel>, Status> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
    channel.map(DevicePluginClient::new).map_err(|error| Status::internal(format!("dial the plugin: {error}")))
}
