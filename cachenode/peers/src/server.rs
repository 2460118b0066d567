//! Serves blocks to authenticated peers: bytes of blocks over lanes (`lane`), everything small over gRPC (`service`),
//! both on one port (`accept`). TLS negotiates which of the two a connection carries; without TLS its first bytes tell.
//! Connections that have not got that far have a limit of their own (`handshakes`), so that they keep no peer out;
//! `connections` bounds the others.
//!
//! Bytes of blocks count against a limit (`limits`) from before they are read until the kernel has taken the whole
//! range, and a range is read only when there is room for it. A peer that stops reading is disconnected some time after
//! its deadline, which releases what it holds; until then it holds at most one peer's share. Bytes that the kernel has
//! taken no longer count; the kernel bounds those itself.
//!
//! Invariants: never more than [`ServerConfig::in_flight_bytes`] in flight; what a request takes is released when it
//! ends, however it ends; no lock is held across an await.

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

/// Serves a node's blocks to its peers.
#[derive(Clone)]
pub struct Server(Arc<ServerState>);

impl Server {
    /// A server that does not listen yet.
    pub fn new(
        config: ServerConfig,
        security: Security,
        blocks: Arc<dyn Blocks>,
        counters: Arc<PeerCounters>,
        stopping: CancellationToken,
    ) -> Self {
        Self(Arc::new(ServerState::new(config, security, blocks, counters, stopping)))
    }

    /// Serves until `stopping` is cancelled. Then the server accepts nothing new, requests in flight may finish within
    /// [`ServerConfig::stop_timeout`], and connections that remain are closed.
    pub async fn serve(self, listener: TcpListener) -> Result<(), tonic::transport::Error> {
        let state = self.0;
        let cancel_all = CancellationToken::new();
        let _cancel_on_drop = cancel_all.clone().drop_guard();
        // A connection for gRPC is passed on as soon as it is accepted; one waits here while tonic takes another.
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
            // Without a grace period, which in tonic 0.14 would replace the graceful shutdown.
            .max_connection_age(state.config.connection_age_most)
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
