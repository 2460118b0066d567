//! A fake kubelet: its registration socket, and its clients of device plugins.

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use larder_kubelet::deviceplugin::device_plugin_client::DevicePluginClient;
use larder_kubelet::deviceplugin::registration_server::{Registration, RegistrationServer};
use larder_kubelet::deviceplugin::{Device, Empty, RegisterRequest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Request, Response, Status, async_trait};

/// The state of the kubelet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// All attempts, in order.
    pub(crate) registrations: Vec<RegisterRequest>,
    /// The newest list of each resource; removed when its stream ends.
    pub(crate) devices: BTreeMap<String, Vec<Device>>,
    /// The socket of each resource.
    pub(crate) endpoints: BTreeMap<String, String>,
    /// The number of lists received.
    pub(crate) lists: usize,
    /// Registrations are rejected while this is not 0.
    pub(crate) refusals: usize,
}

impl Known {
    /// The healthy IDs of a resource.
    pub(crate) fn healthy(&self, resource: &str) -> Vec<String> {
        let devices = self.devices.get(resource).into_iter().flatten();
        devices.filter(|device| device.health == "Healthy").map(|device| device.id.clone()).collect()
    }
}

type Clients = Arc<std::sync::Mutex<BTreeMap<String, (u64, AbortHandle)>>>;

/// A running kubelet. Dropping it simulates a kill.
pub(crate) struct Kubelet {
    folder: PathBuf,
    pub(crate) known: watch::Sender<Known>,
    clients: Clients,
    _tasks: JoinSet<()>,
}

#[derive(Clone)]
struct Service {
    folder: PathBuf,
    known: watch::Sender<Known>,
    clients: Clients,
}

impl Kubelet {
    /// Starts as the real one does: it removes all sockets, then listens.
    pub(crate) fn start(folder: &Path) -> Self {
        Self::start_refusing(folder, 0)
    }

    /// Starts a kubelet that rejects the first registrations.
    pub(crate) fn start_refusing(folder: &Path, refusals: usize) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
                // A stopping plugin may remove its socket first.
                let _ = std::fs::remove_file(entry.path());
            }
        }
        let known = watch::Sender::new(Known { refusals, ..Known::default() });
        let clients = Clients::default();
        let listener = UnixListener::bind(folder.join("kubelet.sock")).unwrap();
        let service = Service { folder: folder.to_owned(), known: known.clone(), clients: Arc::clone(&clients) };
        let serving = Server::builder()
            .add_service(RegistrationServer::new(service))
            .serve_with_incoming(UnixListenerStream::new(listener));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { serving.await.unwrap() });
        Self { folder: folder.to_owned(), known, clients, _tasks: tasks }
    }

    /// Waits until the state satisfies the condition.
    pub(crate) async fn until(&self, what: &str, is_so: impl FnMut(&Known) -> bool) -> Known {
        let mut known = self.known.subscribe();
        let waited = tokio::time::timeout(Duration::from_secs(30), known.wait_for(is_so)).await;
        match waited {
            Ok(known) => known.unwrap().clone(),
            Err(_) => panic!("{what}: {:#?}", *self.known.borrow()),
        }
    }

    /// Waits until a resource has `count` healthy devices.
    pub(crate) async fn until_healthy(&self, resource: &str, count: usize) -> Known {
        self.until(&format!("{count} of {resource}"), |known| known.healthy(resource).len() == count).await
    }

    /// A client of the plugin that has registered for a resource.
    pub(crate) async fn plugin(&self, resource: &str) -> DevicePluginClient<Channel> {
        let endpoint = self.known.borrow().endpoints[resource].clone();
        dial(&self.folder.join(endpoint)).await.unwrap()
    }

    /// Closes the stream of a resource.
    pub(crate) fn close(&self, resource: &str) {
        self.clients.lock().unwrap()[resource].1.abort();
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        for (_, client) in self.clients.lock().unwrap().values() {
            client.abort();
        }
    }
}

async fn dial(socket: &Path) -> Result<DevicePluginClient<Channel>, Status> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
    channel.map(DevicePluginClient::new).map_err(|error| Status::internal(format!("dial: {error}")))
}

#[async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let (name, endpoint) = (request.resource_name.clone(), request.endpoint.clone());
        let mut is_refused = false;
        self.known.send_modify(|known| {
            known.registrations.push(request.clone());
            is_refused = known.refusals > 0;
            known.refusals = known.refusals.saturating_sub(1);
        });
        if is_refused {
            return Err(Status::unavailable("not yet"));
        }
        let mut plugin = dial(&self.folder.join(&endpoint)).await?;
        let options = plugin.get_device_plugin_options(Empty {}).await?.into_inner();
        assert_eq!(Some(options), request.options);
        self.known.send_modify(|known| _ = known.endpoints.insert(name.clone(), endpoint));
        let service = self.clone();
        let number = self.known.borrow().registrations.len() as u64;
        let resource = name.clone();
        let client = tokio::spawn(async move {
            // When a client is closed by either side, the kubelet closes the newest client of that name.
            let _closing = Closing { service: service.clone(), resource: resource.clone() };
            let Ok(lists) = plugin.list_and_watch(Empty {}).await else { return };
            let mut lists = lists.into_inner();
            while let Ok(Some(list)) = lists.message().await {
                service.known.send_modify(|known| {
                    known.lists += 1;
                    known.devices.insert(resource.clone(), list.devices);
                });
            }
        });
        self.clients.lock().unwrap().insert(name, (number, client.abort_handle()));
        Ok(Response::new(Empty {}))
    }
}

struct Closing {
    service: Service,
    resource: String,
}

impl Drop for Closing {
    fn drop(&mut self) {
        let newest = self.service.clients.lock().unwrap().remove(&self.resource);
        if let Some((_, newest)) = newest {
            newest.abort();
            self.service.known.send_modify(|known| _ = known.devices.remove(&self.resource));
        }
    }
}
