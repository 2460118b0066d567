//! Fetches blocks from peers.

use std::sync::Arc;

use bytes::Bytes;
use larder_dataset::{BlockIndex, BlockRange, FileIndex};
use larder_peers::HedgeCounts;
use larder_telemetry::TRACE_TARGET;
use tokio::time::{Instant, timeout_at};
use tracing::trace_span;

use super::context::{FetchContext, halfway};
use super::purpose::Purpose;
use crate::counters::add;
use crate::extent;
use crate::memory::Account;
use crate::sharing::{Asker, Route, RoutePeer, Sharing};

/// Fetches blocks from peers, where nodes share their caches.
#[derive(Debug)]
pub(super) struct FromPeers {
    context: Arc<FetchContext>,
    /// None: this node has no peers.
    sharing: Option<Arc<Sharing>>,
    /// Memory for blocks in flight from peers. Fetches from the origin have other memory: one that hangs must not delay
    /// the reads of what peers have.
    memory: Account,
}

impl FromPeers {
    pub(super) fn new(context: Arc<FetchContext>, sharing: Option<Arc<Sharing>>) -> Self {
        let memory = context.config.other_fetches_account();
        Self { context, sharing, memory }
    }

    /// The peers to ask for a block before the origin, and whether the store may keep it.
    pub(super) fn route(&self, file: FileIndex, block: BlockIndex, asker: Asker) -> Route {
        let Some(sharing) = &self.sharing else { return Route::ALONE };
        sharing.route(extent::place_key(&self.context.manifest, file, block), asker)
    }

    /// The peers in this node's zone that may have a block that this node is the first to own.
    pub(super) fn near(&self, file: FileIndex, block: BlockIndex) -> Vec<RoutePeer> {
        let Some(sharing) = &self.sharing else { return Vec::new() };
        sharing.near_owners(extent::place_key(&self.context.manifest, file, block))
    }

    /// A range of a block from a peer of the route that has it, with the right checksum. None if the route has no
    /// peers, or none of them delivers it within half of the time until `deadline`. Each failure is counted.
    pub(super) async fn fetch(
        &self,
        range: BlockRange,
        route: &Route,
        purpose: Purpose,
        deadline: Instant,
    ) -> Option<Bytes> {
        let sharing = self.sharing.as_ref().filter(|_| !route.peers.is_empty())?;
        let block = range.block;
        // It ends with this function, and need not be entered: nothing is below it.
        let _span = trace_span!(target: TRACE_TARGET, "peer", block = block.0, len = range.len);
        // A packed block is fetched whole.
        let crc = self.context.manifest.block_crc(block).ok()?;
        let is_right = |bytes: &Bytes| crc.is_none_or(|crc| larder_dataset::crc32c(bytes) == crc);
        let counters = &self.context.counters;
        let counts = HedgeCounts {
            failed: &counters.peer_errors,
            hedges: &counters.peer_hedges,
            hedges_won: &counters.peer_hedges_won,
        };
        // On the heap, so that the thousands of fetches that may wait for the origin are small.
        let asking = Box::pin(async {
            // A fetch that fills the store, or that is planned, has other memory.
            let kib = (range.len >> 10) + 1;
            let _memory = if purpose.has_memory() { None } else { Some(self.memory.acquire(kib).await) };
            sharing.read(route, range, is_right, counts).await
        });
        // The other half is left for the origin.
        timeout_at(halfway(deadline), asking).await.unwrap_or_else(|_| {
            add(&counters.peer_errors, 1);
            None
        })
    }
}
