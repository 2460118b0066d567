//! Registers a plugin with the kubelet, which watches a folder for sockets and calls the service behind each.
//!
//! [`serve`] is that service; `authority` makes the kubelet's requests acceptable to our gRPC server.

mod authority;

use std::io;
use std::path::PathBuf;

use crate::pluginregistration::registration_server::{Registration, RegistrationServer};
use crate::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::{Request, Response, async_trait};
use tracing::{error, info};

/// The description of a plugin that the kubelet receives.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// The plugin type, such as `CSIPlugin`.
    pub kind: &'static str,
    /// The plugin's name, unique for its type.
    pub name: &'static str,
    /// The socket of the plugin's service, as a path on the node.
    pub endpoint: PathBuf,
    /// The supported versions of the plugin's service.
    pub versions: &'static [&'static str],
}

/// The kubelet's last answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// The kubelet has not answered yet.
    #[default]
    None,
    /// The plugin is registered.
    Registered,
    /// The kubelet rejects the plugin, and why.
    Refused(String),
}

/// Serves the connections of a registration socket until `stop` completes. Each answer of the kubelet is sent to
/// `answers`, even if it equals the previous one.
///
/// # Errors
/// The connections ended with an error.
pub async fn serve(
    plugin: Plugin,
    connections: impl Stream<Item = io::Result<UnixStream>>,
    answers: watch::Sender<Answer>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let connections = connections.map(|connection| connection.map(authority::replaced));
    let service = RegistrationServer::new(Service { plugin, answers });
    Server::builder().add_service(service).serve_with_incoming_shutdown(connections, stop).await
}

#[derive(Debug)]
struct Service {
    plugin: Plugin,
    answers: watch::Sender<Answer>,
}

#[async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, tonic::Status> {
        let Plugin { kind, name, endpoint, versions } = &self.plugin;
        Ok(Response::new(PluginInfo {
            r#type: (*kind).to_owned(),
            name: (*name).to_owned(),
            endpoint: endpoint.to_string_lossy().into_owned(),
            supported_versions: versions.iter().map(|version| (*version).to_owned()).collect(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, tonic::Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        let plugin = self.plugin.name;
        self.answers.send_replace(if plugin_registered {
            info!(plugin, "registered with the kubelet");
            Answer::Registered
        } else {
            error!(plugin, %error, "the kubelet refuses to register the plugin");
            Answer::Refused(error)
        });
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
