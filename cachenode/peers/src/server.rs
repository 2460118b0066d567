//! Serves blocks to authenticated peers, on one port (`accept`): bytes of blocks over lanes (`lane`), everything small
//! over gRPC (`service`). TLS negotiates which of the two a connection carries; without TLS, its first bytes show it.
//! Connections whose handshake is not finished have a limit of their own (`handshakes`), so that they keep no peer out;
//! `connections` bounds the others.
//!
//! Bytes of blocks count against a limit (`limits`) from before they are read until the kernel has taken the whole
//! range. A range is read only when the limit allows it. A peer that stops reading is disconnected some time after its
//! deadline, which releases its bytes; until then they amount to at most one peer's share. Bytes that the kernel has
//! taken no longer count, because the kernel bounds them itself.
//!
//! Invariants: at most [`ServerConfig::in_flight_bytes`] are in flight. Everything that a request takes is released
//! when it ends, in any way. No lock is held across an await.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use larder_cachenode_api::MESSAGE_BYTES_MOST;
use larder_cachenode_api::v1::cache_node_server::CacheNodeServer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tower::limit::GlobalConcurrencyLimitLayer;

use crate::blocks::Blocks;
use crate::counters::PeerCounters;
use crate::tls::Security;
use accept::accept;
use service::Service;
use state::ServerState;

pub use config::ServerConfig;

mod accept;
mod config;
mod connections;
mod handshakes;
mod lane;
mod limits;
mod service;
mod state;

/// The most gRPC requests that are read and answered at the same time, each of at most [`MESSAGE_BYTES_MOST`].
const REQUESTS_MOST: usize = 32;

/// The most gRPC requests of one connection.
const STREAMS_MOST: u32 = 8;

/// The bytes of a gRPC request's head.
const HEAD_BYTES_MOST: u32 = 4 << 10;

/// The bytes that a gRPC connection may send ahead.
const WINDOW_BYTES: u32 = 64 << 10;

/// Serves a node's blocks to its peers.
#[derive(Clone)]
pub struct Server(Arc<ServerState>);

impl Server {
    /// Creates a server that does not listen yet.
    pub fn new(
        config: ServerConfig,
        security: Security,
        blocks: Arc<dyn Blocks>,
        counters: Arc<PeerCounters>,
        stopping: CancellationToken,
    ) -> Self {
        Self(Arc::new(ServerState::new(config, security, blocks, counters, stopping)))
    }

    /// Serves until `stopping` is cancelled. The server then accepts nothing new, gives requests in flight
    /// [`ServerConfig::stop_timeout`] to finish, and closes the remaining connections.
    pub async fn serve(self, listener: TcpListener) -> Result<(), tonic::transport::Error> {
        let state = self.0;
        let cancel_all = CancellationToken::new();
        let _cancel_on_drop = cancel_all.clone().drop_guard();
        // A gRPC connection is passed to tonic as soon as it is accepted; at most one waits in the channel.
        let (grpc, incoming) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(Arc::clone(&state), listener, grpc, cancel_all.clone()));
        let limits = Arc::clone(&state.limits);
        tasks.spawn(async move { limits.close_overdue().await });
        let service = CacheNodeServer::new(Service(Arc::clone(&state)))
            .max_decoding_message_size(MESSAGE_BYTES_MOST)
            .max_encoding_message_size(MESSAGE_BYTES_MOST);
        let serving = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(20)))
            .http2_keepalive_timeout(Some(Duration::from_secs(10)))
            // No grace period is set: in tonic 0.14 it would replace the graceful shutdown.
            .max_connection_age(state.config.connection_age_most)
            // A request waits for its turn and is read within the timeout. Until its turn, the window bounds it.
            .timeout(state.config.request_timeout)
            .max_concurrent_streams(STREAMS_MOST)
            .http2_max_header_list_size(HEAD_BYTES_MOST)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .layer(GlobalConcurrencyLimitLayer::new(REQUESTS_MOST))
            .add_service(service)
            .serve_with_incoming_shutdown(
                ReceiverStream::new(incoming).map(Ok::<_, io::Error>),
                state.stopping.clone().cancelled_owned(),
            );
        let all = async {
            let outcome = serving.await;
            state.lanes.close();
            state.lanes.wait().await;
            outcome
        };
        let stop_timed_out = async {
            state.stopping.cancelled().await;
            tokio::time::sleep(state.config.stop_timeout).await;
            cancel_all.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            outcome = all => outcome,
            () = stop_timed_out => Ok(()),
        }
    }
}
