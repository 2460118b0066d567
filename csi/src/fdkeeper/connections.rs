//! The connections that the keeper holds and the state of its session, which it shares with its thread, and the
//! requests that go from one to the other.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_daemon_api::handover::Socket;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use tokio::sync::{oneshot, watch};

use crate::fdkeeper::connection::Connection;
use crate::fdkeeper::error::KeeperError;
use crate::mount_id::MountId;

/// A pause after a failure that is never seen; without it there would be a busy loop.
const PAUSE: Duration = Duration::from_millis(100);

/// The keeper's counters.
#[derive(Debug, Default)]
pub struct KeeperCounters {
    /// Sessions with larderd.
    pub sessions: AtomicU64,
    /// Connections taken over: larderd held them and the keeper did not.
    pub takeovers: AtomicU64,
    /// Connections offered to larderd, again or for the first time.
    pub offers: AtomicU64,
    /// Offers that larderd refused.
    pub refusals: AtomicU64,
}

/// The state of the session with larderd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionState {
    /// A session exists: the keeper has taken over what larderd held, and has offered the rest.
    pub connected: bool,
    /// larderd has answered these offers.
    pub settled: bool,
    /// Sessions so far.
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
    /// A mount is gone.
    Forget(MountId, Reply),
}

impl Request {
    pub(crate) fn into_reply(self) -> Reply {
        let (Self::Offer(_, reply) | Self::Renew(_, reply) | Self::Forget(_, reply)) = self;
        reply
    }
}

/// The connections that the keeper holds, and all else that it shares with its thread.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) sockets: Vec<PathBuf>,
    pub(crate) daemon_uid: u32,
    pub(crate) session: watch::Sender<SessionState>,
    pub(crate) counters: Arc<KeeperCounters>,
    held: Mutex<BTreeMap<MountId, Arc<Connection>>>,
    /// Written to when a request waits or `stop` is set.
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
        // A full counter means that the thread is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Tells the thread to end.
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

    /// Lets go of a connection, unless another has taken its place.
    pub(crate) fn let_go(&self, connection: &Arc<Connection>) {
        let mut all = self.held();
        if all.get(&connection.mount).is_some_and(|held| Arc::ptr_eq(held, connection)) {
            all.remove(&connection.mount);
        }
    }

    /// Waits until woken, until the timeout, or until larderd sends something or closes (true).
    pub(crate) fn wait(&self, socket: Option<&Socket>, timeout: Option<Duration>) -> bool {
        let mut polled = vec![PollFd::new(&self.wake, PollFlags::IN)];
        polled.extend(socket.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
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
