//! Registers the driver with the kubelet, which watches a folder for sockets and calls the service behind each.

use std::path::PathBuf;

use larder_csi_api::registration::registration_server::Registration;
use larder_csi_api::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};
use tracing::{error, info};

use crate::driver_name::DRIVER_NAME;

/// The registration service on the wire.
#[derive(Clone, Debug)]
pub struct RegistrationService {
    /// Our CSI socket, as the kubelet sees it.
    pub endpoint: PathBuf,
    /// Receives the kubelet's error when it refuses the driver.
    pub refused: watch::Sender<Option<String>>,
}

#[async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER_NAME.to_owned(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            info!("registered with the kubelet");
        } else {
            error!(%error, "the kubelet refuses to register the driver");
            self.refused.send_replace(Some(error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
