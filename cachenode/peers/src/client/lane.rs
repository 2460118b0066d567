//! The client's side of a lane: many reads at a time over one connection, answered in any order.
//!
//! One task owns the connection. It sends the requests that readers queue (`sender`) and receives the answers
//! (`receiver`), each range directly into the buffer that its reader gets. Readers wait in [`PendingReads`]. A read
//! that is dropped stays there until it is answered, so that the bytes of its answer are not mistaken for those of
//! another read; the peer receives a cancel.
//!
//! Invariants: a lane that receives a malformed frame, or an answer to no pending read, ends and fails every pending
//! read. So does a lane that has a pending read and receives nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_cachenode_api::PROTOCOL;
use larder_cachenode_api::frame::{HELLO_BYTES, Hello, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connection::{ConnectError, Connection, dial};
use super::context::ClientContext;
use super::error::{RequestError, failed};
use super::progress::ReadProgress;
use crate::convert;
use crate::counters::Cause;
use crate::read::{ReadError, ReadRequest};
use crate::tls::explain::explain;
use crate::tls::protocol::AppProtocol;
use pending::{EndOnDrop, PendingRead, PendingReads};
use receiver::Receiver;
use sender::{QueuedRequest, send_requests};

mod pending;
mod receiver;
mod sender;

/// The capacity of the queue of requests to send. A read that finds the queue full waits.
const QUEUE: usize = 64;

/// Everything except ranges is read from a lane in chunks of this size.
const READ_AHEAD_BYTES: usize = 4096;

/// A connection to a peer that carries blocks.
#[derive(Debug)]
pub(super) struct Lane {
    pending: Arc<PendingReads>,
    requests: mpsc::Sender<QueuedRequest>,
    worked: AtomicBool,
    cancel: CancellationToken,
    _cancel_on_drop: DropGuard,
}

impl Connection for Lane {
    async fn connect(address: SocketAddr, context: &ClientContext) -> Result<Self, ConnectError> {
        let cancel = CancellationToken::new();
        let guard = cancel.clone().drop_guard();
        let wire = dial(address, context, AppProtocol::Lane, &cancel).await?;
        let fault = wire.fault();
        let (reader, mut writer) = tokio::io::split(wire);
        let mut reader = BufReader::with_capacity(READ_AHEAD_BYTES, reader);
        let hellos = async {
            writer.write_all(&Hello { protocol: PROTOCOL }.encode()).await?;
            writer.flush().await?;
            let mut hello = [0; HELLO_BYTES];
            reader.read_exact(&mut hello).await.map(|_| hello)
        };
        let within = context.config.answer_timeout;
        let hello = tokio::time::timeout(within, hellos)
            .await
            .map_err(|_| ConnectError::TimedOut { what: "answer", within })?
            .map_err(|error| ConnectError::Connect { what: explain(&error) })?;
        let theirs = Hello::decode(&hello).map_err(|error| ConnectError::Connect { what: error.to_string() })?.protocol;
        if theirs != PROTOCOL {
            let what = format!(
                "it speaks protocol {theirs}, this node {PROTOCOL}: run the same version of Larder on all nodes"
            );
            return Err(ConnectError::Protocol { what });
        }
        let pending = Arc::new(PendingReads::default());
        let (requests, queue) = mpsc::channel(QUEUE);
        let own = Arc::clone(&pending);
        let mut receiver =
            Receiver { reader, pending: Arc::clone(&pending), fault, buffers: Arc::clone(&context.buffers) };
        context.tasks.spawn(async move {
            let end_on_drop = EndOnDrop(Arc::clone(&own));
            let failure = tokio::select! {
                failure = receiver.receive() => failure,
                failure = send_requests(writer, queue, &own, within / 2) => failure,
            };
            tracing::debug!(%address, cause = failure.cause.name(), what = failure.what, "a lane to a peer ended");
            own.end(failure);
            drop(end_on_drop);
        });
        Ok(Self { pending, requests, worked: AtomicBool::new(false), cancel, _cancel_on_drop: guard })
    }

    fn worked(&self) {
        self.worked.store(true, Ordering::Relaxed);
    }

    fn has_worked(&self) -> bool {
        self.worked.load(Ordering::Relaxed) || self.pending.is_leaving()
    }

    fn is_closed(&self) -> bool {
        self.pending.is_closed() || self.cancel.is_cancelled()
    }

    fn close(&self) {
        self.cancel.cancel();
    }
}

impl Lane {
    /// Reads a whole range and verifies its sum. The peer is asked to answer within `timeout`; the caller must bound
    /// the wait. A read that is given up is cancelled at the peer and still waits for an answer: a peer that sends none
    /// has failed. Cancel-safe.
    pub(super) async fn read(
        &self,
        request: &ReadRequest,
        timeout: Duration,
        progress: Option<&Arc<ReadProgress>>,
    ) -> Result<Bytes, RequestError> {
        if progress.is_some_and(|progress| progress.is_given_up()) {
            return Err(RequestError::GivenUp);
        }
        let closed = || failed(Cause::Broken, "the connection was closed");
        // This is the last await before the request is queued, so a dropped read cannot stay pending without having
        // been sent.
        let place = self.requests.reserve().await.map_err(|_| closed())?;
        let (answer, mut answered) = oneshot::channel();
        let range = convert::range_to_wire(request.cache, request.range);
        let tag = self
            .pending
            .add(PendingRead { range, received: None, progress: progress.cloned(), answer })
            .map_err(RequestError::Failed)?;
        let token_len = request.token.as_ref().map_or(0, |token| token.reveal().len()) as u16;
        let deadline_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let ReadRequest { forwarded, cached_only, .. } = *request;
        let frame = Request::Read { tag, range, token_len, forwarded, cached_only, deadline_ms };
        place.send((frame, request.token.clone()));
        let mut cancel = CancelOnDrop { lane: self, tag, is_over: false };
        let given_up = async {
            match progress {
                Some(progress) => progress.given_up().await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = &mut answered => outcome,
            () = given_up => {
                drop(cancel);
                let outcome = answered.await;
                // The peer answers a cancelled read with this refusal.
                if let Ok(Err(RequestError::Refused(ReadError::Unavailable { .. }))) = outcome {
                    return Err(RequestError::GivenUp);
                }
                return outcome.unwrap_or_else(|_| Err(closed()));
            }
        };
        cancel.is_over = true;
        outcome.unwrap_or_else(|_| Err(closed()))
    }
}

/// Cancels a read that was sent, unless it has ended.
struct CancelOnDrop<'a> {
    lane: &'a Lane,
    tag: u32,
    is_over: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            // If the queue is full, no cancel is sent; the answer arrives and is discarded.
            let _ = self.lane.requests.try_send((Request::Cancel { tag: self.tag }, None));
        }
    }
}
