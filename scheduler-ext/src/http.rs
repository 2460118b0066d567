//! The server for the scheduler's requests: HTTP/1.1 with keep-alive, over TLS if it is configured.
//!
//! The server of all programs ([`larder_telemetry::server`]) keeps the limits. A request that exceeds one gets an
//! error, or its connection is closed.

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
use larder_telemetry::server::{self, Limits, Plain};
use tokio_util::sync::CancellationToken;

use crate::admin::Counters;
use crate::ring::Verb;
use tls::Tls;
use verbs::{Failure, Verbs};

/// The default limits. A pod has at most 1.5 MiB, and 5,000 node names take 350 KiB.
pub const LIMITS: Limits = Limits {
    connections: 64,
    head_bytes: 64 << 10,
    head: Duration::from_secs(10),
    body_bytes: 4 << 20,
    body: Duration::from_secs(5),
    age: Duration::from_secs(600),
    answer: Duration::from_secs(5),
};

#[derive(Clone)]
struct Shared {
    verbs: Verbs,
    limits: Limits,
    counters: Arc<Counters>,
}

/// A listening server.
pub struct Server {
    server: server::Server,
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
        let server = server::Server::bind(address, limits).await.with_context(|| format!("listen on {address}"))?;
        Ok(Self { server, tls, shared: Shared { verbs, limits, counters } })
    }

    /// The address and port on which the server listens.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.server.address()?)
    }

    /// Serves until `stop`, then completes the requests in flight.
    pub async fn serve(self, stop: CancellationToken) {
        let Self { server, tls, shared } = self;
        let counters = Arc::clone(&shared.counters);
        let replaced = || {
            counters.connections_replaced.fetch_add(1, Ordering::Relaxed);
        };
        let router = router(shared);
        match tls {
            Some(tls) => server.serve(tls, router, replaced, stop.cancelled()).await,
            None => server.serve(Plain, router, replaced, stop.cancelled()).await,
        }
    }
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
    let body = match server::body(request, &shared.limits).await {
        Ok(body) => body,
        Err((status, why)) => return refused(status, &why),
    };
    match shared.verbs.settled(verb, body).await {
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
