//! A peer whose answers a test writes, and a clock that only the test advances.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use larder_cachenode_api::PROTOCOL;
use larder_cachenode_api::frame::{
    ANSWER_BYTES, Answer, HELLO_BYTES, Hello, READ_BYTES, REQUEST_BYTES, RefusalCode, Request, WireRange,
};
use larder_dataset::crc32c;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

use crate::node::content;

/// The most that the paused clock advances at a time.
const STEP: Duration = Duration::from_millis(10);

/// The number of scheduling turns after which a wait gives up. All tasks of a test run in one thread.
const TURNS: usize = 300_000;

/// A paused clock. It stands still while the test waits for the network, and advances only when the test requests it.
pub(crate) struct StoppedClock {
    here: TcpStream,
    there: TcpStream,
    sent: u8,
    /// Tokio does not advance a paused clock while a blocking task runs. This task runs until the sender is dropped.
    _stops: std::sync::mpsc::Sender<()>,
}

impl StoppedClock {
    pub(crate) async fn stop() -> Self {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || receiver.recv());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (there, _) = listener.accept().await.unwrap();
        here.set_nodelay(true).unwrap();
        Self { here, there, sent: 0, _stops: sender }
    }

    /// Lets all tasks do everything that needs no time. Bytes that were already sent over the loopback have arrived
    /// afterwards.
    pub(crate) async fn settle(&mut self) {
        for _ in 0..4 {
            self.sent = self.sent.wrapping_add(1);
            self.here.write_all(&[self.sent]).await.unwrap();
            // An earlier call that was abandoned may have left its own bytes in the socket.
            while self.there.read_u8().await.unwrap() != self.sent {}
            // Sent bytes often arrive immediately, before any other task has run.
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn step(&mut self, step: Duration) {
        tokio::time::advance(step).await;
        self.settle().await;
    }

    /// Advances the clock by this much.
    pub(crate) async fn pass(&mut self, duration: Duration) {
        let end = Instant::now() + duration;
        self.settle().await;
        while Instant::now() < end {
            self.step(STEP.min(end - Instant::now())).await;
        }
    }

    /// Advances the clock until `work` is done. Returns the result and the time that it took.
    pub(crate) async fn until_done<T>(&mut self, work: impl Future<Output = T>) -> (T, Duration) {
        let started = Instant::now();
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                outcome = &mut work => return (outcome, started.elapsed()),
                () = self.step(STEP) => assert!(started.elapsed() < Duration::from_secs(600), "it takes for ever"),
            }
        }
    }
}

/// An event that a peer received.
#[derive(Debug)]
pub(crate) enum Event {
    Read(Asked),
    /// The tag of the read.
    Cancelled(u32),
}

/// A read that waits for the test's answer.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) tag: u32,
    pub(crate) range: WireRange,
    pub(crate) forwarded: bool,
    pub(crate) cached_only: bool,
    lane: Arc<ScriptedLane>,
}

/// The sending side of a lane.
#[derive(Debug)]
struct ScriptedLane {
    writer: Mutex<OwnedWriteHalf>,
    /// The tags of the reads that have no whole answer yet.
    unanswered: std::sync::Mutex<HashSet<u32>>,
}

impl ScriptedLane {
    async fn send(&self, frames: &[&[u8]]) -> io::Result<()> {
        self.writer.lock().await.write_all(&frames.concat()).await
    }

    /// Answers a read completely, unless it was answered before.
    async fn end(&self, tag: u32, frames: &[&[u8]]) -> io::Result<()> {
        let is_first = self.unanswered.lock().unwrap().remove(&tag);
        if is_first { self.send(frames).await } else { Ok(()) }
    }
}

impl Asked {
    pub(crate) async fn answer(&self) {
        self.rest_after(0).await;
    }

    /// Sends the bytes after the first `sent`, and the sum.
    pub(crate) async fn rest_after(&self, sent: u32) {
        let WireRange { block, start, len, .. } = self.range;
        let sum = crc32c(&self.range.encode()) ^ crc32c(&content(block, start, len));
        let head = Answer::Bytes { tag: self.tag, len: len - sent }.encode();
        let frames: [&[u8]; 3] = [&head, &content(block, start + sent, len - sent), &sum.to_le_bytes()];
        self.lane.end(self.tag, &frames).await.unwrap();
    }

    /// Sends bytes that differ from the block's, with their own correct sum.
    pub(crate) async fn answer_wrong(&self) {
        let WireRange { block, start, len, .. } = self.range;
        let bytes = content(block + 1, start, len);
        let sum = crc32c(&self.range.encode()) ^ crc32c(&bytes);
        let frames: [&[u8]; 3] = [&Answer::Bytes { tag: self.tag, len }.encode(), &bytes, &sum.to_le_bytes()];
        self.lane.end(self.tag, &frames).await.unwrap();
    }

    /// Sends the first `bytes` bytes.
    pub(crate) async fn begin(&self, bytes: u32) {
        let head = Answer::Bytes { tag: self.tag, len: bytes }.encode();
        self.lane.send(&[&head, &content(self.range.block, self.range.start, bytes)]).await.unwrap();
    }

    pub(crate) async fn refuse(&self) {
        self.lane.end(self.tag, &[&refusal(self.tag)]).await.unwrap();
    }
}

fn refusal(tag: u32) -> [u8; ANSWER_BYTES] {
    Answer::Refusal { tag, code: RefusalCode::Unavailable, len: 0 }.encode()
}

/// A peer whose answers to reads a test writes. It answers pings and cancels itself, unless it is mute.
#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    pub(crate) is_mute: Arc<AtomicBool>,
    /// Connections that are open.
    pub(crate) lanes: Arc<AtomicU64>,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Scripted {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, events) = mpsc::unbounded_channel();
        let (is_mute, lanes) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (mute, open) = (Arc::clone(&is_mute), Arc::clone(&lanes));
        tokio::spawn(async move {
            loop {
                let (io, _) = listener.accept().await.unwrap();
                let (mute, open, sender) = (Arc::clone(&mute), Arc::clone(&open), sender.clone());
                tokio::spawn(async move {
                    open.fetch_add(1, Ordering::SeqCst);
                    serve(io, &mute, &sender).await;
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, is_mute, lanes, events }
    }

    /// The next event. The clock stands still, so an event that does not arrive soon never arrives.
    async fn event(&mut self) -> Event {
        for _ in 0..TURNS {
            if let Ok(event) = self.events.try_recv() {
                return event;
            }
            tokio::task::yield_now().await;
        }
        panic!("the peer was sent nothing");
    }

    /// The next read. Skips the cancels before it.
    pub(crate) async fn asked(&mut self) -> Asked {
        loop {
            if let Event::Read(asked) = self.event().await {
                return asked;
            }
        }
    }

    /// The tag of the next read that is cancelled.
    pub(crate) async fn cancelled(&mut self) -> u32 {
        match self.event().await {
            Event::Cancelled(tag) => tag,
            other => panic!("{other:?}"),
        }
    }

    /// Discards the requests that the peer has received.
    pub(crate) fn forget_reads(&mut self) {
        while self.events.try_recv().is_ok() {}
    }

    /// Fails if the peer has received a read that the test has not consumed.
    pub(crate) fn was_asked_nothing(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            assert!(matches!(event, Event::Cancelled(_)), "{event:?}");
        }
    }
}

/// Serves a lane until it ends.
async fn serve(io: TcpStream, mute: &AtomicBool, events: &mpsc::UnboundedSender<Event>) -> Option<()> {
    io.set_nodelay(true).ok()?;
    let (mut reader, writer) = io.into_split();
    let lane = Arc::new(ScriptedLane { writer: Mutex::new(writer), unanswered: std::sync::Mutex::default() });
    let is_mute = || mute.load(Ordering::SeqCst);
    reader.read_exact(&mut [0; HELLO_BYTES]).await.ok()?;
    if !is_mute() {
        lane.send(&[&Hello { protocol: PROTOCOL }.encode()]).await.ok()?;
    }
    loop {
        let mut frame = [0; READ_BYTES];
        reader.read_exact(&mut frame[..REQUEST_BYTES]).await.ok()?;
        let len = Request::len_of(frame.first_chunk()?);
        reader.read_exact(&mut frame[REQUEST_BYTES..len]).await.ok()?;
        match Request::decode(&frame[..len]).ok()? {
            Request::Read { tag, range, token_len, forwarded, cached_only, .. } => {
                reader.read_exact(&mut vec![0; token_len.into()]).await.ok()?;
                lane.unanswered.lock().unwrap().insert(tag);
                let lane = Arc::clone(&lane);
                events.send(Event::Read(Asked { tag, range, forwarded, cached_only, lane })).ok()?;
            }
            Request::Cancel { tag } => {
                events.send(Event::Cancelled(tag)).ok()?;
                if !is_mute() {
                    lane.end(tag, &[&refusal(tag)]).await.ok()?;
                }
            }
            Request::Ping if is_mute() => {}
            Request::Ping => lane.send(&[&Answer::Pong.encode()]).await.ok()?,
        }
    }
}
