//! The server for the scheduler's requests: HTTP/1.1 with keep-alive, over TLS if it is configured.
//!
//! Connections, the size of a body, and the time for headers and body are limited. A request that exceeds a limit gets
//! an error, or its connection is closed. Answers are sent without delay (TCP_NODELAY), because the scheduler waits for
//! each.

pub mod tls;
pub mod verbs;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::admin::Counters;
use crate::ring::Verb;
use tls::Tls;
use verbs::{Failure, Verbs};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent connections; excess connections are closed immediately.
    pub connections: usize,
    /// Bytes of a body. A pod has at most 1.5 MiB, and 5,000 node names take 350 KiB.
    pub body_bytes: usize,
    /// The timeout for the headers of a request, which is also the limit for an idle connection.
    pub headers: Duration,
    /// The timeout for the body of a request.
    pub body: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let [headers, body] = [10, 5].map(Duration::from_secs);
        Self { connections: 64, body_bytes: 4 << 20, headers, body }
    }
}

#[derive(Clone)]
struct Shared {
    verbs: Verbs,
    limits: Limits,
    counters: Arc<Counters>,
}

/// A listening server.
pub struct Server {
    listener: TcpListener,
    tls: Option<Tls>,
    shared: Shared,
}

impl Server {
    /// Binds the address.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(
        address: SocketAddr,
        tls: Option<Tls>,
        limits: Limits,
        verbs: Verbs,
        counters: Arc<Counters>,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))?;
        Ok(Self { listener, tls, shared: Shared { verbs, limits, counters } })
    }

    /// The address and port on which the server listens.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Serves until `stop`, then completes the requests in flight.
    pub async fn serve(self, stop: CancellationToken) {
        let Self { listener, tls, shared } = self;
        let limits = shared.limits;
        let permits = Arc::new(Semaphore::new(limits.connections));
        let router = router(shared.clone());
        let connections = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // For example too many open files. Some may be closed in a moment.
                    debug!(%error, "accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                shared.counters.connections_refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let (tls, router, stop) = (tls.clone(), router.clone(), stop.clone());
            connections.spawn(async move {
                serve_one(stream, tls, router, limits, stop).await;
                drop(permit);
            });
        }
        connections.close();
        let _ = tokio::time::timeout(limits.body, connections.wait()).await;
    }
}

async fn serve_one(stream: TcpStream, tls: Option<Tls>, router: Router, limits: Limits, stop: CancellationToken) {
    // Without TCP_NODELAY, an answer of two packets would wait 40 ms for an acknowledgement.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let Some(tls) = tls else { return serve_on(stream, router, limits, stop).await };
    if let Ok(Ok(stream)) = tokio::time::timeout(limits.headers, tls.acceptor().accept(stream)).await {
        serve_on(stream, router, limits, stop).await;
    }
}

/// Serves a connection until it ends. After `stop`, completes the current request and closes the connection.
async fn serve_on<S>(stream: S, router: Router, limits: Limits, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = &mut connection => {
            // The client disconnected, or the request exceeded a limit.
            if let Err(error) = ended {
                debug!(%error, "a connection ended");
            }
            return;
        }
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

fn router(shared: Shared) -> Router {
    Router::new().route("/{verb}", post(verb)).route("/decisions", get(decisions)).with_state(shared)
}

async fn verb(State(shared): State<Shared>, Path(name): Path<String>, request: Request) -> Response {
    let Some(verb) = Verb::ALL.into_iter().find(|verb| verb.name() == name) else {
        return refuse(StatusCode::NOT_FOUND, "no such verb: use /filter, /prioritize or /preempt");
    };
    let refused = |status, why: &str| {
        shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        refuse(status, why)
    };
    let body = axum::body::to_bytes(request.into_body(), shared.limits.body_bytes);
    let body = match tokio::time::timeout(shared.limits.body, body).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let why = format!("the request body exceeds {} bytes", shared.limits.body_bytes);
            return refused(StatusCode::PAYLOAD_TOO_LARGE, &why);
        }
        Err(_) => return refused(StatusCode::REQUEST_TIMEOUT, "timed out reading the request body"),
    };
    match shared.verbs.answer(verb, body) {
        Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], Body::from(answer)).into_response(),
        Err(Failure::Refused(why)) => refused(StatusCode::BAD_REQUEST, &why),
        Err(Failure::NotReady) => {
            refuse(StatusCode::SERVICE_UNAVAILABLE, "the objects of the cluster are still being listed")
        }
    }
}

/// An error response with its reason. It closes the connection, because unread bytes of the request may remain in it.
fn refuse(status: StatusCode, why: &str) -> Response {
    (status, [(header::CONNECTION, "close")], format!("{why}\n")).into_response()
}

async fn decisions(State(shared): State<Shared>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let pod = query.split('&').find_map(|pair| pair.strip_prefix("pod=")).map(|pod| pod.replace("%2F", "/"));
    let text = shared.verbs.decisions(pod).await;
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

#[cfg(test)]
mod tests;
