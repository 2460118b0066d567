//! The HTTP/1.1 server of Larder's programs.
//!
//! Any client that reaches the address may be hostile, so the server limits the open connections, and the bytes and
//! seconds of each. Beyond the limit, a new connection replaces the oldest one that waits for its client, or that is
//! being answered if more than half are. A flood therefore neither exhausts the process nor keeps out a client that
//! sends its request at once, such as a probe.
//!
//! Invariant: at most [`Limits::connections`] connections are open, and each ends within [`Limits::age`] and
//! [`Limits::answer`].

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{debug, warn};

/// A pause after the kernel failed to accept a connection, for example because too many files are open: an immediate
/// retry would fail again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often a flood is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent connections. Beyond that, a new connection replaces an older one.
    pub connections: usize,
    /// Bytes of a request's head; at least 8 KiB.
    pub head_bytes: usize,
    /// The timeout for the head of a request, which is also the limit for an idle connection.
    pub head: Duration,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// The timeout for the body of a request.
    pub body: Duration,
    /// The age at which a connection is closed once its request has been answered.
    pub age: Duration,
    /// The time for that last answer, and for all answers once the server stops.
    pub answer: Duration,
}

/// The layer between TCP and HTTP.
pub trait Transport: Clone + Send + Sync + 'static {
    /// The stream that carries HTTP.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Opens the stream on a new connection.
    fn open(&self, connection: TcpStream) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// HTTP directly over TCP.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Transport for Plain {
    type Stream = TcpStream;

    async fn open(&self, connection: TcpStream) -> io::Result<TcpStream> {
        Ok(connection)
    }
}

/// A listening server.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    limits: Limits,
}

impl Server {
    /// Binds the address. Errors: the address cannot be bound.
    pub async fn bind(address: SocketAddr, limits: Limits) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await?, limits })
    }

    /// The address and port on which the server listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` completes, then waits [`Limits::answer`] for requests in flight. Calls `replaced` for each
    /// connection that lost its place to a newer one. Handlers can extract the client's address
    /// (`ConnectInfo<SocketAddr>`).
    pub async fn serve<T: Transport>(
        self,
        transport: T,
        router: Router,
        replaced: impl Fn(),
        stop: impl Future<Output = ()>,
    ) {
        let Self { listener, limits } = self;
        let permits = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        let (places, connections) = (Arc::new(Places::default()), TaskTracker::new());
        let stopping = CancellationToken::new();
        let _stop_on_drop = stopping.clone().drop_guard();
        let mut logged: Option<Instant> = None;
        let mut stop = pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut stop => break,
            };
            let (stream, client) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let permit = match Arc::clone(&permits).try_acquire_owned() {
                Ok(permit) => permit,
                Err(_) => {
                    if let Some(closed) = places.close_oldest() {
                        // Without this wait, the place of a connection that ended by itself would be taken, and one
                        // more than necessary would be closed.
                        closed.cancelled().await;
                    }
                    replaced();
                    if logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
                        warn!(%client, limit = limits.connections, "too many connections: new ones replace the oldest");
                        logged = Some(Instant::now());
                    }
                    // The wait also lets the connections that were accepted before read their requests.
                    let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
                    permit
                }
            };
            let place = Arc::new(places.enter(permit));
            let (transport, router, stopping) = (transport.clone(), router.clone(), stopping.clone());
            connections.spawn(async move {
                let serving = serve_one(stream, client, &transport, router, limits, stopping, &place);
                place.lost.run_until_cancelled(serving).await;
            });
        }
        stopping.cancel();
        connections.close();
        let _ = tokio::time::timeout(limits.answer, connections.wait()).await;
    }
}

/// Serves a connection until it ends. After `stopping`, or when the connection has reached its age, answers the current
/// request and closes the connection.
async fn serve_one<T: Transport>(
    stream: TcpStream,
    client: SocketAddr,
    transport: &T,
    router: Router,
    limits: Limits,
    stopping: CancellationToken,
    place: &Arc<Place>,
) {
    let aged = tokio::time::sleep(limits.age);
    // Without TCP_NODELAY, an answer of two packets would wait 40 ms for an acknowledgement.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let Ok(Ok(stream)) = tokio::time::timeout(limits.head, transport.open(stream)).await else { return };
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (router, place) = (router.clone(), Arc::clone(place));
        async move {
            let _answering = place.answering();
            // A client that sends many requests at once takes turns with the others.
            tokio::task::yield_now().await;
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(client));
            router.oneshot(request).await
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(limits.head_bytes)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = &mut connection => {
            // The client disconnected, or the request exceeded a limit.
            if let Err(error) = ended {
                debug!(%client, %error, "a connection ended");
            }
            return;
        }
        () = aged => {}
        () = stopping.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(limits.answer, connection).await;
}

/// The body of a request, within the limits. Error: the status and the reason with which to refuse the request.
pub async fn body(request: Request, limits: &Limits) -> Result<Bytes, (StatusCode, String)> {
    let body = axum::body::to_bytes(request.into_body(), limits.body_bytes);
    match tokio::time::timeout(limits.body, body).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(_)) => {
            let why = format!("the request body exceeds {} bytes", limits.body_bytes);
            Err((StatusCode::PAYLOAD_TOO_LARGE, why))
        }
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "timed out reading the request body".to_owned())),
    }
}

/// The open connections.
#[derive(Debug, Default)]
struct Places(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    /// The connections by age, the oldest first.
    connections: BTreeMap<u64, Connection>,
    next: u64,
}

#[derive(Debug)]
struct Connection {
    lost: CancellationToken,
    ended: CancellationToken,
    /// Its request is complete enough for its handler, which runs.
    is_answered: bool,
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a new connection.
    fn enter(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Place {
        let mut open = self.lock();
        let (number, lost, ended) = (open.next, CancellationToken::new(), CancellationToken::new());
        open.next += 1;
        open.connections.insert(number, Connection { lost: lost.clone(), ended: ended.clone(), is_answered: false });
        Place { places: Arc::clone(self), number, lost, _ended: ended.drop_guard(), _permit: permit }
    }

    /// Closes the oldest connection that waits for its client. If more than half of them are being answered, closes the
    /// oldest of these: a client that sends one request after the other must not leave the others too few places.
    /// Returns what is cancelled once it is closed.
    fn close_oldest(&self) -> Option<CancellationToken> {
        let mut open = self.lock();
        let answered = open.connections.values().filter(|connection| connection.is_answered).count();
        let is_answered = 2 * answered > open.connections.len();
        let oldest = open.connections.iter().find(|(_, connection)| connection.is_answered == is_answered);
        let oldest = oldest.map(|(number, _)| *number);
        let closed = oldest.and_then(|number| open.connections.remove(&number))?;
        closed.lost.cancel();
        Some(closed.ended)
    }
}

/// A connection's place. Dropping it frees the place.
#[derive(Debug)]
struct Place {
    places: Arc<Places>,
    number: u64,
    /// Cancelled when a newer connection takes the place.
    lost: CancellationToken,
    _ended: DropGuard,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// Marks the connection as one whose request is being answered, until the result is dropped.
    fn answering(&self) -> Answering<'_> {
        self.set_answered(true);
        Answering(self)
    }

    fn set_answered(&self, is_answered: bool) {
        if let Some(connection) = self.places.lock().connections.get_mut(&self.number) {
            connection.is_answered = is_answered;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().connections.remove(&self.number);
    }
}

struct Answering<'a>(&'a Place);

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.set_answered(false);
    }
}

#[cfg(test)]
mod tests;
