//! One connection to a peer, which has said who it is.
//!
//! Invariant: when a link is closed, or nobody holds it any more, its connection ends.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use larder_cachenode_api::v1::cache_node_client::CacheNodeClient;
use larder_cachenode_api::{MESSAGE_BYTES_MOST, PROTOCOL, v1};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::body::Body;

use super::{Miss, NodeInfo, PeersConfig, judge};
use crate::chain::chain;
use crate::tls::{self, NODE_DNS_NAME, Security};
use crate::wire::{Fault, Wire};

/// What a peer may send ahead of one read: a block.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;

/// The same for all reads of a connection: twice what a network of 100 Gbit/s carries in 0.3 ms. A peer may hold as much for
/// each of us beside the room it has, so that more is not better.
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

/// A piece comes in few frames, and no frame holds up others for long.
const FRAME_BYTES: u32 = 256 << 10;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("{what}")]
    Connect { what: String },
    #[error("no {what} within {within:?}")]
    TimedOut { what: &'static str, within: Duration },
    #[error("{what}")]
    Protocol { what: String },
}

/// Sends requests of tonic over a connection of hyper.
#[derive(Clone, Debug)]
pub(super) struct Http2(SendRequest<Body>);

impl tower::Service<http::Request<Body>> for Http2 {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, hyper::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A connection to a peer.
#[derive(Debug)]
pub(super) struct Link {
    requests: SendRequest<Body>,
    client: CacheNodeClient<Http2>,
    fault: Fault,
    info: NodeInfo,
    worked: AtomicBool,
    cut: CancellationToken,
    _cut_when_dropped: DropGuard,
}

impl Link {
    pub(super) async fn connect(
        address: SocketAddr,
        config: &PeersConfig,
        security: &Security,
        tasks: &TaskTracker,
    ) -> Result<Self, LinkError> {
        let cut = CancellationToken::new();
        let guard = cut.clone().drop_guard();
        let opening = async {
            let io = TcpStream::connect(address).await?;
            io.set_nodelay(true)?;
            Ok(match security {
                Security::Plaintext => Wire::plain(io, cut.clone()),
                Security::Tls(tls) => {
                    let mut wire = Wire::tls(tls.connector().connect(tls::node_name(), io).await?, cut.clone());
                    wire.hear().await?;
                    wire
                }
            })
        };
        let within = config.connect_timeout;
        let wire = tokio::time::timeout(within, opening)
            .await
            .map_err(|_| LinkError::TimedOut { what: "connection", within })?
            .map_err(|error: std::io::Error| LinkError::Connect { what: tls::words(&error) })?;
        let fault = wire.fault();
        let (requests, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .keep_alive_interval(config.answer_timeout)
            .keep_alive_timeout(config.answer_timeout * 2)
            .handshake(TokioIo::new(wire))
            .await
            .map_err(|error| LinkError::Connect { what: chain(&error) })?;
        // It ends when the peer closes, when it is cut, or when nobody can send requests any more.
        tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%address, error = chain(&error), "a connection to a peer ended");
            }
        });
        let origin = Uri::builder().scheme("https").authority(NODE_DNS_NAME).path_and_query("/").build();
        let origin = origin.map_err(|error| LinkError::Connect { what: error.to_string() })?;
        let mut client = CacheNodeClient::with_origin(Http2(requests.clone()), origin)
            .max_decoding_message_size(MESSAGE_BYTES_MOST)
            .max_encoding_message_size(MESSAGE_BYTES_MOST);
        let within = config.answer_timeout;
        let answer = tokio::time::timeout(within, client.get_info(v1::GetInfoRequest { protocol: PROTOCOL })).await;
        let info = match answer {
            Err(_) => return Err(LinkError::TimedOut { what: "answer", within }),
            Ok(Ok(info)) => info.into_inner(),
            Ok(Err(status)) => {
                let what = match judge(&status, fault.words()) {
                    Miss::Failed(failure) if failure.cause == crate::counters::Cause::OtherProtocol => {
                        return Err(LinkError::Protocol { what: failure.what });
                    }
                    Miss::Failed(failure) => failure.what,
                    Miss::Refused(_) | Miss::Invalid(_) => status.message().to_owned(),
                };
                return Err(LinkError::Connect { what });
            }
        };
        if info.protocol != PROTOCOL {
            let what = format!(
                "it speaks protocol {} (Larder {}), this node {PROTOCOL} (Larder {})",
                info.protocol,
                info.version,
                env!("CARGO_PKG_VERSION")
            );
            return Err(LinkError::Protocol { what });
        }
        let info = NodeInfo { node: info.node, version: info.version };
        Ok(Self { requests, client, fault, info, worked: AtomicBool::new(false), cut, _cut_when_dropped: guard })
    }

    pub(super) fn client(&self) -> CacheNodeClient<Http2> {
        self.client.clone()
    }

    pub(super) fn info(&self) -> &NodeInfo {
        &self.info
    }

    pub(super) fn miss(&self, status: &Status) -> Miss {
        judge(status, self.fault.words())
    }

    /// A request over it went well.
    pub(super) fn worked(&self) {
        self.worked.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_worked(&self) -> bool {
        self.worked.load(Ordering::Relaxed)
    }

    /// True if it takes no more requests.
    pub(super) fn is_closed(&self) -> bool {
        self.requests.is_closed() || self.cut.is_cancelled()
    }

    /// Ends the connection, and all that is under way over it.
    pub(super) fn close(&self) {
        self.cut.cancel();
    }
}
