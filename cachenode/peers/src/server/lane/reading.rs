//! One read of a lane: waits for its share of the limit, loads the range, and returns the answer.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use larder_cachenode_api::frame::PIECE_BYTES_LEAST;
use larder_dataset::crc32c_append;
use tokio::sync::{Semaphore, mpsc};
use tracing::{debug, error};

use super::queue::{QueuedAnswer, RangeEnd, ReadPermits, send};
use crate::read::{BlockBytes, ReadError, ReadRequest};
use crate::server::limits::RequestPermit;
use crate::server::state::ServerState;

/// An admitted read.
pub(super) struct Reading {
    pub(super) state: Arc<ServerState>,
    pub(super) peer: IpAddr,
    pub(super) share: Arc<Semaphore>,
    pub(super) tag: u32,
    pub(super) request: ReadRequest,
    pub(super) deadline: Instant,
    pub(super) permit: RequestPermit,
}

impl Reading {
    /// Returns the range, its last piece, or a refusal. Sends earlier pieces to `answers`.
    pub(super) async fn answer(self, answers: mpsc::Sender<QueuedAnswer>) -> QueuedAnswer {
        let Self { state, peer, share, tag, request, deadline, permit } = self;
        debug!(%peer, cache = %request.cache, block = %request.range.block, "read");
        let answering = async {
            let bytes = state.limits.reserve(share, request.range.len).await.ok_or(ReadError::Stopping)?;
            let permits = Arc::new(ReadPermits { _bytes: bytes, _request: permit });
            match load(&state, &request).await? {
                BlockBytes::Whole { bytes, crc } if bytes.len() == request.range.len as usize => {
                    let end = Some(RangeEnd::new(&request, crc, deadline));
                    Ok(QueuedAnswer::Bytes { tag, bytes, end, _permits: permits })
                }
                BlockBytes::Whole { bytes, .. } => Err(wrong_length(&request, bytes.len())),
                BlockBytes::Arriving(pieces) => forward(pieces, tag, &request, deadline, permits, &answers).await,
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = tokio::time::timeout_at(deadline.into(), answering) => {
                outcome.unwrap_or(Err(ReadError::TimedOut))
            }
            () = state.stopping.cancelled() => Err(ReadError::Stopping),
        };
        outcome.unwrap_or_else(|error| {
            if error == ReadError::Denied {
                state.log_denied(peer, request.cache);
            }
            QueuedAnswer::refuse(&state.counters, tag, &error)
        })
    }
}

/// Asks the node's blocks for the range. A panic becomes a refusal.
async fn load(state: &ServerState, request: &ReadRequest) -> Result<BlockBytes, ReadError> {
    AssertUnwindSafe(state.blocks.read(request)).catch_unwind().await.unwrap_or_else(|_| Err(panicked(request)))
}

fn panicked(request: &ReadRequest) -> ReadError {
    error!(block = %request.range.block, "a read for a peer panicked");
    ReadError::unavailable("an internal error")
}

fn wrong_length(request: &ReadRequest, got: usize) -> ReadError {
    error!(
        block = %request.range.block, wanted = request.range.len, got,
        "a read for a peer returned the wrong length"
    );
    ReadError::unavailable("an internal error")
}

/// Sends the pieces of a range as they arrive. Returns the last piece instead of sending it.
async fn forward(
    pieces: BoxStream<'static, Result<Bytes, ReadError>>,
    tag: u32,
    request: &ReadRequest,
    deadline: Instant,
    permits: Arc<ReadPermits>,
    answers: &mpsc::Sender<QueuedAnswer>,
) -> Result<QueuedAnswer, ReadError> {
    let mut pieces = AssertUnwindSafe(pieces).catch_unwind();
    let (mut left, mut crc) = (request.range.len as usize, 0);
    while let Some(piece) = pieces.next().await {
        let bytes = piece.map_err(|_| panicked(request))??;
        let is_last = bytes.len() == left;
        if bytes.len() > left || (!is_last && bytes.len() < PIECE_BYTES_LEAST as usize) {
            return Err(wrong_length(request, bytes.len()));
        }
        crc = crc32c_append(crc, &bytes);
        if is_last {
            let end = Some(RangeEnd::new(request, crc, deadline));
            return Ok(QueuedAnswer::Bytes { tag, bytes, end, _permits: permits });
        }
        left -= bytes.len();
        send(answers, QueuedAnswer::Bytes { tag, bytes, end: None, _permits: Arc::clone(&permits) }).await;
    }
    Err(wrong_length(request, request.range.len as usize - left))
}
