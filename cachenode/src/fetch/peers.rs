//! Fetches blocks from peers.

use std::sync::Arc;

use bytes::Bytes;
use larder_dataset::{BlockIndex, Chain, FileIndex};
use tracing::{debug, warn};

use super::context::FetchContext;
use super::in_flight::PendingBlock;
use crate::counters::add;
use crate::extent;
use crate::sharing::{Asker, Route, Sharing};

/// Fetches blocks from peers, where nodes share their caches.
#[derive(Debug)]
pub(super) struct FromPeers {
    context: Arc<FetchContext>,
    /// None: this node has no peers.
    sharing: Option<Arc<Sharing>>,
}

impl FromPeers {
    pub(super) fn new(context: Arc<FetchContext>, sharing: Option<Arc<Sharing>>) -> Self {
        Self { context, sharing }
    }

    /// The peers to ask for a block before the origin, and whether the store may keep it.
    pub(super) fn route(&self, file: FileIndex, block: BlockIndex, asker: Asker) -> Route {
        let Some(sharing) = &self.sharing else { return Route::ALONE };
        sharing.route(extent::place_key(&self.context.manifest, file, block), asker)
    }

    /// The block from the first peer of the route that has it whole and with the right checksum. None if the route has no
    /// peers, or none of them delivers the block within half of the read deadline. Each failure is counted.
    pub(super) async fn fetch(&self, pending: &PendingBlock, route: &Route) -> Option<Bytes> {
        let sharing = self.sharing.as_ref()?;
        let (block, crc) = (pending.part.block, self.context.manifest.block_crc(pending.part.block).ok()?);
        let ask_all = async {
            for node in &route.peers {
                match sharing.read(node, &pending.part).await {
                    Ok(bytes) if crc.is_none_or(|crc| larder_dataset::crc32c(&bytes) == crc) => return Some(bytes),
                    Ok(_) => {
                        warn!(block = block.0, ?node, "a peer has wrong bytes: their checksum is not the manifest's");
                    }
                    Err(error) => debug!(block = block.0, ?node, error = %Chain(&error), "block not fetched from peer"),
                }
                add(&self.context.counters.peer_errors, 1);
            }
            None
        };
        // The other half is left for the origin.
        tokio::time::timeout(self.context.config.read_deadline / 2, ask_all).await.unwrap_or_else(|_| {
            add(&self.context.counters.peer_errors, 1);
            None
        })
    }
}
