//! A lane as its server has it: reads come in, their ranges go out as they are ready.
//!
//! Both directions are one task. A read whose bytes are at hand is answered in it; one that must wait gets a task, so that
//! those behind it need not. What is ready waits in a queue to be written; the room that it takes is given back when the
//! kernel has all of it.
//!
//! Invariants: each read is answered exactly once, also when it was cancelled; a range that was begun is sent whole, or the
//! lane ends.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use larder_cachenode_api::PROTOCOL;
use larder_cachenode_api::frame::{
    Answer, HELLO_BYTES, Hello, Malformed, READ_BYTES, REQUEST_BYTES, RefusalCode, Request, Wanted,
};
use larder_dataset::{crc32c, crc32c_append};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::Shared;
use super::room::{CUT_AFTER, Entered, Lease};
use crate::blocks::{Ask, ReadError, Token};
use crate::convert;
use crate::wire::Wire;

/// Answers that wait to be written; who has more waits with them.
const QUEUE: usize = 64;

/// Requests are small: this many bytes of them are taken in at once.
const HEAR_BYTES: usize = 4096;

/// So much of a range is summed, then written while it is in the processor's cache.
const PIECE_BYTES: usize = 256 << 10;

/// Why a lane ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaneError {
    /// The connection broke or was closed.
    #[error("the connection ended")]
    Io(#[from] io::Error),
    /// The peer says what cannot be understood.
    #[error("the peer is not understood")]
    Malformed(#[from] Malformed),
    /// The peer speaks another version.
    #[error("the peer speaks protocol {theirs}, this node {PROTOCOL}: run the same version of Larder on all nodes")]
    Protocol {
        /// Which.
        theirs: u32,
    },
    /// There was no hello in time.
    #[error("the peer does not begin")]
    Silent,
    /// It was told that the lane ends, and did not close it.
    #[error("the peer does not leave")]
    Lingers,
}

/// What goes out, in the order in which it became ready.
enum Outgoing {
    Range { tag: u32, wanted: Wanted, deadline: Instant, bytes: Bytes, _lease: Lease, _entered: Entered },
    Refusal { tag: u32, code: RefusalCode, words: String },
    Pong,
    Goodbye,
}

/// A lane that is being served.
pub(super) struct Lane {
    shared: Arc<Shared>,
    peer: SocketAddr,
    cut: CancellationToken,
    share: Arc<Semaphore>,
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>, peer: SocketAddr, cut: CancellationToken) -> Self {
        let share = shared.room.share(peer.ip());
        Self { shared, peer, cut, share }
    }

    /// Serves it until the peer closes it, it is cut, or something is wrong with it.
    pub(super) async fn serve(self, wire: Wire) -> Result<(), LaneError> {
        let (reader, mut writer) = tokio::io::split(wire);
        let mut reader = BufReader::with_capacity(HEAR_BYTES, reader);
        let hello = greet(&mut reader, &mut writer);
        tokio::time::timeout(self.shared.config.handshake_timeout, hello).await.unwrap_or(Err(LaneError::Silent))?;
        let (answers, queue) = mpsc::channel(QUEUE);
        let farewell = async {
            tokio::select! {
                () = tokio::time::sleep(self.shared.config.connection_age_most) => {}
                () = self.shared.stopping.cancelled() => {}
            }
            // The queue is there as long as the lane.
            let _ = answers.send(Outgoing::Goodbye).await;
            tokio::time::sleep(self.shared.config.deadline_most + CUT_AFTER).await;
            Err(LaneError::Lingers)
        };
        tokio::select! {
            outcome = self.hear(reader, &answers) => outcome,
            outcome = self.say(queue, writer) => outcome,
            outcome = farewell => outcome,
        }
    }

    /// Takes requests in, and has them answered.
    async fn hear(
        &self,
        mut reader: BufReader<ReadHalf<Wire>>,
        answers: &mpsc::Sender<Outgoing>,
    ) -> Result<(), LaneError> {
        let mut loads = JoinSet::new();
        let mut cancels: HashMap<u32, oneshot::Sender<()>> = HashMap::new();
        let mut tokens = Tokens::default();
        loop {
            let mut frame = [0; READ_BYTES];
            let (begin, _) = frame.split_first_chunk_mut::<REQUEST_BYTES>().expect("a read is longer");
            reader.read_exact(begin).await?;
            let len = Request::len_of(begin);
            reader.read_exact(&mut frame[REQUEST_BYTES..len]).await?;
            while let Some(ended) = loads.try_join_next() {
                ended.ok().and_then(|tag| cancels.remove(&tag));
            }
            // No more than that are under way; the others were cancelled, and wait for the peer to take its answers.
            if loads.len() > self.shared.config.requests_most {
                loads.join_next().await;
            }
            match Request::decode(&frame[..len])? {
                Request::Ping => send(answers, Outgoing::Pong).await,
                // Its task hears of it by this.
                Request::Cancel { tag } => drop(cancels.remove(&tag)),
                Request::Read { tag, wanted, token_len, forwarded, deadline_ms } => {
                    let token = tokens.read(&mut reader, token_len.into()).await?;
                    let most = self.shared.config.deadline_most;
                    let patience = Duration::from_millis(deadline_ms.into());
                    let deadline = Instant::now() + if patience.is_zero() { most } else { patience.min(most) };
                    let (ask, entered) = match self.admit(wanted, token, forwarded, deadline) {
                        Ok(admitted) => admitted,
                        Err((code, words)) => {
                            self.shared.counters.turned_away.fetch_add(1, Ordering::Relaxed);
                            send(answers, Outgoing::Refusal { tag, code, words }).await;
                            continue;
                        }
                    };
                    let mut answer = Box::pin(self.answer(tag, wanted, ask, entered));
                    if let Some(ready) = answer.as_mut().now_or_never() {
                        send(answers, ready).await;
                        continue;
                    }
                    let (cancel, cancelled) = oneshot::channel::<()>();
                    cancels.insert(tag, cancel);
                    let answers = answers.clone();
                    loads.spawn(async move {
                        let answer = tokio::select! {
                            answer = answer => answer,
                            _ = cancelled => {
                                Outgoing::Refusal { tag, code: RefusalCode::Unavailable, words: String::new() }
                            }
                        };
                        send(&answers, answer).await;
                        tag
                    });
                }
            }
        }
    }

    /// Checks a read, and lets it in if there are not too many.
    fn admit(
        &self,
        wanted: Wanted,
        token: Result<Option<Token>, &'static str>,
        forwarded: bool,
        deadline: Instant,
    ) -> Result<(Ask, Entered), (RefusalCode, String)> {
        let (snapshot, want) = convert::want(&wanted);
        let token = token.map_err(|what| (RefusalCode::Invalid, what.to_owned()))?;
        if !wanted.is_possible() {
            return Err((RefusalCode::Invalid, "no block can have such a range".to_owned()));
        }
        if self.shared.stopping.is_cancelled() {
            return Err(convert::refusal(&ReadError::Stopping));
        }
        let Some(entered) = self.shared.room.enter(deadline, &self.cut) else {
            return Err((RefusalCode::Unavailable, "too many requests are under way".to_owned()));
        };
        let ask = Ask { snapshot, token, block: want.block, start: want.start, len: want.len, forwarded, deadline };
        Ok((ask, entered))
    }

    /// The range, or why not.
    fn answer(
        &self,
        tag: u32,
        wanted: Wanted,
        ask: Ask,
        entered: Entered,
    ) -> impl Future<Output = Outgoing> + Send + use<> {
        let (shared, share, peer) = (Arc::clone(&self.shared), Arc::clone(&self.share), self.peer.ip());
        async move {
            debug!(%peer, snapshot = %ask.snapshot, block = %ask.block, "read");
            match load(&shared, &ask, share).await {
                Ok((bytes, lease)) => {
                    let deadline = ask.deadline;
                    Outgoing::Range { tag, wanted, deadline, bytes, _lease: lease, _entered: entered }
                }
                Err(error) => {
                    if error == ReadError::Denied {
                        shared.log_denied(peer, ask.snapshot);
                    }
                    refuse(&shared, tag, &error)
                }
            }
        }
    }

    /// Writes what is ready.
    async fn say(&self, mut queue: mpsc::Receiver<Outgoing>, mut writer: WriteHalf<Wire>) -> Result<(), LaneError> {
        while let Some(mut next) = queue.recv().await {
            if let Outgoing::Range { tag, deadline, .. } = &next
                && Instant::now() > *deadline
            {
                next = refuse(&self.shared, *tag, &ReadError::TimedOut);
            }
            match &next {
                Outgoing::Range { tag, wanted, bytes, .. } => {
                    write_range(&mut writer, *tag, wanted, bytes).await?;
                    let counters = &self.shared.counters;
                    counters.served_reads.fetch_add(1, Ordering::Relaxed);
                    counters.served_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
                Outgoing::Refusal { tag, code, words } => {
                    let head = Answer::Refusal { tag: *tag, code: *code, len: words.len() as u32 };
                    write_all(&mut writer, &mut [IoSlice::new(&head.encode()), IoSlice::new(words.as_bytes())]).await?;
                }
                Outgoing::Pong => writer.write_all(&Answer::Pong.encode()).await?,
                Outgoing::Goodbye => writer.write_all(&Answer::Goodbye.encode()).await?,
            }
            writer.flush().await?;
        }
        Ok(())
    }
}

async fn send(answers: &mpsc::Sender<Outgoing>, answer: Outgoing) {
    // Nobody writes any more: the lane is ending.
    let _ = answers.send(answer).await;
}

fn refuse(shared: &Shared, tag: u32, error: &ReadError) -> Outgoing {
    shared.counters.refused.add(error);
    let (code, words) = convert::refusal(error);
    Outgoing::Refusal { tag, code, words }
}

/// Tells the peer which protocol is spoken here, and hears which there.
async fn greet(reader: &mut BufReader<ReadHalf<Wire>>, writer: &mut WriteHalf<Wire>) -> Result<(), LaneError> {
    writer.write_all(&Hello { protocol: PROTOCOL }.encode()).await?;
    writer.flush().await?;
    let mut hello = [0; HELLO_BYTES];
    reader.read_exact(&mut hello).await?;
    let theirs = Hello::decode(&hello)?.protocol;
    if theirs == PROTOCOL { Ok(()) } else { Err(LaneError::Protocol { theirs }) }
}

/// Asks for a range, when there is room for it. A panic is a refusal.
async fn load(shared: &Shared, ask: &Ask, share: Arc<Semaphore>) -> Result<(Bytes, Lease), ReadError> {
    let loading = async {
        let lease = shared.room.lease(share, ask.len).await.ok_or(ReadError::Stopping)?;
        let reading = AssertUnwindSafe(shared.blocks.read(ask)).catch_unwind();
        let bytes = reading.await.unwrap_or_else(|_| {
            error!(block = %ask.block, "a read for a peer panicked");
            Err(ReadError::unavailable("the node failed"))
        })?;
        if bytes.len() != ask.len as usize {
            error!(block = %ask.block, wanted = ask.len, got = bytes.len(), "a read for a peer has the wrong length");
            return Err(ReadError::unavailable("the node failed"));
        }
        Ok((bytes, lease))
    };
    tokio::select! {
        biased;
        outcome = tokio::time::timeout_at(ask.deadline.into(), loading) => outcome.unwrap_or(Err(ReadError::TimedOut)),
        () = shared.stopping.cancelled() => Err(ReadError::Stopping),
    }
}

async fn write_range(
    writer: &mut (impl AsyncWrite + Unpin),
    tag: u32,
    wanted: &Wanted,
    bytes: &[u8],
) -> io::Result<()> {
    let head = Answer::Bytes { tag, len: wanted.len }.encode();
    let (mut before, mut rest, mut sum): (&[u8], _, _) = (&head, bytes, crc32c(&wanted.encode()));
    loop {
        let (piece, after) = rest.split_at(rest.len().min(PIECE_BYTES));
        sum = crc32c_append(sum, piece);
        let last = sum.to_le_bytes();
        let behind: &[u8] = if after.is_empty() { &last } else { &[] };
        write_all(writer, &mut [IoSlice::new(before), IoSlice::new(piece), IoSlice::new(behind)]).await?;
        if after.is_empty() {
            return Ok(());
        }
        (before, rest) = (&[], after);
    }
}

async fn write_all(writer: &mut (impl AsyncWrite + Unpin), mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    // What is empty is left out, and an end of nothing but that is the end.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let written = writer.write_vectored(slices).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(())
}

/// The tokens that a lane's reads show: nearly always the same one, which is then kept once.
#[derive(Default)]
struct Tokens {
    bytes: Vec<u8>,
    last: Option<Token>,
}

impl Tokens {
    /// The token behind a read, or what is wrong with it.
    async fn read(
        &mut self,
        reader: &mut BufReader<ReadHalf<Wire>>,
        len: usize,
    ) -> io::Result<Result<Option<Token>, &'static str>> {
        if len == 0 {
            return Ok(Ok(None));
        }
        self.bytes.resize(len, 0);
        reader.read_exact(&mut self.bytes).await?;
        if self.last.as_ref().is_none_or(|last| last.reveal().as_bytes() != self.bytes) {
            self.last = std::str::from_utf8(&self.bytes).ok().and_then(|text| Token::new(text).ok());
        }
        Ok(self.last.clone().map(Some).ok_or("no dataset can have such a token"))
    }
}
