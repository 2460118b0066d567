//! The node service on the wire.

use std::sync::Arc;
use std::time::Instant;

use larder_csi_api::csi;
use larder_csi_api::csi::node_service_capability::rpc::Type as Rpc;
use tonic::{Request, Response, Status, async_trait};
use tracing::info_span;

use crate::calls::Calls;
use crate::node::Node;

/// The key of the only topology segment, which is reported with `--topology`.
pub const TOPOLOGY_KEY: &str = "topology.larder.dev/node";

/// The node service on the wire.
#[derive(Clone, Debug)]
pub struct NodeService {
    /// The node that it serves.
    pub node: Arc<Node>,
    /// The running calls.
    pub calls: Calls,
}

#[async_trait]
impl csi::node_server::Node for NodeService {
    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let span = info_span!("publish", volume = ?request.volume_id, target = ?request.target_path);
        let (node, times) = (Arc::clone(&self.node), Arc::clone(self.calls.published()));
        let publish = async move {
            let began = Instant::now();
            let published = node.publish(request).await;
            times[usize::from(published.is_err())].count(began.elapsed());
            published.map(|()| csi::NodePublishVolumeResponse {})
        };
        self.calls.run(span, publish).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let span = info_span!("unpublish", volume = ?request.volume_id, target = ?request.target_path);
        let node = Arc::clone(&self.node);
        self.calls
            .run(span, async move { node.unpublish(request).await.map(|()| csi::NodeUnpublishVolumeResponse {}) })
            .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let span = info_span!("stats", volume = ?request.volume_id);
        let node = Arc::clone(&self.node);
        self.calls.run(span, async move { node.stats(&request) }).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let rpc = csi::node_service_capability::Rpc { r#type: Rpc::GetVolumeStats.into() };
        let r#type = Some(csi::node_service_capability::Type::Rpc(rpc));
        let capabilities = vec![csi::NodeServiceCapability { r#type }];
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        let node_id = self.node.node_id.clone();
        // By default no segment is reported: it would bind volumes to nodes, but cached data is a preference and not a
        // requirement.
        let accessible_topology =
            self.node.topology.then(|| csi::Topology { segments: [(TOPOLOGY_KEY.to_owned(), node_id.clone())].into() });
        Ok(Response::new(csi::NodeGetInfoResponse { node_id, max_volumes_per_node: 0, accessible_topology }))
    }
}
