//! A proxy that breaks HTTP/1.1 on the wire.
//!
//! It sits in front of an S3 endpoint and forwards heads byte for byte, `Host` included, so that signatures stay valid.
//! For each request a hook returns the fault to apply. [`FaultProxy`] accepts connections, `connection` serves one, and
//! `http` finds where heads and bodies end. The invariant: without a fault a client cannot tell the proxy from the
//! server.

mod connection;
mod fault;
mod http;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use connection::{Connection, Shared};
pub use fault::{Fault, RequestHead};

/// Counters of a proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProxyCounters {
    /// Connections accepted.
    pub connections: u64,
    /// Requests read.
    pub requests: u64,
    /// Requests that got a fault.
    pub faults: u64,
}

/// A running proxy. Dropping it stops it and cuts its connections.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultProxy").field("address", &self.address).field("upstream", &self.shared.upstream).finish()
    }
}

impl FaultProxy {
    /// Starts a proxy in front of `upstream` on the current runtime.
    pub async fn start(
        upstream: SocketAddr,
        hook: impl Fn(&RequestHead) -> Fault + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::serve(TcpListener::bind(("127.0.0.1", 0)).await?, upstream, hook)
    }

    /// As [`Self::start`], on the caller's listener, for example at another address. Must be called within a runtime.
    pub fn serve(
        listener: TcpListener,
        upstream: SocketAddr,
        hook: impl Fn(&RequestHead) -> Fault + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream,
            hook: RwLock::new(Arc::new(hook)),
            connections: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, accepting })
    }

    /// The proxy's URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Replaces the hook, for all requests from now on.
    pub fn set_hook(&self, hook: impl Fn(&RequestHead) -> Fault + Send + Sync + 'static) {
        *self.shared.hook.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(hook);
    }

    /// The counters now.
    pub fn counters(&self) -> ProxyCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ProxyCounters {
            connections: read(&self.shared.connections),
            requests: read(&self.shared.requests),
            faults: read(&self.shared.faults),
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    shared.connections.fetch_add(1, Ordering::Relaxed);
                    let connection = Connection::new(stream, Arc::clone(&shared));
                    clients.spawn(async move {
                        // The error is ignored: the client sees that its connection has ended.
                        let _ = connection.serve().await;
                    });
                }
            }
            Some(_) = clients.join_next() => {}
        }
    }
}
