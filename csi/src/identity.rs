//! The identity service: the driver's name, its capabilities, and whether it is ready.

use std::sync::Arc;

use larder_csi_api::csi;
use larder_csi_api::csi::plugin_capability::service::Type as Offered;
use tonic::{Request, Response, Status, async_trait};

use crate::driver_name::DRIVER_NAME;
use crate::node::Node;

/// The identity service on the wire.
#[derive(Clone, Debug)]
pub struct IdentityService {
    /// The node whose readiness is reported.
    pub node: Arc<Node>,
}

#[async_trait]
impl csi::identity_server::Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        Ok(Response::new(csi::GetPluginInfoResponse {
            name: DRIVER_NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: Default::default(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        let capability = |offered: Offered| {
            let service = csi::plugin_capability::Service { r#type: offered.into() };
            csi::PluginCapability { r#type: Some(csi::plugin_capability::Type::Service(service)) }
        };
        let constraints = self.node.topology.then_some(Offered::VolumeAccessibilityConstraints);
        let capabilities = std::iter::once(Offered::ControllerService).chain(constraints).map(capability).collect();
        Ok(Response::new(csi::GetPluginCapabilitiesResponse { capabilities }))
    }

    /// Being unready is not an error: an error would restart the plugin, which does not help while larderd is not
    /// running.
    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Result<Response<csi::ProbeResponse>, Status> {
        Ok(Response::new(csi::ProbeResponse { ready: Some(self.node.is_ready()) }))
    }
}
