//! Holds a duplicate of every FUSE connection that larderd serves, so that either process can be killed: the pods'
//! reads pause and continue. A mount ends only if both processes are dead at the same time.
//!
//! The parts: the [`FdKeeper`] passes requests to a `thread`, which keeps a `session` with larderd. Both share the
//! `connections` that the keeper holds. `lender` registers files of larderd's cache on them, as `backing` does it.
//!
//! Invariants: a connection is added to the map when larderd has accepted it, or when larderd has handed it over.
//! Credentials are kept in memory only, and the map has the newest ones.

mod backing;
mod connection;
mod connections;
mod error;
mod lender;
mod session;
mod thread;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use larder_daemon_api::v1;
use larder_telemetry::Heartbeat;
use tokio::sync::{oneshot, watch};

use crate::mount_id::MountId;

pub use connection::Connection;
use connections::{Connections, Reply, Request};
pub use connections::{KeeperCounters, SessionState};
pub use error::KeeperError;

/// The queue of requests to the thread. When it is full, calls fail with [`KeeperError::Busy`].
const QUEUE: usize = 64;

/// How long a caller waits for larderd's answer. larderd may have to read a manifest first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The keeper. Dropping it ends its thread and closes its descriptors.
#[derive(Debug)]
pub struct FdKeeper {
    connections: Arc<Connections>,
    requests: SyncSender<Request>,
    thread: Option<JoinHandle<()>>,
}

impl FdKeeper {
    /// Starts connecting to the first of these handover sockets on which a process listens. That process must run as
    /// `daemon_uid` or root.
    pub fn start(sockets: Vec<PathBuf>, daemon_uid: u32, counters: Arc<KeeperCounters>) -> io::Result<Self> {
        let connections = Arc::new(Connections::new(sockets, daemon_uid, counters)?);
        lender::start(&connections)?;
        let (requests, queue) = sync_channel(QUEUE);
        let running = Arc::clone(&connections);
        let thread = std::thread::Builder::new().name("fdkeeper".to_owned()).spawn(move || running.run(&queue))?;
        Ok(Self { connections, requests, thread: Some(thread) })
    }

    /// True while the thread runs. Only a bug ends it.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// The heartbeat of the thread. It beats also while larderd is dead, slow or silent.
    pub(crate) fn heartbeat(&self) -> &Heartbeat {
        &self.connections.heartbeat
    }

    /// A watch on the state of the session with larderd.
    pub fn session(&self) -> watch::Receiver<SessionState> {
        self.connections.subscribe()
    }

    /// The connection of a mount.
    pub fn connection(&self, mount: &MountId) -> Option<Arc<Connection>> {
        self.connections.held().get(mount).cloned()
    }

    /// True if the keeper holds the mount's connection, and the kernel has not ended it.
    pub fn is_alive(&self, mount: &MountId) -> bool {
        self.connection(mount).is_some_and(|connection| connection.is_alive())
    }

    /// All mounts with a connection.
    pub fn mounts(&self) -> Vec<MountId> {
        self.connections.held().keys().cloned().collect()
    }

    /// Offers larderd a new connection, and holds it once larderd has accepted it. On failure the connection is
    /// dropped, which ends it.
    pub async fn offer(&self, connection: Connection) -> Result<(), KeeperError> {
        if !self.session().borrow().connected {
            return Err(self.connections.not_connected());
        }
        self.ask(|reply| Request::Offer(Arc::new(connection), reply)).await
    }

    /// Changes the credentials with which a mount's dataset is read. The keeper stores them immediately, for the next
    /// larderd, and sends them to the connected larderd. Does nothing if the mount is not held, or if larderd has
    /// confirmed that it uses these credentials. After an error, a repeated call sends them again.
    pub async fn renew(&self, mount: &MountId, credentials: Option<v1::Credentials>) -> Result<(), KeeperError> {
        let Some(held) = self.connection(mount).filter(|held| held.renew(&credentials)) else { return Ok(()) };
        self.ask(|reply| Request::Renew(Arc::clone(&held), reply)).await?;
        held.told(&credentials);
        Ok(())
    }

    /// Drops a connection, if it is held. The keeper drops it immediately, and so does larderd if it is connected.
    /// Waits for a session that is just beginning, since larderd may have been offered the connection in it. An error
    /// means only that larderd was not informed; the next session informs it that the mount has ended.
    pub async fn forget(&self, mount: &MountId) -> Result<(), KeeperError> {
        let Some(held) = self.connections.held().remove(mount) else { return Ok(()) };
        let outcome = self.ask(|reply| Request::Forget(mount.clone(), reply)).await;
        drop(held);
        outcome
    }

    /// Asks larderd whether this process may stop, which leaves the connections to it. An error if it stops, too, or is
    /// gone.
    pub async fn leave(&self) -> Result<(), KeeperError> {
        self.ask(Request::Leave).await
    }

    async fn ask(&self, request: impl FnOnce(Reply) -> Request) -> Result<(), KeeperError> {
        let (reply, answer) = oneshot::channel();
        match self.requests.try_send(request(reply)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(KeeperError::Busy),
            Err(TrySendError::Disconnected(_)) => return Err(self.connections.not_connected()),
        }
        self.connections.wake();
        match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
            Ok(answered) => answered.unwrap_or_else(|_| Err(self.connections.not_connected())),
            Err(_) => Err(KeeperError::Silent { seconds: ANSWER_TIMEOUT.as_secs() }),
        }
    }
}

impl Drop for FdKeeper {
    fn drop(&mut self) {
        self.connections.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
