//! A gRPC connection to a peer that has identified itself.
//!
//! Invariant: the connection ends when its link is closed or dropped.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Uri;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use larder_cachenode_api::v1::cache_node_client::CacheNodeClient;
use larder_cachenode_api::{MESSAGE_BYTES_MOST, PROTOCOL, v1};
use larder_dataset::Chain;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;
use tonic::body::Body;

use super::connection::{ConnectError, Connection, dial};
use super::context::ClientContext;
use super::error::{RequestError, judge};
use super::status::NodeInfo;
use crate::counters::Cause;
use crate::tls::protocol::AppProtocol;
use crate::tls::verify::NODE_DNS_NAME;
use crate::wire::Fault;

/// Sends tonic's requests over a hyper connection.
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

/// A connection to a peer for gRPC.
#[derive(Debug)]
pub(super) struct Link {
    requests: SendRequest<Body>,
    client: CacheNodeClient<Http2>,
    fault: Fault,
    info: NodeInfo,
    worked: AtomicBool,
    cancel: CancellationToken,
    _cancel_on_drop: DropGuard,
}

impl Connection for Link {
    async fn connect(address: SocketAddr, context: &ClientContext) -> Result<Self, ConnectError> {
        let config = &context.config;
        let cancel = CancellationToken::new();
        let guard = cancel.clone().drop_guard();
        let wire = dial(address, context, AppProtocol::Grpc, &cancel).await?;
        let fault = wire.fault();
        let (requests, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(config.answer_timeout)
            .keep_alive_timeout(config.answer_timeout * 2)
            .handshake(TokioIo::new(wire))
            .await
            .map_err(|error| ConnectError::Connect { what: Chain(&error).to_string() })?;
        // The task ends when the peer closes the connection, when it is cancelled, or when every sender is dropped.
        context.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%address, error = %Chain(&error), "a connection to a peer ended");
            }
        });
        let origin = Uri::builder().scheme("https").authority(NODE_DNS_NAME).path_and_query("/").build();
        let origin = origin.map_err(|error| ConnectError::Connect { what: error.to_string() })?;
        let mut client = CacheNodeClient::with_origin(Http2(requests.clone()), origin)
            .max_decoding_message_size(MESSAGE_BYTES_MOST)
            .max_encoding_message_size(MESSAGE_BYTES_MOST);
        let within = config.answer_timeout;
        let answer = tokio::time::timeout(within, client.get_info(v1::GetInfoRequest { protocol: PROTOCOL })).await;
        let info = match answer {
            Err(_) => return Err(ConnectError::TimedOut { what: "answer", within }),
            Ok(Ok(info)) => info.into_inner(),
            Ok(Err(status)) => {
                let what = match judge(&status, fault.reason()) {
                    RequestError::Failed(failure) if failure.cause == Cause::OtherProtocol => {
                        return Err(ConnectError::Protocol { what: failure.what });
                    }
                    RequestError::Failed(failure) => failure.what,
                    RequestError::Refused(_) | RequestError::GivenUp | RequestError::Invalid(_) => {
                        status.message().to_owned()
                    }
                };
                return Err(ConnectError::Connect { what });
            }
        };
        if info.protocol != PROTOCOL {
            let what = format!(
                "it speaks protocol {} (Larder {}), this node {PROTOCOL} (Larder {})",
                info.protocol,
                info.version,
                env!("CARGO_PKG_VERSION")
            );
            return Err(ConnectError::Protocol { what });
        }
        let info = NodeInfo { node: info.node, version: info.version };
        Ok(Self { requests, client, fault, info, worked: AtomicBool::new(false), cancel, _cancel_on_drop: guard })
    }

    fn worked(&self) {
        self.worked.store(true, Ordering::Relaxed);
    }

    fn has_worked(&self) -> bool {
        self.worked.load(Ordering::Relaxed)
    }

    fn is_closed(&self) -> bool {
        self.requests.is_closed() || self.cancel.is_cancelled()
    }

    fn close(&self) {
        self.cancel.cancel();
    }
}

impl Link {
    pub(super) fn client(&self) -> CacheNodeClient<Http2> {
        self.client.clone()
    }

    pub(super) fn info(&self) -> &NodeInfo {
        &self.info
    }

    /// Classifies a gRPC status from the peer.
    pub(super) fn judge(&self, status: &Status) -> RequestError {
        judge(status, self.fault.reason())
    }
}
