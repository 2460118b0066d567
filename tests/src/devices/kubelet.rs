//! The kubelet's pod resources API, which tells sooner than the API server what the kubelet knows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use larder_kubelet::podresources::pod_resources_lister_client::PodResourcesListerClient;
use larder_kubelet::podresources::{AllocatableResourcesRequest, ListPodResourcesRequest};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint, Uri};

/// A client of a node's kubelet.
pub struct PodResources {
    socket: PathBuf,
    runtime: Runtime,
}

impl PodResources {
    pub(super) fn of(kubelet: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { socket: kubelet.join("pod-resources/kubelet.sock"), runtime }
    }

    /// The IDs of all healthy devices, by resource; `None` while the kubelet is away.
    pub fn allocatable(&self) -> Option<BTreeMap<String, Vec<String>>> {
        let asked = self.runtime.block_on(async {
            let mut client = PodResourcesListerClient::new(self.channel().await?);
            Ok::<_, tonic::Status>(client.get_allocatable_resources(AllocatableResourcesRequest {}).await?.into_inner())
        });
        let mut devices: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for device in asked.ok()?.devices {
            devices.entry(device.resource_name).or_default().extend(device.device_ids);
        }
        devices.values_mut().for_each(|ids| ids.sort());
        Some(devices)
    }

    /// The IDs that the containers of a pod hold, by resource; `None` while the kubelet is away.
    pub fn held_by(&self, namespace: &str, pod: &str) -> Option<BTreeMap<String, Vec<String>>> {
        let asked = self.runtime.block_on(async {
            let mut client = PodResourcesListerClient::new(self.channel().await?);
            Ok::<_, tonic::Status>(client.list(ListPodResourcesRequest {}).await?.into_inner())
        });
        let mut held: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let pods = asked.ok()?.pod_resources;
        let pod = pods.into_iter().filter(|found| found.namespace == namespace && found.name == pod);
        for device in pod.flat_map(|pod| pod.containers).flat_map(|container| container.devices) {
            held.entry(device.resource_name).or_default().extend(device.device_ids);
        }
        held.values_mut().for_each(|ids| ids.sort());
        Some(held)
    }

    async fn channel(&self) -> Result<Channel, tonic::Status> {
        let socket = self.socket.clone();
        let connect = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        let connected = endpoint.connect_with_connector(connect).await;
        connected.map_err(|error| tonic::Status::unavailable(error.to_string()))
    }
}
