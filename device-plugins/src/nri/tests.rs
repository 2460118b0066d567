//! The plugin against a fake runtime.

use larder_devices_api::nri::{
    CdiDevice, ConfigureRequest, ConfigureResponse, Container, CreateContainerRequest, CreateContainerResponse, Empty,
    PodSandbox, RemoveContainerRequest, SynchronizeRequest, SynchronizeResponse,
};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use ttrpc::r#async::{MethodHandler, Service, TtrpcContext};
use ttrpc::proto::Response;

use super::*;
use crate::instance::Instance;
use crate::machine::{Hca, Machine};

/// Hears who registers.
struct Register(mpsc::Sender<RegisterPluginRequest>);

#[async_trait::async_trait]
impl MethodHandler for Register {
    async fn handler(&self, _: TtrpcContext, request: Request) -> ttrpc::Result<Response> {
        self.0.send(RegisterPluginRequest::decode(&request.payload[..]).unwrap()).await.unwrap();
        let mut response = Response::new();
        response.payload = Empty {}.encode_to_vec();
        Ok(response)
    }
}

/// The runtime's end of a connection with a registered plugin.
struct Runtime {
    client: Client,
    carrying: tokio::task::JoinHandle<std::io::Result<()>>,
    _server: Server,
}

impl Runtime {
    async fn accept(listener: &UnixListener) -> Self {
        let (trunk, _) = listener.accept().await.unwrap();
        let (called, served, carry) = Mux::new(trunk).into_parts();
        let carrying = tokio::spawn(carry);
        let (sender, mut registered) = mpsc::channel(1);
        let method: Box<dyn MethodHandler + Send + Sync> = Box::new(Register(sender));
        let service = Service { methods: [("RegisterPlugin".to_owned(), method)].into(), streams: HashMap::new() };
        let once = futures::stream::once(async { std::io::Result::Ok(served) });
        let listener = Listener::new(futures::StreamExt::chain(once, futures::stream::pending()));
        let services = HashMap::from([("nri.pkg.api.v1alpha1.Runtime".to_owned(), service)]);
        let mut server = Server::new().add_listener(listener).register_service(services);
        server.start().await.unwrap();
        let register = registered.recv().await.unwrap();
        assert_eq!((register.plugin_name.as_str(), register.plugin_idx.as_str()), ("larder", "50"));
        Self { client: Client::new(Socket::new(called)), carrying, _server: server }
    }

    async fn call<A: Message + Default>(&self, method: &str, request: impl Message) -> Result<A, String> {
        let mut call = Request::new();
        call.service = "nri.pkg.api.v1alpha1.Plugin".to_owned();
        call.method = method.to_owned();
        call.payload = request.encode_to_vec();
        match self.client.request(call).await {
            Ok(response) => Ok(A::decode(&response.payload[..]).unwrap()),
            Err(ttrpc::Error::RpcStatus(status)) => Err(status.message),
            Err(error) => panic!("{error}"),
        }
    }

    async fn synchronize(&self, pods: Vec<PodSandbox>, containers: Vec<Container>, more: bool) {
        let request = SynchronizeRequest { pods, containers, more };
        let answer: SynchronizeResponse = self.call("Synchronize", request).await.unwrap();
        assert_eq!((answer.more, answer.update.len()), (more, 0));
    }

    fn end(self) {
        self.carrying.abort();
    }
}

fn pod(annotations: &[(&str, &str)]) -> PodSandbox {
    let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    PodSandbox { id: "s1".into(), uid: "u1".into(), name: "p".into(), annotations, ..PodSandbox::default() }
}

/// A container with an HCA of ours, or with none.
fn container(name: &str, hca: Option<&str>) -> Container {
    let cdi_devices = hca.map(|hca| CdiDevice { name: format!("larder.dev/hca={hca}") }).into_iter().collect();
    let id = format!("id-{name}");
    Container { id, name: name.to_owned(), pod_sandbox_id: "s1".into(), cdi_devices, ..Container::default() }
}

fn created(container: Container, annotations: &[(&str, &str)]) -> CreateContainerRequest {
    CreateContainerRequest { pod: Some(pod(annotations)), container: Some(container) }
}

/// A process that begins now.
async fn begun(folder: &tempfile::TempDir) -> Begun {
    let begun = Begun::default();
    begun.set(&Arc::new(Instance::begin(folder.path()).await.unwrap()));
    begun
}

// SEMANTICS: D13
#[tokio::test]
async fn the_newer_of_two_processes_answers_for_containers() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("nri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let machine = Machine { hcas: vec![Hca { name: "mlx5_0".into(), ..Hca::default() }], ..Machine::default() };
    let view = watch::Sender::new(Arc::new(View { machine: Arc::new(machine), ..View::default() }));
    let stop = CancellationToken::new();
    let start = async |instance: &Begun, stop: &CancellationToken| {
        let process = run(socket.clone(), view.subscribe(), instance.clone(), Outputs::default(), stop.clone());
        let running = tokio::spawn(process);
        (Runtime::accept(&listener).await, running)
    };
    let adjusts = async |runtime: &Runtime| {
        let asked = created(container("d", Some("0000:00:00.0")), &[]);
        runtime.call::<CreateContainerResponse>("CreateContainer", asked).await.unwrap().adjust.is_some()
    };
    let (older_runtime, older) = start(&begun(&scratch).await, &stop).await;
    assert!(adjusts(&older_runtime).await);
    // One that has not begun does not know what is offered.
    let instance = Begun::default();
    let (newer_runtime, newer) = start(&instance, &stop).await;
    assert_eq!((adjusts(&older_runtime).await, adjusts(&newer_runtime).await), (true, false));
    let begins = Arc::new(Instance::begin(scratch.path()).await.unwrap());
    instance.set(&begins);
    assert_eq!((adjusts(&older_runtime).await, adjusts(&newer_runtime).await), (false, true));
    let refused = created(container("d", Some("0000:00:00.0")), &[("rdma.larder.dev/limits", "?")]);
    assert!(newer_runtime.call::<CreateContainerResponse>("CreateContainer", refused).await.is_err());
    newer.abort();
    assert!(newer.await.unwrap_err().is_cancelled());
    newer_runtime.end();
    drop((instance, begins));
    // Once the last task that knows the newer one has ended.
    while !adjusts(&older_runtime).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    older.await.unwrap();
}

// SEMANTICS: D21
#[tokio::test]
async fn the_plugin_reconnects_and_gives_the_reason_for_a_refused_container() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("nri.sock");
    let machine = Machine { hcas: vec![Hca { name: "mlx5_0".into(), ..Hca::default() }], ..Machine::default() };
    let view = watch::Sender::new(Arc::new(View { machine: Arc::new(machine), ..View::default() }));
    let (outputs, stop) = (Outputs::default(), CancellationToken::new());
    let mut status = outputs.status.subscribe();
    let running =
        tokio::spawn(run(socket.clone(), view.subscribe(), begun(&scratch).await, outputs.clone(), stop.clone()));

    let is_away = |text: &'static str| move |status: &Status| matches!(status, Status::Away(why) if why.contains(text));
    status.wait_for(is_away("connect: No such file")).await.unwrap();
    let listener = UnixListener::bind(&socket).unwrap();

    let runtime = Runtime::accept(&listener).await;
    let configured: ConfigureResponse = runtime.call("Configure", ConfigureRequest::default()).await.unwrap();
    assert_eq!(configured.events, 0b100_0000_1000);
    // The runtime does not call the plugin before it has sent all containers.
    let (a, b, c) = (container("a", Some("0000:00:00.0")), container("b", None), container("c", Some("0000:00:00.0")));
    runtime.synchronize(vec![pod(&[])], vec![a, b], true).await;
    assert_ne!(*outputs.status.borrow(), Status::Connected);
    // Its pod was in the message before.
    runtime.synchronize(Vec::new(), vec![c], false).await;
    status.wait_for(|status| *status == Status::Connected).await.unwrap();
    let names = || outputs.containers.borrow().keys().map(|key| key.container.clone()).collect::<Vec<_>>();
    assert_eq!(names(), ["a", "c"]);

    let other = created(container("d", None), &[("rdma.larder.dev/limits", "?")]);
    let answer: CreateContainerResponse = runtime.call("CreateContainer", other).await.unwrap();
    assert_eq!(answer, CreateContainerResponse::default());
    let unreadable = created(container("d", Some("0000:00:00.0")), &[("rdma.larder.dev/limits", "?")]);
    let refusal = runtime.call::<CreateContainerResponse>("CreateContainer", unreadable).await.unwrap_err();
    assert!(refusal.starts_with("the pod's annotation rdma.larder.dev/limits is malformed: \"?\""), "{refusal}");
    let sound = created(container("d", Some("0000:00:00.0")), &[]);
    let answer: CreateContainerResponse = runtime.call("CreateContainer", sound).await.unwrap();
    assert!(answer.adjust.is_some());
    assert_eq!(names(), ["a", "c", "d"]);
    let removed = RemoveContainerRequest { pod: None, container: Some(container("a", None)) };
    runtime.call::<Empty>("RemoveContainer", removed).await.unwrap();
    assert_eq!(names(), ["c", "d"]);

    runtime.end();
    status.wait_for(is_away("the container runtime closed the connection")).await.unwrap();
    let runtime = Runtime::accept(&listener).await;
    runtime.synchronize(vec![pod(&[])], vec![container("e", Some("0000:00:00.0"))], false).await;
    status.wait_for(|status| *status == Status::Connected).await.unwrap();
    assert_eq!(names(), ["e"]);

    stop.cancel();
    running.await.unwrap();
}

// SEMANTICS: D21
#[tokio::test]
async fn bytes_that_are_no_ttrpc_end_a_connection_and_the_plugin_connects_again() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("nri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (outputs, stop) = (Outputs::default(), CancellationToken::new());
    let view = watch::Sender::new(Arc::default());
    let running = tokio::spawn(run(socket, view.subscribe(), begun(&scratch).await, outputs.clone(), stop.clone()));
    for bytes in [&[0, 0, 0, 1, 255, 255, 255, 255][..], &[], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let (mut trunk, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut trunk, bytes).await.unwrap();
    }
    let runtime = Runtime::accept(&listener).await;
    runtime.synchronize(Vec::new(), Vec::new(), false).await;
    outputs.status.subscribe().wait_for(|status| *status == Status::Connected).await.unwrap();
    stop.cancel();
    running.await.unwrap();
}
