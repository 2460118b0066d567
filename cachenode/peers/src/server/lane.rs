//! The server's side of a lane: reads arrive, and their ranges are sent as soon as they are ready.
//!
//! One task handles both directions. It answers a read itself if the bytes are available immediately. A read that must
//! wait gets a task of its own, so that later reads need not wait for it (`reading`). Ready answers are queued; their
//! share of the limit is released when the kernel has taken all of their bytes (`queue`). A range that is still
//! arriving at this node is sent in pieces, with other answers in between, so that a stalled origin delays no other
//! answer. `tokens` reads the tokens.
//!
//! Invariants: each read is answered exactly once, with its whole range or a refusal, even if it was cancelled. A piece
//! that was started is sent in full, or the lane ends. A lane whose peer stops reading ends, whatever the peer
//! requests.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::FutureExt;
use larder_cachenode_api::PROTOCOL;
use larder_cachenode_api::frame::{
    HELLO_BYTES, Hello, Malformed, READ_BYTES, REQUEST_BYTES, RefusalCode, Request, WireRange,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::limits::{OVERDUE_AFTER, RequestPermit};
use super::state::ServerState;
use crate::convert;
use crate::read::{ReadError, ReadRequest};
use crate::token::Token;
use crate::wire::Wire;
use queue::{QUEUE, QueuedAnswer, send, write_answers};
use reading::Reading;
use tokens::Tokens;

mod queue;
mod reading;
mod tokens;

/// Requests are small, so this many bytes are read ahead.
const READ_AHEAD_BYTES: usize = 4096;

/// Why a lane ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaneError {
    /// The connection broke or was closed.
    #[error("the connection ended")]
    Io(#[from] io::Error),
    /// The peer sent a frame that cannot be decoded.
    #[error("the peer sent a malformed frame")]
    Malformed(#[from] Malformed),
    /// The peer speaks another version of the protocol.
    #[error("the peer speaks protocol {theirs}, this node {PROTOCOL}: run the same version of Larder on all nodes")]
    Protocol {
        /// Its protocol number.
        theirs: u32,
    },
    /// No hello arrived in time.
    #[error("the peer sent no hello in time")]
    Silent,
    /// The server sent a goodbye, and the peer did not close the lane.
    #[error("the peer did not close the lane after a goodbye")]
    Lingers,
}

/// A lane that is being served.
pub(super) struct Lane {
    state: Arc<ServerState>,
    peer: SocketAddr,
    cancel: CancellationToken,
    share: Arc<Semaphore>,
}

impl Lane {
    pub(super) fn new(state: Arc<ServerState>, peer: SocketAddr, cancel: CancellationToken) -> Self {
        let share = state.limits.share(peer.ip());
        Self { state, peer, cancel, share }
    }

    /// Serves the lane until the peer closes it, it is cancelled, or it fails.
    pub(super) async fn serve(self, wire: Wire) -> Result<(), LaneError> {
        let config = &self.state.config;
        let (reader, mut writer) = tokio::io::split(wire);
        let mut reader = BufReader::with_capacity(READ_AHEAD_BYTES, reader);
        let hello = exchange_hellos(&mut reader, &mut writer);
        tokio::time::timeout(config.handshake_timeout, hello).await.unwrap_or(Err(LaneError::Silent))?;
        let (answers, queue) = mpsc::channel(QUEUE);
        let patience = config.deadline_most + OVERDUE_AFTER;
        let farewell = async {
            tokio::select! {
                () = tokio::time::sleep(config.connection_age_most) => {}
                () = self.state.stopping.cancelled() => {}
            }
            let goodbye = async {
                send(&answers, QueuedAnswer::Goodbye).await;
                std::future::pending::<()>().await;
            };
            // Bounded by a timeout: the queue may be full of answers that the peer does not read.
            let _ = tokio::time::timeout(patience, goodbye).await;
            Err(LaneError::Lingers)
        };
        tokio::select! {
            outcome = self.receive(reader, &answers) => outcome,
            outcome = write_answers(queue, writer, patience, &self.state.counters) => outcome.map_err(LaneError::from),
            outcome = farewell => outcome,
        }
    }

    /// Receives requests and starts to answer them.
    async fn receive(
        &self,
        mut reader: BufReader<ReadHalf<Wire>>,
        answers: &mpsc::Sender<QueuedAnswer>,
    ) -> Result<(), LaneError> {
        let config = &self.state.config;
        let mut waiting = JoinSet::new();
        let mut cancels: HashMap<u32, oneshot::Sender<()>> = HashMap::new();
        let mut tokens = Tokens::default();
        loop {
            let mut frame = [0; READ_BYTES];
            let (begin, _) = frame.split_first_chunk_mut::<REQUEST_BYTES>().expect("a read is longer");
            reader.read_exact(begin).await?;
            let len = Request::len_of(begin);
            reader.read_exact(&mut frame[REQUEST_BYTES..len]).await?;
            while let Some(ended) = waiting.try_join_next() {
                ended.ok().and_then(|tag| cancels.remove(&tag));
            }
            // At most that many reads are in flight. The others were cancelled and wait until the peer reads their
            // answers.
            if waiting.len() > config.requests_most {
                waiting.join_next().await;
            }
            match Request::decode(&frame[..len])? {
                Request::Ping => send(answers, QueuedAnswer::Pong).await,
                // Dropping the sender cancels the read's task.
                Request::Cancel { tag } => drop(cancels.remove(&tag)),
                Request::Read { tag, range, token_len, forwarded, cached_only, deadline_ms } => {
                    let token = tokens.read(&mut reader, token_len.into()).await?;
                    let most = config.deadline_most;
                    let timeout = Duration::from_millis(deadline_ms.into());
                    let deadline = Instant::now() + if timeout.is_zero() { most } else { timeout.min(most) };
                    let (token, permit) = match self.admit(&range, token, deadline) {
                        Ok(admitted) => admitted,
                        Err((code, reason)) => {
                            self.state.counters.turned_away.fetch_add(1, Ordering::Relaxed);
                            send(answers, QueuedAnswer::Refusal { tag, code, reason }).await;
                            continue;
                        }
                    };
                    let (cache, range) = convert::range_from_wire(&range);
                    let request = ReadRequest { cache, range, token, forwarded, cached_only };
                    let reading = Reading {
                        state: Arc::clone(&self.state),
                        peer: self.peer.ip(),
                        share: Arc::clone(&self.share),
                        tag,
                        request,
                        deadline,
                        permit,
                    };
                    let mut answer = Box::pin(reading.answer(answers.clone()));
                    if let Some(ready) = answer.as_mut().now_or_never() {
                        send(answers, ready).await;
                        continue;
                    }
                    let (cancel, cancelled) = oneshot::channel::<()>();
                    cancels.insert(tag, cancel);
                    let answers = answers.clone();
                    waiting.spawn(async move {
                        let answer = tokio::select! {
                            answer = answer => answer,
                            _ = cancelled => {
                                QueuedAnswer::Refusal { tag, code: RefusalCode::Unavailable, reason: String::new() }
                            }
                        };
                        send(&answers, answer).await;
                        tag
                    });
                }
            }
        }
    }

    /// Validates a read and admits it unless too many are in flight.
    fn admit(
        &self,
        range: &WireRange,
        token: Result<Option<Token>, &'static str>,
        deadline: Instant,
    ) -> Result<(Option<Token>, RequestPermit), (RefusalCode, String)> {
        let token = token.map_err(|reason| (RefusalCode::Invalid, reason.to_owned()))?;
        if !range.is_possible() {
            return Err((RefusalCode::Invalid, "no block can contain such a range".to_owned()));
        }
        if self.state.stopping.is_cancelled() {
            return Err(convert::refusal(&ReadError::Stopping));
        }
        let Some(permit) = self.state.limits.admit(deadline, &self.cancel) else {
            return Err((RefusalCode::Unavailable, "too many requests are in flight".to_owned()));
        };
        Ok((token, permit))
    }
}

/// Sends this node's protocol number and checks the peer's.
async fn exchange_hellos(
    reader: &mut BufReader<ReadHalf<Wire>>,
    writer: &mut WriteHalf<Wire>,
) -> Result<(), LaneError> {
    writer.write_all(&Hello { protocol: PROTOCOL }.encode()).await?;
    writer.flush().await?;
    let mut hello = [0; HELLO_BYTES];
    reader.read_exact(&mut hello).await?;
    let theirs = Hello::decode(&hello)?.protocol;
    if theirs == PROTOCOL { Ok(()) } else { Err(LaneError::Protocol { theirs }) }
}
