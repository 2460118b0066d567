use std::sync::atomic::{AtomicUsize, Ordering};

use larder_kubelet::podresources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use larder_kubelet::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, PodResources,
};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::*;
use crate::node::samples;

/// A kubelet where a pod holds a GPU, named after how often it was asked.
#[derive(Clone, Default)]
struct Kubelet(Arc<AtomicUsize>);

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        let asked = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        let given = ContainerDevices {
            resource_name: "larder.dev/gpu".into(),
            device_ids: vec!["GPU-0".into()],
            topology: None,
        };
        let containers =
            vec![ContainerResources { name: "main".into(), devices: vec![given], ..ContainerResources::default() }];
        let pod = PodResources { name: format!("p{asked}"), namespace: "team-a".into(), containers };
        Ok(Response::new(ListPodResourcesResponse { pod_resources: vec![pod] }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented("not asked"))
    }

    async fn get(&self, _: Request<GetPodResourcesRequest>) -> Result<Response<GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented("not asked"))
    }
}

struct Node {
    folder: TempDir,
    kubelet: Kubelet,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["pod-resources", "device-plugins"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder, kubelet: Kubelet::default() }
    }

    /// Serves in a runtime of its own, whose end is that of the kubelet with all its connections.
    fn serve(&self) -> Runtime {
        let socket = self.folder.path().join("pod-resources/kubelet.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let service = PodResourcesListerServer::new(self.kubelet.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let incoming = UnixListenerStream::new(UnixListener::from_std(listener).unwrap());
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
        });
        runtime
    }

    fn pods(&self) -> Pods {
        Pods::new(self.folder.path())
    }
}

async fn end(kubelet: Runtime) {
    tokio::task::spawn_blocking(move || drop(kubelet)).await.unwrap();
}

/// As if the last question had been asked a second before.
async fn a_second_later(pods: &Pods) {
    pods.last.lock().await.at = None;
}

async fn pod_and_uid(pods: &Pods) -> (Option<(String, String)>, bool) {
    let known = pods.known(&samples::view().resources).await;
    let holder = known.held.by(&samples::gpu(0)).next().map(|holder| (holder.pod.clone(), holder.uid.clone()));
    (holder, known.trouble.is_some())
}

fn of(pod: &str, uid: &str) -> Option<(String, String)> {
    Some((pod.to_owned(), uid.to_owned()))
}

#[tokio::test]
async fn the_kubelet_is_asked_at_most_once_a_second() {
    let node = Node::new();
    let kubelet = node.serve();
    let checkpoint = br#"{"Data": {"PodDeviceEntries": [{"PodUID": "u1", "ContainerName": "main",
        "ResourceName": "larder.dev/gpu", "DeviceIDs": {"0": ["GPU-0"]}}]}}"#;
    std::fs::write(node.folder.path().join("device-plugins").join(FILE), checkpoint).unwrap();
    let pods = node.pods();
    let both = tokio::join!(pod_and_uid(&pods), pod_and_uid(&pods));
    assert_eq!(both, ((of("p1", "u1"), false), (of("p1", "u1"), false)));
    // Whatever time the two took, less than a second of it may count.
    pods.last.lock().await.at = Some(Instant::now() + Duration::from_secs(60));
    assert_eq!(pod_and_uid(&pods).await.0, of("p1", "u1"));
    a_second_later(&pods).await;
    assert_eq!(pod_and_uid(&pods).await.0, of("p2", "u1"));
    end(kubelet).await;
}

#[tokio::test]
async fn the_last_answer_is_used_while_the_kubelet_is_away_and_a_new_kubelet_is_asked() {
    let node = Node::new();
    let pods = node.pods();
    assert_eq!(pod_and_uid(&pods).await, (None, true), "there is none");
    let kubelet = node.serve();
    a_second_later(&pods).await;
    assert_eq!(pod_and_uid(&pods).await, (of("p1", ""), false));
    end(kubelet).await;
    a_second_later(&pods).await;
    assert_eq!(pod_and_uid(&pods).await, (of("p1", ""), true));
    let kubelet = node.serve();
    a_second_later(&pods).await;
    assert_eq!(pod_and_uid(&pods).await, (of("p2", ""), false));
    end(kubelet).await;
}
