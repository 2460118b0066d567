//! Connections to a peer: how one is begun, and the place where it is kept for all who use it.
//!
//! Invariant: at a time one connection is made for a place, however many want it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::tls::{self, Security, Spoken};
use crate::wire::Wire;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{what}")]
    Connect { what: String },
    #[error("no {what} within {within:?}")]
    TimedOut { what: &'static str, within: Duration },
    #[error("{what}")]
    Protocol { what: String },
}

/// A connection of some kind to a peer, which has answered. It ends when it is closed, or nobody holds it any more.
pub(super) trait Connection: Send + Sync + Sized {
    /// Makes one.
    fn connect(address: SocketAddr, shared: &Shared) -> impl Future<Output = Result<Self, ConnectError>> + Send;

    /// A request over it went well.
    fn worked(&self);

    /// True if a request over it went well, or the peer has said that it ends: if it breaks, that says nothing of the peer.
    fn has_worked(&self) -> bool;

    /// True if it takes no more requests.
    fn is_closed(&self) -> bool;

    /// Ends it, and all that is under way over it.
    fn close(&self);
}

/// Bytes to and from a peer; `cut` ends them.
pub(super) async fn dial(
    address: SocketAddr,
    shared: &Shared,
    spoken: Spoken,
    cut: &CancellationToken,
) -> Result<Wire, ConnectError> {
    let opening = async {
        let io = TcpStream::connect(address).await?;
        io.set_nodelay(true)?;
        Ok(match &shared.security {
            Security::Plaintext => Wire::plain(io, cut.clone()),
            Security::Tls(tls) => {
                let mut wire = Wire::tls(tls.connector(spoken).connect(tls::node_name(), io).await?, cut.clone());
                // A server lets one in by its first words, or says why it does not, which is lost if it comes to bytes that
                // nobody reads any more.
                wire.hear(1).await?;
                wire
            }
        })
    };
    let within = shared.config.connect_timeout;
    tokio::time::timeout(within, opening)
        .await
        .map_err(|_| ConnectError::TimedOut { what: "connection", within })?
        .map_err(|error: std::io::Error| ConnectError::Connect { what: tls::words(&error) })
}

/// The place of a connection.
#[derive(Debug)]
pub(super) struct Slot<C> {
    connection: ArcSwapOption<C>,
    /// Held by whoever makes the connection, for all.
    connecting: tokio::sync::Mutex<()>,
    /// Requests that use it or wait for it.
    users: AtomicUsize,
}

impl<C> Default for Slot<C> {
    fn default() -> Self {
        Self {
            connection: ArcSwapOption::empty(),
            connecting: tokio::sync::Mutex::default(),
            users: AtomicUsize::new(0),
        }
    }
}

impl<C: Connection> Slot<C> {
    fn ready(&self) -> Option<Arc<C>> {
        self.connection.load_full().filter(|connection| !connection.is_closed())
    }

    /// The connection, after making it if there is none.
    pub(super) async fn get<E, F: Future<Output = Result<C, E>>>(
        &self,
        connect: impl FnOnce() -> F,
    ) -> Result<Arc<C>, E> {
        if let Some(connection) = self.ready() {
            return Ok(connection);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = self.ready() {
            return Ok(connection);
        }
        let connection = Arc::new(connect().await?);
        self.connection.store(Some(Arc::clone(&connection)));
        Ok(connection)
    }

    /// Puts a new connection in the place of the old one.
    pub(super) fn put(&self, connection: C) {
        if let Some(old) = self.connection.swap(Some(Arc::new(connection))) {
            old.close();
        }
    }

    /// Gives the connection up. Requests that are under way over it may end.
    pub(super) fn forget(&self, connection: &Arc<C>) {
        self.connection.rcu(|now| now.clone().filter(|now| !Arc::ptr_eq(now, connection)));
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        if let Some(connection) = self.connection.swap(None) {
            connection.close();
        }
    }

    /// How much there is to do here; where nothing is connected yet, a little more.
    pub(super) fn load(&self) -> usize {
        2 * self.users.load(Ordering::Relaxed) + usize::from(self.connection.load().is_none())
    }

    /// Counts one who uses the place, until what is returned is dropped.
    pub(super) fn enter(&self) -> User<'_> {
        self.users.fetch_add(1, Ordering::Relaxed);
        User(&self.users)
    }
}

/// One who uses a [`Slot`].
pub(super) struct User<'a>(&'a AtomicUsize);

impl Drop for User<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
