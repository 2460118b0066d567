//! Serves blocks to peers, over connections that TLS let in: bytes of blocks over lanes (`lane`), what is small by gRPC
//! (`service`), both on one port. Which it is was agreed on with TLS, and is told by the first bytes without.
//!
//! Bytes of blocks on their way are counted from before they are read until the kernel has taken all of their range: a range
//! is read only when there is room. A peer that does not take what it asked for loses its connection some time after its
//! deadline, and with it the room it holds; until then it holds the share of one peer at most. What the kernel has taken is
//! not counted any more: as much as it lets a connection have.
//!
//! Invariants: never more than [`ServerConfig::under_way_bytes`] on their way; what a request takes ends with it, however
//! that ends; no lock is held across an await.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use larder_cachenode_api::MESSAGE_BYTES_MOST;
use larder_cachenode_api::frame::MAGIC;
use larder_cachenode_api::v1::cache_node_server::CacheNodeServer;
use larder_dataset::SnapshotId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::blocks::Blocks;
use crate::chain::chain;
use crate::counters::PeerCounters;
use crate::tls::{self, Security, Spoken};
use crate::wire::Wire;
use lane::{Lane, LaneError};
use room::Room;
use service::Service;

mod lane;
mod room;
mod service;

/// A pause after the kernel refused to accept a connection, which it would do again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Peers whose refusal is remembered, so that it is not logged again.
const REFUSED_MOST: usize = 1024;

/// How a node serves its peers.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The node's name.
    pub node: String,
    /// Bytes of blocks that are on their way to all peers at most. Default: 64 MiB; at least 4 MiB.
    pub under_way_bytes: u64,
    /// The same for one peer, which is an address. Default: half of it; at least 4 MiB.
    pub peer_under_way_bytes: u64,
    /// The longest that a read may take, whatever its peer asks for. Default: 30 s.
    pub deadline_most: Duration,
    /// Requests that are under way at once; more are turned away. Default: 8192.
    pub requests_most: usize,
    /// Connections at once; more wait. Default: 4096.
    pub connections_most: usize,
    /// How long a connection may take to begin: TLS, and a lane's hello. Default: 5 s.
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
            peer_under_way_bytes: 32 << 20,
            deadline_most: Duration::from_secs(30),
            requests_most: 8192,
            connections_most: 4096,
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
    room: Arc<Room>,
    lanes: TaskTracker,
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
        let room = Arc::new(Room::new(
            config.under_way_bytes,
            config.peer_under_way_bytes,
            config.requests_most,
            Arc::clone(&counters),
        ));
        Self(Arc::new(Shared {
            config,
            security,
            blocks,
            counters,
            room,
            lanes: TaskTracker::new(),
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
        let _cut_when_dropped = cut_all.clone().drop_guard();
        // A connection is handed over as soon as it is let in; one waits here while tonic takes another.
        let (accepted, incoming) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&shared).accept(listener, accepted, cut_all.clone()));
        let room = Arc::clone(&shared.room);
        tasks.spawn(async move { room.cut_overdue().await });
        let service = CacheNodeServer::new(Service(Arc::clone(&shared)))
            .max_decoding_message_size(MESSAGE_BYTES_MOST)
            .max_encoding_message_size(MESSAGE_BYTES_MOST);
        let serving = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(20)))
            .http2_keepalive_timeout(Some(Duration::from_secs(10)))
            // Without a grace, which in tonic 0.14 takes the place of the graceful end.
            .max_connection_age(shared.config.connection_age_most)
            .add_service(service)
            .serve_with_incoming_shutdown(
                ReceiverStream::new(incoming).map(Ok::<_, io::Error>),
                shared.stopping.clone().cancelled_owned(),
            );
        let all = async {
            let outcome = serving.await;
            shared.lanes.close();
            shared.lanes.wait().await;
            outcome
        };
        let late = async {
            shared.stopping.cancelled().await;
            tokio::time::sleep(shared.config.stop_patience).await;
            cut_all.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            outcome = all => outcome,
            () = late => Ok(()),
        }
    }
}

impl Shared {
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
                        match shared.let_in(io, address, &cut, place).await {
                            None => {}
                            Some((Spoken::Lane, wire)) => shared.serve_lane(wire, address, cut),
                            // Nobody takes it any more: the server is stopping.
                            Some((Spoken::Grpc, wire)) => drop(accepted.send(wire).await),
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

    /// A connection that may be served, and what is spoken over it.
    async fn let_in(
        &self,
        io: TcpStream,
        address: SocketAddr,
        cut: &CancellationToken,
        place: OwnedSemaphorePermit,
    ) -> Option<(Spoken, Wire)> {
        // Without it small answers wait for the acknowledgement of earlier ones.
        if let Err(error) = io.set_nodelay(true) {
            debug!(%address, %error, "the peer went away");
            return None;
        }
        let beginning = async {
            let mut wire = match &self.security {
                Security::Plaintext => Wire::plain(io, cut.clone()),
                Security::Tls(tls) => Wire::tls(tls.acceptor().accept(io).await?, cut.clone()),
            };
            let spoken = match wire.spoken() {
                Some(spoken) => spoken,
                None if wire.hear(MAGIC.len()).await?.starts_with(&MAGIC) => Spoken::Lane,
                None => Spoken::Grpc,
            };
            Ok((spoken, wire.holding(place)))
        };
        let words = match tokio::time::timeout(self.config.handshake_timeout, beginning).await {
            Ok(Ok(begun)) => {
                self.refused.lock().unwrap_or_else(PoisonError::into_inner).remove(&address.ip());
                return Some(begun);
            }
            Ok(Err(error)) => tls::words(&error),
            Err(_) => "it does not begin in time".to_owned(),
        };
        self.counters.not_let_in.fetch_add(1, Ordering::Relaxed);
        self.log_refused(address, &words);
        None
    }

    fn serve_lane(self: &Arc<Self>, wire: Wire, address: SocketAddr, cut: CancellationToken) {
        let lane = Lane::new(Arc::clone(self), address, cut);
        let shared = Arc::clone(self);
        self.lanes.spawn(async move {
            let Err(error) = lane.serve(wire).await else { return };
            if matches!(error, LaneError::Malformed(_) | LaneError::Protocol { .. }) {
                shared.counters.turned_away.fetch_add(1, Ordering::Relaxed);
                shared.log_refused(address, &chain(&error));
            } else {
                debug!(%address, error = chain(&error), "a lane ended");
            }
        });
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
}
