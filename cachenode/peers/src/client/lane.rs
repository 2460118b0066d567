//! A lane as its asker has it: many reads at a time over one connection, answered by their tags in any order.
//!
//! One task owns the connection: it sends what readers put into its queue, and takes the answers in, each range straight
//! into the buffer that its reader gets. The readers wait on the [`Board`]. A read that is dropped stays there until it is
//! answered, so that the bytes of its answer are not taken for those of another; the peer is told not to bother.
//!
//! Invariants: a lane that hears what it does not understand, or did not ask for, ends, and with it all that waits; so does
//! one on which something is asked and nothing is heard.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{BufMut, Bytes};
use larder_cachenode_api::PROTOCOL;
use larder_cachenode_api::frame::{
    ANSWER_BYTES, Answer, HELLO_BYTES, Hello, PIECE_BYTES_LEAST, Request, SUM_BYTES, Wanted,
};
use larder_dataset::crc32c_append;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Shared;
use super::connection::{ConnectError, Connection, dial};
use super::error::{Failure, Miss, failed, shortened};
use crate::blocks::Token;
use crate::buffers::Buffers;
use crate::convert;
use crate::counters::Cause;
use crate::tls::{self, Spoken};
use crate::wire::{Fault, Wire};

/// Requests that wait to be sent; who has more waits.
const QUEUE: usize = 64;

/// What is read of a lane besides ranges is read in so many bytes.
const HEAR_BYTES: usize = 4096;

/// So much of a range is read at most before it is summed, while it is in the processor's cache.
const SUMMED_BYTES: usize = 256 << 10;

/// A read to be made.
#[derive(Debug)]
pub(super) struct Order<'a> {
    pub(super) wanted: Wanted,
    pub(super) token: Option<&'a Token>,
    pub(super) forwarded: bool,
    pub(super) deadline_ms: u32,
}

/// Who waits for an answer.
#[derive(Debug)]
struct Waiting {
    wanted: Wanted,
    /// What came of the range so far, and its CRC32C.
    arrived: Option<(Vec<u8>, u32)>,
    /// Closed when nobody waits any more.
    answer: oneshot::Sender<Result<Bytes, Miss>>,
}

#[derive(Debug, Default)]
struct Board {
    waiting: HashMap<u32, Waiting>,
    next_tag: u32,
    /// The peer said goodbye: what was asked is answered, and nothing more.
    leaving: bool,
    /// Why the lane ended, if it did.
    ended: Option<Failure>,
}

/// What readers and the lane's task share.
#[derive(Debug, Default)]
struct Common {
    board: Mutex<Board>,
    /// Told when the first of those who wait comes.
    asked: Notify,
    /// Counts up whenever something is heard.
    heard: AtomicU64,
}

impl Common {
    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody waits from now on; the tag of what they wait for.
    fn post(&self, waiting: Waiting) -> Result<u32, Failure> {
        let mut board = self.lock();
        if let Some(failure) = &board.ended {
            return Err(failure.clone());
        }
        if board.leaving {
            return Err(Failure::new(Cause::Broken, "the peer ends the connection"));
        }
        let tag = board.next_tag;
        board.next_tag = tag.wrapping_add(1);
        if board.waiting.is_empty() {
            self.asked.notify_one();
        }
        board.waiting.insert(tag, waiting);
        Ok(tag)
    }

    /// There is more to come for somebody.
    fn put_back(&self, tag: u32, waiting: Waiting) {
        let mut board = self.lock();
        if board.waiting.is_empty() {
            self.asked.notify_one();
        }
        board.waiting.insert(tag, waiting);
    }

    fn take(&self, tag: u32) -> Result<Waiting, Failure> {
        let waiting = self.lock().waiting.remove(&tag);
        waiting.ok_or_else(|| Failure::new(Cause::WrongBlock, "it answers something that was not asked"))
    }

    /// The lane is over: who waits waits no longer.
    fn end(&self, failure: Failure) {
        let mut board = self.lock();
        let waiting = std::mem::take(&mut board.waiting);
        board.ended = Some(failure.clone());
        drop(board);
        for waiting in waiting.into_values() {
            // Nobody waits any more.
            let _ = waiting.answer.send(Err(Miss::Failed(failure.clone())));
        }
    }
}

/// Ends the lane for all who wait, also when its task is dropped.
struct Ending(Arc<Common>);

impl Drop for Ending {
    fn drop(&mut self) {
        if self.0.lock().ended.is_none() {
            self.0.end(Failure::new(Cause::Broken, "the connection was closed"));
        }
    }
}

type Outgoing = (Request, Option<Token>);

/// A connection to a peer that carries blocks.
#[derive(Debug)]
pub(super) struct Lane {
    common: Arc<Common>,
    requests: mpsc::Sender<Outgoing>,
    worked: AtomicBool,
    cut: CancellationToken,
    _cut_when_dropped: DropGuard,
}

impl Connection for Lane {
    async fn connect(address: SocketAddr, shared: &Shared) -> Result<Self, ConnectError> {
        let cut = CancellationToken::new();
        let guard = cut.clone().drop_guard();
        let wire = dial(address, shared, Spoken::Lane, &cut).await?;
        let fault = wire.fault();
        let (reader, mut writer) = tokio::io::split(wire);
        let mut reader = BufReader::with_capacity(HEAR_BYTES, reader);
        let greeting = async {
            writer.write_all(&Hello { protocol: PROTOCOL }.encode()).await?;
            writer.flush().await?;
            let mut hello = [0; HELLO_BYTES];
            reader.read_exact(&mut hello).await?;
            Ok::<_, io::Error>(hello)
        };
        let within = shared.config.answer_timeout;
        let hello = tokio::time::timeout(within, greeting)
            .await
            .map_err(|_| ConnectError::TimedOut { what: "answer", within })?
            .map_err(|error| ConnectError::Connect { what: tls::words(&error) })?;
        let theirs = Hello::decode(&hello).map_err(|error| ConnectError::Connect { what: error.to_string() })?.protocol;
        if theirs != PROTOCOL {
            let what = format!(
                "it speaks protocol {theirs}, this node {PROTOCOL}: run the same version of Larder on all nodes"
            );
            return Err(ConnectError::Protocol { what });
        }
        let common = Arc::new(Common::default());
        let (requests, queue) = mpsc::channel(QUEUE);
        // A ping when nothing was heard for half of the time, and the end when nothing is heard for the other half.
        let half = within / 2;
        let own = Arc::clone(&common);
        let mut listener =
            Listener { reader, common: Arc::clone(&common), fault, buffers: Arc::clone(&shared.buffers) };
        shared.tasks.spawn(async move {
            let ending = Ending(Arc::clone(&own));
            let failure = tokio::select! {
                failure = listener.listen() => failure,
                failure = speak(writer, queue, &own, half) => failure,
            };
            tracing::debug!(%address, cause = failure.cause.name(), what = failure.what, "a lane to a peer ended");
            own.end(failure);
            drop(ending);
        });
        Ok(Self { common, requests, worked: AtomicBool::new(false), cut, _cut_when_dropped: guard })
    }

    fn worked(&self) {
        self.worked.store(true, Ordering::Relaxed);
    }

    fn has_worked(&self) -> bool {
        self.worked.load(Ordering::Relaxed) || self.common.lock().leaving
    }

    fn is_closed(&self) -> bool {
        let board = self.common.lock();
        board.leaving || board.ended.is_some() || self.cut.is_cancelled()
    }

    fn close(&self) {
        self.cut.cancel();
    }
}

impl Lane {
    /// The range, whole and with the right sum. As long as it takes: whoever calls bounds it. Cancel-safe.
    pub(super) async fn read(&self, order: &Order<'_>) -> Result<Bytes, Miss> {
        let Order { wanted, token, forwarded, deadline_ms } = *order;
        let closed = |_| failed(Cause::Broken, "the connection was closed");
        // From here to where the request is in the queue nothing is awaited.
        let place = self.requests.reserve().await.map_err(closed)?;
        let (answer, answered) = oneshot::channel();
        let tag = self.common.post(Waiting { wanted, arrived: None, answer }).map_err(Miss::Failed)?;
        let token_len = token.map_or(0, |token| token.reveal().len()) as u16;
        place.send((Request::Read { tag, wanted, token_len, forwarded, deadline_ms }, token.cloned()));
        let mut asked = Asked { lane: self, tag, answered: false };
        let outcome = answered.await;
        asked.answered = true;
        outcome.unwrap_or_else(|_| Err(failed(Cause::Broken, "the connection was closed")))
    }
}

/// A read that was sent.
struct Asked<'a> {
    lane: &'a Lane,
    tag: u32,
    answered: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answered {
            // Where the queue is full the answer comes and is thrown away.
            let _ = self.lane.requests.try_send((Request::Cancel { tag: self.tag }, None));
        }
    }
}

fn broken(fault: &Fault, error: &io::Error) -> Failure {
    Failure::new(Cause::Broken, fault.words().map_or_else(|| error.to_string(), str::to_owned))
}

/// Sends requests, and pings while something is asked and nothing is heard. Returns why it ended.
async fn speak(
    mut writer: WriteHalf<Wire>,
    mut queue: mpsc::Receiver<Outgoing>,
    common: &Common,
    half: Duration,
) -> Failure {
    let mut out = Vec::new();
    let mut patience = std::pin::pin!(silence(common, half));
    let mut pinged = None;
    loop {
        tokio::select! {
            next = queue.recv() => {
                let Some((request, token)) = next else {
                    return Failure::new(Cause::Broken, "nobody uses the connection any more");
                };
                append(&mut out, &request, token.as_ref());
                while let Ok((request, token)) = queue.try_recv() {
                    append(&mut out, &request, token.as_ref());
                }
            }
            heard = &mut patience => {
                if pinged == Some(heard) {
                    return Failure::new(Cause::TimedOut, format_args!("no sign of life within {:?}", half * 2));
                }
                pinged = Some(heard);
                patience.set(silence(common, half));
                append(&mut out, &Request::Ping, None);
            }
        }
        let written = async {
            writer.write_all(&out).await?;
            writer.flush().await
        };
        if let Err(error) = written.await {
            return Failure::new(Cause::Broken, error);
        }
        out.clear();
    }
}

fn append(out: &mut Vec<u8>, request: &Request, token: Option<&Token>) {
    request.encode(out);
    if let Some(token) = token {
        out.extend_from_slice(token.reveal().as_bytes());
    }
}

/// Returns when something is asked and nothing was heard for so long: what had been heard until then.
async fn silence(common: &Common, long: Duration) -> u64 {
    loop {
        if common.lock().waiting.is_empty() {
            common.asked.notified().await;
        }
        let before = common.heard.load(Ordering::Relaxed);
        tokio::time::sleep(long).await;
        if common.heard.load(Ordering::Relaxed) == before && !common.lock().waiting.is_empty() {
            return before;
        }
    }
}

/// Takes answers in.
struct Listener {
    reader: BufReader<ReadHalf<Wire>>,
    common: Arc<Common>,
    fault: Fault,
    buffers: Arc<Buffers>,
}

impl Listener {
    /// Returns why it ended.
    async fn listen(&mut self) -> Failure {
        loop {
            if let Err(failure) = self.hear().await {
                return failure;
            }
            let board = self.common.lock();
            if board.leaving && board.waiting.is_empty() {
                return Failure::new(Cause::Broken, "the peer ended the connection");
            }
        }
    }

    /// Takes one answer in.
    async fn hear(&mut self) -> Result<(), Failure> {
        let mut head = [0; ANSWER_BYTES];
        self.fill(&mut head).await?;
        match Answer::decode(&head)? {
            Answer::Bytes { tag, len } => {
                let mut waiting = self.common.take(tag)?;
                let Some(outcome) = self.hear_bytes(&mut waiting, len as usize).await.transpose() else {
                    self.common.put_back(tag, waiting);
                    return Ok(());
                };
                let failure = outcome.as_ref().err().cloned();
                // Nobody waits any more.
                let _ = waiting.answer.send(outcome.map_err(Miss::Failed));
                failure.map_or(Ok(()), Err)
            }
            Answer::Refusal { tag, code, len } => {
                let waiting = self.common.take(tag)?;
                let mut words = vec![0; len as usize];
                self.fill(&mut words).await?;
                let words = shortened(&String::from_utf8_lossy(&words));
                let miss = convert::read_error(code, words).map_or_else(Miss::Invalid, Miss::Refused);
                let _ = waiting.answer.send(Err(miss));
                Ok(())
            }
            Answer::Pong => Ok(()),
            Answer::Goodbye => {
                self.common.lock().leaving = true;
                Ok(())
            }
        }
    }

    async fn fill(&mut self, into: &mut [u8]) -> Result<(), Failure> {
        let outcome = self.reader.read_exact(into).await;
        self.common.heard.fetch_add(1, Ordering::Relaxed);
        outcome.map(drop).map_err(|error| broken(&self.fault, &error))
    }

    /// A piece of a range; the range if it is the last one and the sum behind it is right. Also what nobody waits for is
    /// heard to its end.
    async fn hear_bytes(&mut self, waiting: &mut Waiting, len: usize) -> Result<Option<Bytes>, Failure> {
        let wanted = waiting.wanted.len as usize;
        let fresh = || (self.buffers.take(wanted), 0);
        let (mut bytes, mut crc) = waiting.arrived.take().unwrap_or_else(fresh);
        let end = bytes.len() + len;
        if end > wanted || (end < wanted && len < PIECE_BYTES_LEAST as usize) {
            return Err(Failure::new(Cause::WrongBlock, "it sends a range of another length than was asked for"));
        }
        while bytes.len() < end {
            let begin = bytes.len();
            let most = (end - begin).min(SUMMED_BYTES);
            let read = self.reader.read_buf(&mut (&mut bytes).limit(most)).await;
            self.common.heard.fetch_add(1, Ordering::Relaxed);
            if read.map_err(|error| broken(&self.fault, &error))? == 0 {
                return Err(Failure::new(Cause::Truncated, "the connection ended in the middle of a range"));
            }
            crc = crc32c_append(crc, &bytes[begin..]);
        }
        if end < wanted {
            waiting.arrived = Some((bytes, crc));
            return Ok(None);
        }
        let mut theirs = [0; SUM_BYTES];
        self.fill(&mut theirs).await?;
        if u32::from_le_bytes(theirs) != convert::sum(&waiting.wanted, crc) {
            return Err(Failure::new(Cause::WrongBytes, "the checksum of what it sent is wrong"));
        }
        Ok(Some(self.buffers.lend(bytes)))
    }
}
