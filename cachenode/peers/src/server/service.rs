//! The gRPC service for everything small: the node's identity and its statistics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_cachenode_api::v1::cache_node_server::CacheNode;
use larder_cachenode_api::{PROTOCOL, v1};
use tonic::{Request, Response, Status};

use super::state::ServerState;
use crate::convert;

/// The implementation of the service `CacheNode`.
pub(super) struct Service(pub(super) Arc<ServerState>);

#[tonic::async_trait]
impl CacheNode for Service {
    async fn get_info(&self, _: Request<v1::GetInfoRequest>) -> Result<Response<v1::GetInfoResponse>, Status> {
        if self.0.stopping.is_cancelled() {
            return Err(Status::unavailable("the node is stopping"));
        }
        Ok(Response::new(v1::GetInfoResponse {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.0.config.node.clone(),
        }))
    }

    async fn get_stats(&self, request: Request<v1::GetStatsRequest>) -> Result<Response<v1::GetStatsResponse>, Status> {
        convert::protocol(request.get_ref().protocol).inspect_err(|_| {
            self.0.counters.turned_away.fetch_add(1, Ordering::Relaxed);
        })?;
        let asked = convert::asked_from_wire(&request.get_ref().datasets).inspect_err(|_| {
            self.0.counters.turned_away.fetch_add(1, Ordering::Relaxed);
        })?;
        let datasets = self.0.blocks.stats(&asked).into_iter().map(convert::stats_to_wire).collect();
        let others = self.0.blocks.others(&asked).into_iter().map(convert::other_to_wire).collect();
        let counters = self.0.counters.values().into_iter().collect();
        Ok(Response::new(v1::GetStatsResponse { datasets, counters, others }))
    }
}
