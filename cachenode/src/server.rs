//! Serves blocks to peers: gRPC over connections that TLS let in.
//!
//! Bytes of blocks on their way are counted from before they are read until HTTP/2 asks for what comes after them, or the
//! stream is gone: a range is read only when there is room, one range ahead of what the peer takes. A peer that does not
//! take what it asked for loses its connection some time after its deadline, and with it the room it holds; until then it
//! holds the share of one connection at most.
//!
//! What HTTP/2 has taken is not counted any more, though the kernel may not have it yet: at most what the peer opened its
//! window for, 8 MiB a connection for our own kind, and 400 KiB a stream for any.
//!
//! Invariants: never more than [`ServerConfig::under_way_bytes`] on their way; what a request takes ends with its stream,
//! however that ends; no lock is held across an await.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{MaybeDone, maybe_done};
use futures::{FutureExt, Stream, StreamExt};
use larder_cachenode_api::v1::cache_node_server::{CacheNode, CacheNodeServer};
use larder_cachenode_api::{MESSAGE_BYTES_MOST, PIECE_BYTES, PROTOCOL, v1};
use larder_dataset::{BLOCK_BYTES, SnapshotId, crc32c};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::{debug, error, warn};

use crate::blocks::{Ask, Blocks, ReadError};
use crate::convert;
use crate::counters::PeerCounters;
use crate::tls::{self, Security};
use crate::wire::{Caller, Wire};

/// The most that one range takes: its bytes, and the piece that is being encoded.
const RANGE_BYTES_MOST: u64 = BLOCK_BYTES + PIECE_BYTES as u64;

/// After its deadline a request whose peer takes nothing is left alone for so long, then its connection is cut. Peers that
/// work have given it up by then.
const CUT_AFTER: Duration = Duration::from_secs(5);

/// How often requests are looked through for those that are overdue.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A pause after the kernel refused to accept a connection, which it would do again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Peers whose refusal is remembered, so that it is not logged again.
const REFUSED_MOST: usize = 1024;

/// What requests may bring in ahead of being read: they are small.
const WINDOW_BYTES: u32 = 1 << 20;

/// How a node serves its peers.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The node's name.
    pub node: String,
    /// Bytes of blocks that are on their way to all peers at most. Default: 64 MiB; at least 5 MiB.
    pub under_way_bytes: u64,
    /// The same for one connection. Default: half of it; at least 5 MiB.
    pub connection_under_way_bytes: u64,
    /// The longest that a read may take, whatever its peer asks for. Default: 30 s.
    pub deadline_most: Duration,
    /// Requests that are under way at once; more are turned away. Default: 8192.
    pub requests_most: usize,
    /// Connections at once; more wait. Default: 1024.
    pub connections_most: usize,
    /// How long the TLS handshake of a connection may take. Default: 5 s.
    pub handshake_timeout: Duration,
    /// A connection older than this is ended when what it carries is done, so that its peer shows its certificate again.
    /// Default: 10 minutes.
    pub connection_age_most: Duration,
    /// When the server stops, what is under way has so long to end. Default: 5 s.
    pub stop_patience: Duration,
}

impl ServerConfig {
    /// The defaults, for the node of this name.
    pub fn new(node: impl Into<String>) -> Self {
        Self {
            node: node.into(),
            under_way_bytes: 64 << 20,
            connection_under_way_bytes: 32 << 20,
            deadline_most: Duration::from_secs(30),
            requests_most: 8192,
            connections_most: 1024,
            handshake_timeout: Duration::from_secs(5),
            connection_age_most: Duration::from_secs(600),
            stop_patience: Duration::from_secs(5),
        }
    }
}

/// Serves what a node has to its peers.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    config: ServerConfig,
    security: Security,
    blocks: Arc<dyn Blocks>,
    counters: Arc<PeerCounters>,
    /// Bytes of blocks that may be on their way.
    room: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    /// When each request that is under way is overdue, and what cuts its connection.
    under_way: Mutex<HashMap<u64, (Instant, CancellationToken)>>,
    next_request: AtomicU64,
    stopping: CancellationToken,
    /// Who was not let in, and has been logged.
    refused: Mutex<HashSet<IpAddr>>,
    /// Who was denied which dataset, and has been logged.
    denied: Mutex<HashSet<(IpAddr, SnapshotId)>>,
}

impl Server {
    /// A server that is not listening yet.
    pub fn new(
        config: ServerConfig,
        security: Security,
        blocks: Arc<dyn Blocks>,
        counters: Arc<PeerCounters>,
        stopping: CancellationToken,
    ) -> Self {
        let room = Arc::new(Semaphore::new(permits(config.under_way_bytes)));
        let requests = Arc::new(Semaphore::new(config.requests_most.clamp(1, Semaphore::MAX_PERMITS)));
        Self(Arc::new(Shared {
            config,
            security,
            blocks,
            counters,
            room,
            requests,
            under_way: Mutex::default(),
            next_request: AtomicU64::new(0),
            stopping,
            refused: Mutex::default(),
            denied: Mutex::default(),
        }))
    }

    /// Serves until told to stop: then nothing new is taken, what is under way may end, and what has not ended in time is
    /// cut.
    pub async fn serve(self, listener: TcpListener) -> Result<(), tonic::transport::Error> {
        let shared = self.0;
        let cut_all = CancellationToken::new();
        // A connection is handed over as soon as it is let in; one waits here while tonic takes another.
        let (accepted, incoming) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&shared).accept(listener, accepted, cut_all.clone()));
        tasks.spawn(Arc::clone(&shared).cut_overdue());
        let service = CacheNodeServer::new(Service(Arc::clone(&shared)))
            .max_decoding_message_size(MESSAGE_BYTES_MOST)
            .max_encoding_message_size(MESSAGE_BYTES_MOST);
        let serving = tonic::transport::Server::builder()
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(4 * WINDOW_BYTES)
            // Readers drop reads as they please; that is no attack by peers that were let in.
            .http2_max_pending_accept_reset_streams(Some(shared.config.requests_most))
            .max_concurrent_streams(u32::try_from(shared.config.requests_most).unwrap_or(u32::MAX))
            .http2_keepalive_interval(Some(Duration::from_secs(20)))
            .http2_keepalive_timeout(Some(Duration::from_secs(10)))
            // Without a grace, which in tonic 0.14 takes the place of the graceful end. What does not end is overdue some day.
            .max_connection_age(shared.config.connection_age_most)
            .add_service(service)
            .serve_with_incoming_shutdown(
                ReceiverStream::new(incoming).map(Ok::<_, io::Error>),
                shared.stopping.clone().cancelled_owned(),
            );
        let late = async {
            shared.stopping.cancelled().await;
            tokio::time::sleep(shared.config.stop_patience).await;
            cut_all.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            outcome = serving => outcome,
            () = late => Ok(()),
        }
    }
}

/// The room for so many bytes, in permits of one byte.
fn permits(bytes: u64) -> usize {
    usize::try_from(bytes.max(RANGE_BYTES_MOST))
        .map_or(Semaphore::MAX_PERMITS, |bytes| bytes.min(Semaphore::MAX_PERMITS))
}

impl Shared {
    fn lock_under_way(&self) -> MutexGuard<'_, HashMap<u64, (Instant, CancellationToken)>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn accept(self: Arc<Self>, listener: TcpListener, accepted: mpsc::Sender<Wire>, cut_all: CancellationToken) {
        let places = Arc::new(Semaphore::new(self.config.connections_most.clamp(1, Semaphore::MAX_PERMITS)));
        let mut handshakes = JoinSet::new();
        let mut complained = false;
        while !self.stopping.is_cancelled() {
            while handshakes.try_join_next().is_some() {}
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let Some(outcome) = self.stopping.run_until_cancelled(listener.accept()).await else { return };
            match outcome {
                Ok((io, address)) => {
                    complained = false;
                    let (shared, accepted) = (Arc::clone(&self), accepted.clone());
                    let cut = cut_all.child_token();
                    handshakes.spawn(async move {
                        if let Some(wire) = shared.let_in(io, address, cut, place).await {
                            // Nobody takes it any more: the server is stopping.
                            let _ = accepted.send(wire).await;
                        }
                    });
                }
                Err(error) => {
                    if !complained {
                        warn!(%error, "cannot accept connections of peers");
                    }
                    complained = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn let_in(
        &self,
        io: TcpStream,
        address: SocketAddr,
        cut: CancellationToken,
        place: OwnedSemaphorePermit,
    ) -> Option<Wire> {
        // Without it small answers wait for the acknowledgement of earlier ones.
        if let Err(error) = io.set_nodelay(true) {
            debug!(%address, %error, "the peer went away");
            return None;
        }
        let room = Arc::new(Semaphore::new(permits(self.config.connection_under_way_bytes)));
        let caller = Caller { address, cut: cut.clone(), room };
        let wire = match &self.security {
            Security::Plaintext => Wire::plain(io, cut),
            Security::Tls(tls) => {
                let words = match tokio::time::timeout(self.config.handshake_timeout, tls.acceptor().accept(io)).await {
                    Ok(Ok(io)) => {
                        self.refused.lock().unwrap_or_else(PoisonError::into_inner).remove(&address.ip());
                        return Some(Wire::tls(io, cut).of(caller, place));
                    }
                    Ok(Err(error)) => tls::words(&error),
                    Err(_) => "no TLS handshake in time".to_owned(),
                };
                self.counters.not_let_in.fetch_add(1, Ordering::Relaxed);
                self.log_refused(address, &words);
                return None;
            }
        };
        Some(wire.of(caller, place))
    }

    /// Once for each peer, until it gets in.
    fn log_refused(&self, address: SocketAddr, words: &str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() >= REFUSED_MOST {
            refused.clear();
        }
        if refused.insert(address.ip()) {
            warn!(peer = %address.ip(), reason = words, "a peer is not let in");
        } else {
            debug!(peer = %address.ip(), reason = words, "a peer is not let in");
        }
    }

    /// Once for each peer and dataset.
    fn log_denied(&self, peer: IpAddr, snapshot: SnapshotId) {
        let mut denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
        if denied.len() >= REFUSED_MOST {
            denied.clear();
        }
        if denied.insert((peer, snapshot)) {
            warn!(%peer, %snapshot, "a peer does not show the token of a dataset, and is denied it");
        }
    }

    /// Runs until it is dropped.
    async fn cut_overdue(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = Instant::now();
            for (due, cut) in self.lock_under_way().values() {
                if now > *due + CUT_AFTER && !cut.is_cancelled() {
                    self.counters.cut.fetch_add(1, Ordering::Relaxed);
                    cut.cancel();
                }
            }
        }
    }

    /// Lets a request in, if there are not too many. It ends with what is returned.
    fn enter(self: &Arc<Self>, caller: &Caller, deadline: Instant) -> Result<Entered, Status> {
        if self.stopping.is_cancelled() {
            return Err(Status::unavailable("the node is stopping"));
        }
        let Ok(place) = Arc::clone(&self.requests).try_acquire_owned() else {
            return Err(Status::resource_exhausted("too many requests are under way"));
        };
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        self.lock_under_way().insert(number, (deadline, caller.cut.clone()));
        Ok(Entered { shared: Arc::clone(self), number, _place: place })
    }

    /// Asks for a range, when there is room for it. A panic is a refusal.
    async fn load(self: Arc<Self>, ask: Ask, room: Arc<Semaphore>) -> Result<Loaded, ReadError> {
        let weight = ask.len + ask.len.min(PIECE_BYTES);
        let loading = async {
            // First the connection's share, then that of all: who waits for the second keeps only its own peer waiting.
            let stopped = |_| ReadError::Stopping;
            let share = room.acquire_many_owned(weight).await.map_err(stopped)?;
            let all = Arc::clone(&self.room).acquire_many_owned(weight).await.map_err(stopped)?;
            let lease = Lease::new(Arc::clone(&self.counters), u64::from(weight), share, all);
            let reading = AssertUnwindSafe(self.blocks.read(&ask)).catch_unwind();
            let bytes = reading.await.unwrap_or_else(|_| {
                error!(block = %ask.block, "a read for a peer panicked");
                Err(ReadError::unavailable("the node failed"))
            })?;
            if bytes.len() != ask.len as usize {
                error!(block = %ask.block, wanted = ask.len, got = bytes.len(), "a read for a peer has the wrong length");
                return Err(ReadError::unavailable("the node failed"));
            }
            Ok(Loaded { bytes, _lease: lease })
        };
        tokio::select! {
            outcome = tokio::time::timeout_at(ask.deadline.into(), loading) => outcome.unwrap_or(Err(ReadError::TimedOut)),
            () = self.stopping.cancelled() => Err(ReadError::Stopping),
        }
    }
}

/// A request that is under way.
struct Entered {
    shared: Arc<Shared>,
    number: u64,
    _place: OwnedSemaphorePermit,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.shared.lock_under_way().remove(&self.number);
    }
}

/// Room that is taken.
struct Lease {
    counters: Arc<PeerCounters>,
    bytes: u64,
    _share: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Lease {
    fn new(counters: Arc<PeerCounters>, bytes: u64, share: OwnedSemaphorePermit, all: OwnedSemaphorePermit) -> Self {
        let now = counters.under_way_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        counters.under_way_bytes_most.fetch_max(now, Ordering::Relaxed);
        Self { counters, bytes, _share: share, _all: all }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.counters.under_way_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Loaded {
    bytes: Bytes,
    _lease: Lease,
}

type Loading = Pin<Box<MaybeDone<Pin<Box<dyn Future<Output = Result<Loaded, ReadError>> + Send>>>>>;

/// A read as it is answered, one message after the other.
struct Answer {
    entered: Entered,
    room: Arc<Semaphore>,
    peer: IpAddr,
    snapshot: SnapshotId,
    asks: Vec<Ask>,
    /// Which of them is next to be answered, or being answered.
    want: usize,
    begun: bool,
    /// The range that is being sent, and how far it is.
    current: Option<(Loaded, u32)>,
    /// The range at `want`, or, while one is being sent, the one after it.
    coming: Option<Loading>,
}

impl Answer {
    fn stream(self) -> impl Stream<Item = Result<v1::ReadResponse, Status>> + Send {
        futures::stream::unfold(self, |mut answer| async move {
            let part = answer.next().await?;
            Some((Ok(v1::ReadResponse { part: Some(part) }), answer))
        })
    }

    /// Starts to bring in a range, unless there is none.
    fn start(&mut self, want: usize) {
        let Some(ask) = self.asks.get(want) else { return };
        let loading = Arc::clone(&self.entered.shared).load(ask.clone(), Arc::clone(&self.room));
        self.coming = Some(Box::pin(maybe_done(Box::pin(loading) as Pin<Box<dyn Future<Output = _> + Send>>)));
    }

    async fn next(&mut self) -> Option<v1::read_response::Part> {
        if !self.begun {
            self.begun = true;
            let snapshot = Bytes::copy_from_slice(&self.snapshot.0);
            return Some(v1::read_response::Part::Header(v1::Header { protocol: PROTOCOL, snapshot }));
        }
        // The room of what was sent is given back here, when HTTP/2 has taken all of it and asks for more.
        if let (Some((_, sent)), Some(ask)) = (&self.current, self.asks.get(self.want))
            && *sent == ask.len
        {
            let counters = &self.entered.shared.counters;
            counters.served_reads.fetch_add(1, Ordering::Relaxed);
            counters.served_bytes.fetch_add(u64::from(*sent), Ordering::Relaxed);
            self.current = None;
            self.want += 1;
        }
        if self.current.is_none() {
            let number = self.want as u32;
            if self.coming.is_none() {
                self.start(self.want);
            }
            let mut coming = self.coming.take()?;
            coming.as_mut().await;
            let counters = &self.entered.shared.counters;
            match coming.as_mut().take_output()? {
                Ok(loaded) => self.current = Some((loaded, 0)),
                Err(error) => {
                    counters.refused.add(&error);
                    if error == ReadError::Denied {
                        self.entered.shared.log_denied(self.peer, self.snapshot);
                    }
                    self.want += 1;
                    return Some(v1::read_response::Part::Refusal(convert::refusal(number, &error)));
                }
            }
            // The next one is on its way while this one is sent. Polled once, which begins it; it does not hold this one up.
            self.start(self.want + 1);
            if let Some(coming) = &mut self.coming {
                let _ = futures::poll!(coming.as_mut());
            }
        }
        self.piece()
    }

    /// The next piece of the range that is being sent.
    fn piece(&mut self) -> Option<v1::read_response::Part> {
        let ask = self.asks.get(self.want)?;
        let (loaded, sent) = self.current.as_mut()?;
        if Instant::now() > ask.deadline {
            let refusal = convert::refusal(self.want as u32, &ReadError::TimedOut);
            self.entered.shared.counters.refused.add(&ReadError::TimedOut);
            self.current = None;
            self.want += 1;
            return Some(v1::read_response::Part::Refusal(refusal));
        }
        let len = (ask.len - *sent).min(PIECE_BYTES);
        let data = loaded.bytes.slice(*sent as usize..(*sent + len) as usize);
        let piece = v1::Piece {
            want: self.want as u32,
            block: ask.block.0,
            offset: ask.start + *sent,
            crc32c: crc32c(&data),
            data,
        };
        *sent += len;
        Some(v1::read_response::Part::Piece(piece))
    }
}

struct Service(Arc<Shared>);

impl Service {
    /// Counts a request that is turned away.
    fn turned_away<T>(&self, outcome: Result<T, Status>) -> Result<T, Status> {
        if outcome.is_err() {
            self.0.counters.turned_away.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }
}

fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Option<Caller>>().cloned().flatten();
    caller.ok_or_else(|| Status::internal("the connection is not known"))
}

#[tonic::async_trait]
impl CacheNode for Service {
    async fn get_info(&self, _: Request<v1::GetInfoRequest>) -> Result<Response<v1::GetInfoResponse>, Status> {
        if self.0.stopping.is_cancelled() {
            return Err(Status::unavailable("the node is stopping"));
        }
        Ok(Response::new(v1::GetInfoResponse {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.0.config.node.clone(),
        }))
    }

    type ReadStream = Pin<Box<dyn Stream<Item = Result<v1::ReadResponse, Status>> + Send>>;

    async fn read(&self, request: Request<v1::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let answer = (|| {
            let caller = caller(&request)?;
            let token = convert::token(request.metadata());
            let asked = convert::asked(request.get_ref(), token, self.0.config.deadline_most)?;
            debug!(peer = %caller.address, snapshot = %asked.snapshot, wants = asked.asks.len(), "read");
            Ok(Answer {
                entered: self.0.enter(&caller, asked.deadline)?,
                peer: caller.address.ip(),
                room: caller.room,
                snapshot: asked.snapshot,
                asks: asked.asks,
                want: 0,
                begun: false,
                current: None,
                coming: None,
            })
        })();
        Ok(Response::new(Box::pin(self.turned_away(answer)?.stream())))
    }

    async fn have(&self, request: Request<v1::HaveRequest>) -> Result<Response<v1::HaveResponse>, Status> {
        let deadline = Instant::now() + self.0.config.deadline_most;
        let admitted = (|| {
            let run = convert::have_run(request.get_ref())?;
            Ok((run, self.0.enter(&caller(&request)?, deadline)?))
        })();
        let ((snapshot, first, blocks), _entered) = self.turned_away(admitted)?;
        let token = convert::token(request.metadata());
        let asking = self.0.blocks.have(snapshot, token.as_ref(), first, blocks);
        let outcome = match tokio::time::timeout_at(deadline.into(), asking).await.unwrap_or(Err(ReadError::TimedOut)) {
            Ok(stored) => v1::have_response::Outcome::Stored(Bytes::copy_from_slice(stored.bits())),
            Err(error) => {
                self.0.counters.refused.add(&error);
                v1::have_response::Outcome::Refusal(convert::refusal(0, &error))
            }
        };
        Ok(Response::new(v1::HaveResponse { outcome: Some(outcome) }))
    }

    async fn get_stats(&self, request: Request<v1::GetStatsRequest>) -> Result<Response<v1::GetStatsResponse>, Status> {
        self.turned_away(convert::protocol(request.get_ref().protocol).map_err(Status::from))?;
        let datasets = self.0.blocks.stats().into_iter().map(convert::stats_to_wire).collect();
        let counters = self.0.counters.values().into_iter().collect();
        Ok(Response::new(v1::GetStatsResponse { datasets, counters }))
    }
}
