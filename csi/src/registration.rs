//! Tells the kubelet that the driver is there: it watches a folder, and asks whoever listens in it.

use std::path::PathBuf;

use larder_csi_api::registration::registration_server::Registration;
use larder_csi_api::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};
use tracing::{error, info};

use crate::identity::DRIVER_NAME;

/// The registration service on the wire.
#[derive(Clone, Debug)]
pub struct RegistrationService {
    /// Our CSI socket, as the kubelet sees it.
    pub endpoint: PathBuf,
    /// Becomes the kubelet's words when it does not take us.
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
            error!(%error, "the kubelet does not register the driver");
            self.refused.send_replace(Some(error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
