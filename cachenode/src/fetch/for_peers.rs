//! Reads for other nodes.
//!
//! Invariant: none waits for a fetch from another peer, because that could wait for the node that asks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_dataset::{BlockPart, FileIndex};
use larder_peers::{BlockBytes, ReadError};
use larder_store::PartBytes;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::end::End;
use super::error::FetchError;
use super::purpose::Purpose;
use super::{Fetched, Fetcher};
use crate::sharing::Asker;
use crate::window::Miss;

impl Fetcher {
    /// The result of `read`, which blocks on this disk, for a peer. Err: it is not there after `patience`. Cancel-safe.
    pub(crate) async fn read_disk_for_peer<T: Send + 'static>(
        &self,
        disk: usize,
        patience: Duration,
        read: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Result<Option<T>, Elapsed> {
        timeout(patience, self.keeper.threads.read(&self.runtime, disk, read)).await
    }

    /// A part's bytes for a peer, if a plan or the window has them.
    pub(crate) fn held_for_peer(&self, part: &BlockPart) -> Option<BlockBytes> {
        let held = self.in_plan(part).or_else(|| self.context.window.get_for_peer(part));
        held.map(BlockBytes::whole)
    }

    /// A part's bytes for a peer: from the window, from an earlier snapshot's cache if the disk answers within
    /// `patience`, or from a fetch as they arrive. None: the block is in flight from another peer. To wait for it could
    /// be to wait for the requesting peer.
    pub(crate) async fn fetch_for_peer(
        self: &Arc<Self>,
        file: FileIndex,
        part: BlockPart,
        forwarded: bool,
        patience: Duration,
    ) -> Result<Option<BlockBytes>, FetchError> {
        let deadline = self.deadline();
        // Half of this time is the disk's.
        let until = Instant::now() + 2 * patience;
        if !self.context.window.contains(part.block)
            && let Some(PartBytes { memory, range, crc }) = self.keeper.read_earlier(part, until).await
        {
            return Ok(Some(BlockBytes::Whole { bytes: Bytes::from(memory).slice(range), crc }));
        }
        loop {
            if let Some(held) = self.held_for_peer(&part) {
                return Ok(Some(held));
            }
            let asker = Asker::Peer { forwarded };
            if self.context.window.is_in_pieces(part.block) {
                let phase = Arc::default();
                let Fetched { bytes, .. } = Box::pin(self.fetch_piece(file, part, asker, deadline, &phase)).await?;
                // A plan waits for the readers of this node.
                self.context.window.mark_read(&part);
                return Ok(Some(BlockBytes::whole(bytes)));
            }
            // It gets the bytes of a block as they arrive.
            if let Some(Miss { piece, then_block: false }) = self.next_piece(file, &part) {
                let fetched = Box::pin(self.fetch_larger_piece(file, part, piece, asker, deadline)).await?;
                return Ok(Some(BlockBytes::whole(fetched.bytes)));
            }
            let (in_flight, route) = self.join_or_start(file, part, Purpose::Peer { forwarded }, End::by(deadline));
            if in_flight.asks_peers && route.peers.is_empty() {
                return Ok(None);
            }
            let mut pieces = in_flight.subscribe(part.start as usize..(part.start + part.len) as usize);
            // A waiter would count as a reader of this node.
            drop(in_flight);
            if let Some(first) = pieces.recv().await {
                let first = first?;
                if first.len() == part.len as usize {
                    return Ok(Some(BlockBytes::whole(first)));
                }
                let rest = ReceiverStream::new(pieces).map(|piece| piece.map_err(ReadError::from));
                return Ok(Some(BlockBytes::Arriving(Box::pin(tokio_stream::once(Ok(first)).chain(rest)))));
            }
        }
    }
}
