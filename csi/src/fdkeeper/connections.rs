//! The state that the keeper shares with its thread: the connections that it holds, the state of the session, and the
//! requests to the thread.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_daemon_api::handover::Socket;
use larder_telemetry::Heartbeat;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use tokio::sync::{oneshot, watch};

use crate::fdkeeper::connection::Connection;
use crate::fdkeeper::error::KeeperError;
use crate::mount_id::MountId;

/// The pause after a failed `poll`. It is not known to fail, but without the pause a failure would cause a busy loop.
const PAUSE: Duration = Duration::from_millis(100);

/// The keeper's counters.
#[derive(Debug, Default)]
pub struct KeeperCounters {
    /// Sessions with larderd.
    pub sessions: AtomicU64,
    /// Connections taken over from larderd because the keeper did not hold them.
    pub takeovers: AtomicU64,
    /// Connections offered to larderd, including repeated offers.
    pub offers: AtomicU64,
    /// Offers that larderd rejected.
    pub refusals: AtomicU64,
}

/// The state of the session with larderd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionState {
    /// True while a session exists: the keeper has taken over the connections that larderd held, and has offered the
    /// others.
    pub connected: bool,
    /// True once larderd has answered these offers.
    pub settled: bool,
    /// The number of sessions so far.
    pub count: u64,
}

/// Receives the outcome of a request.
pub(crate) type Reply = oneshot::Sender<Result<(), KeeperError>>;

/// A request to larderd.
#[derive(Debug)]
pub(crate) enum Request {
    /// Serve a new connection.
    Offer(Arc<Connection>, Reply),
    /// Use the connection's newest credentials.
    Renew(Arc<Connection>, Reply),
    /// A mount has ended.
    Forget(MountId, Reply),
    /// The keeper is to stop, if larderd stays.
    Leave(Reply),
}

impl Request {
    pub(crate) fn into_reply(self) -> Reply {
        let (Self::Offer(_, reply) | Self::Renew(_, reply) | Self::Forget(_, reply) | Self::Leave(reply)) = self;
        reply
    }
}

/// The connections that the keeper holds, and all other state that it shares with its thread.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) sockets: Vec<PathBuf>,
    pub(crate) daemon_uid: u32,
    pub(crate) session: watch::Sender<SessionState>,
    pub(crate) counters: Arc<KeeperCounters>,
    /// Of the thread.
    pub(crate) heartbeat: Heartbeat,
    held: Mutex<BTreeMap<MountId, Arc<Connection>>>,
    /// An eventfd, written to when a request is queued or `stop` is set.
    wake: OwnedFd,
    stop: AtomicBool,
}

impl Connections {
    pub(crate) fn new(sockets: Vec<PathBuf>, daemon_uid: u32, counters: Arc<KeeperCounters>) -> io::Result<Self> {
        Ok(Self {
            sockets,
            daemon_uid,
            held: Mutex::default(),
            session: watch::Sender::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            counters,
            heartbeat: Heartbeat::default(),
        })
    }

    pub(crate) fn held(&self) -> MutexGuard<'_, BTreeMap<MountId, Arc<Connection>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<SessionState> {
        self.session.subscribe()
    }

    pub(crate) fn not_connected(&self) -> KeeperError {
        KeeperError::NotConnected { path: self.sockets.first().cloned().unwrap_or_default() }
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        // A write fails only if the counter is full, and then the thread is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Makes the thread end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Holds a connection.
    pub(crate) fn hold(&self, connection: &Arc<Connection>) {
        self.held().insert(connection.mount.clone(), Arc::clone(connection));
    }

    /// Removes a connection, unless another one has replaced it.
    pub(crate) fn let_go(&self, connection: &Arc<Connection>) {
        let mut all = self.held();
        if all.get(&connection.mount).is_some_and(|held| Arc::ptr_eq(held, connection)) {
            all.remove(&connection.mount);
        }
    }

    /// Waits until woken, until the timeout, or until larderd sends a message or closes the socket; only then returns
    /// true. Beats before the wait, so it waits for at most [`Heartbeat::EVERY`].
    pub(crate) fn wait(&self, socket: Option<&Socket>, timeout: Duration) -> bool {
        self.heartbeat.beat();
        let mut polled = vec![PollFd::new(&self.wake, PollFlags::IN)];
        polled.extend(socket.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let timeout = Timespec::try_from(timeout.min(Heartbeat::EVERY)).ok();
        if let Err(errno) = rustix::event::poll(&mut polled, timeout.as_ref())
            && errno != rustix::io::Errno::INTR
        {
            std::thread::sleep(PAUSE);
        }
        let readable = polled.get(1).is_some_and(|socket| !socket.revents().is_empty());
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        readable
    }
}
