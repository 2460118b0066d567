//! Registers a resource and its socket with the kubelet.

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

/// The timeout of a registration. It is longer than 10 s: the kubelet calls us back before it answers, and waits up to
/// 10 s for that call.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The optional calls that we implement.
pub(super) fn options() -> DevicePluginOptions {
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

/// Registers the resource. `endpoint` is the name of the socket that serves it.
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
