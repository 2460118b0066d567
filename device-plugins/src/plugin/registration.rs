//! Tells the kubelet which socket serves a resource.

use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use larder_kubelet::deviceplugin::registration_client::RegistrationClient;
use larder_kubelet::deviceplugin::{DevicePluginOptions, RegisterRequest};
use tokio::net::UnixStream;
use tonic::Status;
use tonic::transport::{Endpoint, Uri};

use crate::config::ResourceName;

/// The kubelet's socket in its folder.
pub(super) const KUBELET_SOCKET: &str = "kubelet.sock";

/// How long a registration may take: the kubelet calls us before it answers, and gives us 10 s.
const TIMEOUT: Duration = Duration::from_secs(15);

/// What we offer beyond the calls that every plugin has.
pub(super) fn options() -> DevicePluginOptions {
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

/// Registers the resource, which `endpoint` serves.
pub(super) async fn register(folder: &Path, resource: &ResourceName, endpoint: &str) -> Result<(), Status> {
    let socket = folder.join(KUBELET_SOCKET);
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_string(),
        options: Some(options()),
    };
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(&socket).await.map(TokioIo::new) }
    });
    let registering = async {
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
        let channel = channel.map_err(|error| Status::unavailable(format!("connect to the kubelet: {error}")))?;
        RegistrationClient::new(channel).register(request).await.map(drop)
    };
    match tokio::time::timeout(TIMEOUT, registering).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Status::deadline_exceeded("the kubelet does not answer")),
    }
}
