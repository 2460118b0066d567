//! Connections to a peer: opening one, and the slot that keeps it for all requests.
//!
//! Invariant: a slot opens one connection at a time, for any number of requests that wait for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::context::ClientContext;
use crate::tls::Security;
use crate::tls::explain::explain;
use crate::tls::protocol::AppProtocol;
use crate::tls::verify::node_name;
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

/// A connection of some kind to a peer that has answered on it. Closing or dropping the connection ends it.
pub(super) trait Connection: Send + Sync + Sized {
    /// Opens a connection.
    fn connect(address: SocketAddr, context: &ClientContext)
    -> impl Future<Output = Result<Self, ConnectError>> + Send;

    /// Notes that a request over the connection succeeded.
    fn worked(&self);

    /// True if a request over the connection succeeded, or the peer announced that it will close it. If such a
    /// connection breaks, the peer has not necessarily failed.
    fn has_worked(&self) -> bool;

    /// True if the connection accepts no more requests.
    fn is_closed(&self) -> bool;

    /// Closes the connection, which ends every request in flight over it.
    fn close(&self);
}

/// Opens the transport to a peer. Cancelling `cancel` closes it.
pub(super) async fn dial(
    address: SocketAddr,
    context: &ClientContext,
    protocol: AppProtocol,
    cancel: &CancellationToken,
) -> Result<Wire, ConnectError> {
    let opening = async {
        let io = TcpStream::connect(address).await?;
        io.set_nodelay(true)?;
        Ok(match &context.security {
            Security::Plaintext => Wire::plain(io, cancel.clone()),
            Security::Tls(tls) => {
                let io = tls.connector(protocol).connect(node_name(), io).await?;
                let mut wire = Wire::tls(io, tls, cancel.clone())?;
                // The server sends its first bytes once it accepts our certificate, or an alert with the reason for
                // rejecting it. If we sent bytes first and the server had closed the connection, the alert would be
                // lost.
                wire.peek(1).await?;
                wire
            }
        })
    };
    let within = context.config.connect_timeout;
    tokio::time::timeout(within, opening)
        .await
        .map_err(|_| ConnectError::TimedOut { what: "connection", within })?
        .map_err(|error: std::io::Error| ConnectError::Connect { what: explain(&error) })
}

/// Keeps a connection for all requests.
#[derive(Debug)]
pub(super) struct ConnectionSlot<C> {
    connection: ArcSwapOption<C>,
    /// Held by the request that opens the connection on behalf of all.
    connecting: tokio::sync::Mutex<()>,
    /// The number of requests that use the connection or wait for it.
    users: AtomicUsize,
}

impl<C> Default for ConnectionSlot<C> {
    fn default() -> Self {
        Self {
            connection: ArcSwapOption::empty(),
            connecting: tokio::sync::Mutex::default(),
            users: AtomicUsize::new(0),
        }
    }
}

impl<C: Connection> ConnectionSlot<C> {
    fn ready(&self) -> Option<Arc<C>> {
        self.connection.load_full().filter(|connection| !connection.is_closed())
    }

    /// Returns the connection; opens one if there is none.
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

    /// Replaces the connection and closes the old one.
    pub(super) fn put(&self, connection: C) {
        if let Some(old) = self.connection.swap(Some(Arc::new(connection))) {
            old.close();
        }
    }

    /// Forgets the connection. Requests in flight over it may still finish.
    pub(super) fn forget(&self, connection: &Arc<C>) {
        self.connection.rcu(|now| now.clone().filter(|now| !Arc::ptr_eq(now, connection)));
    }

    /// Closes the connection.
    pub(super) fn close(&self) {
        if let Some(connection) = self.connection.swap(None) {
            connection.close();
        }
    }

    /// Twice the number of requests, plus one if there is no connection yet: a tie goes to an open connection.
    pub(super) fn load(&self) -> usize {
        2 * self.users.load(Ordering::Relaxed) + usize::from(self.connection.load().is_none())
    }

    /// Counts a request until the returned value is dropped.
    pub(super) fn enter(&self) -> SlotUser<'_> {
        self.users.fetch_add(1, Ordering::Relaxed);
        SlotUser(&self.users)
    }
}

/// A request that uses a [`ConnectionSlot`].
pub(super) struct SlotUser<'a>(&'a AtomicUsize);

impl Drop for SlotUser<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
