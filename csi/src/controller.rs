//! The controller service on the wire.

use std::sync::Arc;

use larder_csi_api::csi;
use larder_csi_api::csi::controller_service_capability::rpc::Type as Rpc;
use tonic::{Request, Response, Status, async_trait};
use tracing::info_span;

use crate::calls::{Calls, blocking};
use crate::volumes::Volumes;

/// The controller service on the wire.
#[derive(Clone, Debug)]
pub struct ControllerService {
    /// The volumes that it serves.
    pub volumes: Arc<Volumes>,
    /// The running calls.
    pub calls: Calls,
}

#[async_trait]
impl csi::controller_server::Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let span = info_span!("create", volume = ?request.name);
        let volumes = Arc::clone(&self.volumes);
        let create = blocking(move || volumes.create(request));
        self.calls
            .run(span, async move { create.await.map(|volume| csi::CreateVolumeResponse { volume: Some(volume) }) })
            .await
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        let span = info_span!("delete", volume = ?id);
        let volumes = Arc::clone(&self.volumes);
        let delete = blocking(move || volumes.delete(&id));
        self.calls.run(span, async move { delete.await.map(|()| csi::DeleteVolumeResponse {}) }).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let span = info_span!("validate", volume = ?request.volume_id);
        let volumes = Arc::clone(&self.volumes);
        self.calls.run(span, blocking(move || volumes.validate(request))).await
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Result<Response<csi::ListVolumesResponse>, Status> {
        let volumes = Arc::clone(&self.volumes);
        self.calls.run(info_span!("list"), blocking(move || volumes.list(&request.into_inner()))).await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        let capability = |rpc: Rpc| {
            let rpc = csi::controller_service_capability::Rpc { r#type: rpc.into() };
            csi::ControllerServiceCapability { r#type: Some(csi::controller_service_capability::Type::Rpc(rpc)) }
        };
        let capabilities = [Rpc::CreateDeleteVolume, Rpc::ListVolumes].map(capability).into();
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }
}
