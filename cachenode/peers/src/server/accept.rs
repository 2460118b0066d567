//! Accepts connections, authenticates them, and passes each to the server of its protocol.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use larder_cachenode_api::frame::MAGIC;
use larder_dataset::Chain;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::connections::Connections;
use super::handshakes::{Handshakes, Place};
use super::lane::{Lane, LaneError};
use super::state::ServerState;
use crate::tls::Security;
use crate::tls::explain::explain;
use crate::tls::protocol::AppProtocol;
use crate::wire::Wire;

/// A pause after the kernel failed to accept a connection: an immediate retry would fail again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The most bytes that are encrypted before the kernel takes them. With the 64 KiB that rustls allows, a block takes
/// four times as many system calls, and each of them wakes its reader. These bytes belong to answers in flight, whose
/// sum has a limit of its own.
const ENCRYPTED_BYTES_MOST: usize = 256 << 10;

/// Accepts connections until the server stops. Serves lanes, and sends gRPC connections to `grpc`. `cancel_all` closes
/// every connection.
pub(super) async fn accept(
    state: Arc<ServerState>,
    listener: TcpListener,
    grpc: mpsc::Sender<Wire>,
    cancel_all: CancellationToken,
) {
    let connections = Arc::new(Connections::new(state.config.connections_most, state.config.connections_each_most));
    let places = Handshakes::new(state.config.handshakes_most, state.config.handshakes_each_most);
    let mut handshakes = JoinSet::new();
    let mut logged = false;
    while let Some(outcome) = state.stopping.run_until_cancelled(listener.accept()).await {
        while handshakes.try_join_next().is_some() {}
        match outcome {
            Ok((io, address)) => {
                logged = false;
                let place = places.enter(address.ip());
                let (state, grpc, connections) = (Arc::clone(&state), grpc.clone(), Arc::clone(&connections));
                let cancel = cancel_all.child_token();
                handshakes.spawn(async move {
                    match handshake(&state, io, address, &cancel, place, &connections).await {
                        None => {}
                        Some((AppProtocol::Lane, wire)) => serve_lane(&state, wire, address, cancel),
                        // The send fails only while the server is stopping.
                        Some((AppProtocol::Grpc, wire)) => drop(grpc.send(wire).await),
                    }
                });
            }
            Err(error) => {
                if !logged {
                    warn!(%error, "cannot accept connections from peers");
                }
                logged = true;
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Authenticates a connection and determines its protocol; `None` if it is rejected. Until then it holds its `place`
/// among the handshakes, and afterwards one among the `connections`.
async fn handshake(
    state: &ServerState,
    io: TcpStream,
    address: SocketAddr,
    cancel: &CancellationToken,
    place: Place,
    connections: &Connections,
) -> Option<(AppProtocol, Wire)> {
    // With Nagle's algorithm, small answers would wait until earlier ones are acknowledged.
    if let Err(error) = io.set_nodelay(true) {
        debug!(%address, %error, "the peer disconnected");
        return None;
    }
    let opening = async {
        let mut wire = match &state.security {
            Security::Plaintext => Wire::plain(io, cancel.clone()),
            Security::Tls(tls) => {
                let accepting =
                    tls.acceptor().accept_with(io, |session| session.set_buffer_limit(Some(ENCRYPTED_BYTES_MOST)));
                Wire::tls(accepting.await?, tls, cancel.clone())?
            }
        };
        let protocol = match wire.protocol() {
            Some(protocol) => protocol,
            None if wire.peek(MAGIC.len()).await?.starts_with(&MAGIC) => AppProtocol::Lane,
            None => AppProtocol::Grpc,
        };
        Ok::<_, io::Error>((protocol, wire))
    };
    let opened = tokio::select! {
        opened = tokio::time::timeout(state.config.handshake_timeout, opening) => match opened {
            Ok(opened) => opened.map_err(|error| explain(&error)),
            Err(_) => Err("the handshake timed out".to_owned()),
        },
        () = place.lost.cancelled() => Err("newer connections took the place of its unfinished handshake".to_owned()),
    };
    let admitted = opened.and_then(|(protocol, wire)| {
        let permits = connections.enter(address.ip())?;
        Ok((protocol, wire.holding(permits)))
    });
    match admitted {
        Ok(admitted) => {
            state.forget_rejected(address);
            Some(admitted)
        }
        Err(reason) => {
            state.counters.not_let_in.fetch_add(1, Ordering::Relaxed);
            state.log_rejected(address, &reason);
            None
        }
    }
}

fn serve_lane(state: &Arc<ServerState>, wire: Wire, address: SocketAddr, cancel: CancellationToken) {
    let lane = Lane::new(Arc::clone(state), address, cancel);
    let lane_state = Arc::clone(state);
    state.lanes.spawn(async move {
        let Err(error) = lane.serve(wire).await else { return };
        if matches!(error, LaneError::Malformed(_) | LaneError::Protocol { .. }) {
            lane_state.counters.turned_away.fetch_add(1, Ordering::Relaxed);
            lane_state.log_rejected(address, &Chain(&error).to_string());
        } else {
            debug!(%address, error = %Chain(&error), "a lane ended");
        }
    });
}
