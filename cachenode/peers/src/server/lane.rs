//! A lane as its server has it: reads come in, their ranges go out as they are ready.
//!
//! Both directions are one task. A read whose bytes are at hand is answered in it; one that must wait gets a task, so that
//! those behind it need not. What is ready waits in a queue to be written; the room that it takes is given back when the
//! kernel has all of it. A range that is still on its way to this node goes out in pieces as it comes, and other answers
//! between them: one whose origin stalls holds up nothing else.
//!
//! Invariants: each read is answered exactly once, with all of its range or a refusal, also when it was cancelled; a piece
//! that was begun is sent whole, or the lane ends.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use larder_cachenode_api::PROTOCOL;
use larder_cachenode_api::frame::{
    ANSWER_BYTES, Answer, HELLO_BYTES, Hello, Malformed, PIECE_BYTES_LEAST, READ_BYTES, REQUEST_BYTES, RefusalCode,
    Request, SUM_BYTES, Wanted,
};
use larder_dataset::crc32c_append;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::Shared;
use super::room::{CUT_AFTER, Entered, Lease};
use crate::blocks::{Ask, Given, ReadError, Token};
use crate::convert;
use crate::wire::Wire;

/// Answers that wait to be written; who has more waits with them.
const QUEUE: usize = 64;

/// Requests are small: this many bytes of them are taken in at once.
const HEAR_BYTES: usize = 4096;

/// What is ready is written together, up to so many bytes and one answer more: it costs one system call, and wakes the peer
/// once.
const TOGETHER_BYTES: usize = 512 << 10;

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
    /// All of a range, or the next piece of it.
    Bytes {
        tag: u32,
        bytes: Bytes,
        end: Option<End>,
        _held: Arc<Held>,
    },
    Refusal {
        tag: u32,
        code: RefusalCode,
        words: String,
    },
    Pong,
    Goodbye,
}

/// What goes with the last bytes of a range.
struct End {
    /// What is written behind them.
    sum: [u8; SUM_BYTES],
    /// When they are too late.
    deadline: Instant,
}

impl End {
    fn new(ask: &Ask, wanted: &Wanted, crc: u32) -> Self {
        Self { sum: convert::sum(wanted, crc).to_le_bytes(), deadline: ask.deadline }
    }
}

/// What a read takes until the kernel has the last of its bytes.
struct Held {
    _lease: Lease,
    _entered: Entered,
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
                    let mut answer = Box::pin(self.answer(tag, wanted, ask, entered, answers.clone()));
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

    /// The range or its end, or why not; what comes before its end goes to `answers`.
    fn answer(
        &self,
        tag: u32,
        wanted: Wanted,
        ask: Ask,
        entered: Entered,
        answers: mpsc::Sender<Outgoing>,
    ) -> impl Future<Output = Outgoing> + Send + use<> {
        let (shared, share, peer) = (Arc::clone(&self.shared), Arc::clone(&self.share), self.peer.ip());
        async move {
            debug!(%peer, snapshot = %ask.snapshot, block = %ask.block, "read");
            let giving = async {
                let lease = shared.room.lease(share, ask.len).await.ok_or(ReadError::Stopping)?;
                let held = Arc::new(Held { _lease: lease, _entered: entered });
                match load(&shared, &ask).await? {
                    Given::Whole(bytes, crc) if bytes.len() == ask.len as usize => {
                        Ok(Outgoing::Bytes { tag, bytes, end: Some(End::new(&ask, &wanted, crc)), _held: held })
                    }
                    Given::Whole(bytes, _) => Err(wrong_length(&ask, bytes.len())),
                    Given::Arriving(pieces) => pass_on(pieces, tag, &ask, &wanted, held, &answers).await,
                }
            };
            let given = tokio::select! {
                biased;
                given = tokio::time::timeout_at(ask.deadline.into(), giving) => given.unwrap_or(Err(ReadError::TimedOut)),
                () = shared.stopping.cancelled() => Err(ReadError::Stopping),
            };
            given.unwrap_or_else(|error| {
                if error == ReadError::Denied {
                    shared.log_denied(peer, ask.snapshot);
                }
                refuse(&shared, tag, &error)
            })
        }
    }

    /// Writes what is ready.
    async fn say(&self, mut queue: mpsc::Receiver<Outgoing>, mut writer: WriteHalf<Wire>) -> Result<(), LaneError> {
        let mut ready = Vec::with_capacity(QUEUE);
        while let Some(next) = queue.recv().await {
            ready.push(self.in_time(next));
            let mut bytes = ready[0].body().len();
            while bytes < TOGETHER_BYTES
                && let Ok(next) = queue.try_recv()
            {
                let next = self.in_time(next);
                bytes += next.body().len();
                ready.push(next);
            }
            let heads: Vec<_> = ready.iter().map(Outgoing::head).collect();
            let mut slices: Vec<_> = (heads.iter().zip(&ready))
                .flat_map(|(head, answer)| [&head[..], answer.body(), answer.sum()].map(IoSlice::new))
                .collect();
            write_all(&mut writer, &mut slices).await?;
            writer.flush().await?;
            for answer in ready.drain(..) {
                if let Outgoing::Bytes { bytes, end, .. } = answer {
                    let counters = &self.shared.counters;
                    counters.served_reads.fetch_add(end.is_some().into(), Ordering::Relaxed);
                    counters.served_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    /// What is said instead of a range that comes too late.
    fn in_time(&self, answer: Outgoing) -> Outgoing {
        match &answer {
            Outgoing::Bytes { tag, end: Some(end), .. } if Instant::now() > end.deadline => {
                refuse(&self.shared, *tag, &ReadError::TimedOut)
            }
            _ => answer,
        }
    }
}

impl Outgoing {
    fn head(&self) -> [u8; ANSWER_BYTES] {
        let head = match self {
            Self::Bytes { tag, bytes, .. } => Answer::Bytes { tag: *tag, len: bytes.len() as u32 },
            Self::Refusal { tag, code, words } => Answer::Refusal { tag: *tag, code: *code, len: words.len() as u32 },
            Self::Pong => Answer::Pong,
            Self::Goodbye => Answer::Goodbye,
        };
        head.encode()
    }

    fn body(&self) -> &[u8] {
        match self {
            Self::Bytes { bytes, .. } => bytes,
            Self::Refusal { words, .. } => words.as_bytes(),
            Self::Pong | Self::Goodbye => &[],
        }
    }

    fn sum(&self) -> &[u8] {
        match self {
            Self::Bytes { end: Some(end), .. } => &end.sum,
            Self::Bytes { end: None, .. } | Self::Refusal { .. } | Self::Pong | Self::Goodbye => &[],
        }
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

/// Asks for a range. A panic is a refusal.
async fn load(shared: &Shared, ask: &Ask) -> Result<Given, ReadError> {
    AssertUnwindSafe(shared.blocks.read(ask)).catch_unwind().await.unwrap_or_else(|_| Err(panicked(ask)))
}

fn panicked(ask: &Ask) -> ReadError {
    error!(block = %ask.block, "a read for a peer panicked");
    ReadError::unavailable("the node failed")
}

fn wrong_length(ask: &Ask, got: usize) -> ReadError {
    error!(block = %ask.block, wanted = ask.len, got, "a read for a peer has the wrong length");
    ReadError::unavailable("the node failed")
}

/// Sends the pieces of a range as they come, but for the last, which it returns.
async fn pass_on(
    pieces: BoxStream<'static, Result<Bytes, ReadError>>,
    tag: u32,
    ask: &Ask,
    wanted: &Wanted,
    held: Arc<Held>,
    answers: &mpsc::Sender<Outgoing>,
) -> Result<Outgoing, ReadError> {
    let mut pieces = AssertUnwindSafe(pieces).catch_unwind();
    let (mut left, mut crc) = (ask.len as usize, 0);
    while let Some(piece) = pieces.next().await {
        let bytes = piece.map_err(|_| panicked(ask))??;
        let is_last = bytes.len() == left;
        if bytes.len() > left || (!is_last && bytes.len() < PIECE_BYTES_LEAST as usize) {
            return Err(wrong_length(ask, bytes.len()));
        }
        crc = crc32c_append(crc, &bytes);
        if is_last {
            return Ok(Outgoing::Bytes { tag, bytes, end: Some(End::new(ask, wanted, crc)), _held: held });
        }
        left -= bytes.len();
        send(answers, Outgoing::Bytes { tag, bytes, end: None, _held: Arc::clone(&held) }).await;
    }
    Err(wrong_length(ask, ask.len as usize - left))
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
