//! Holds a duplicate of every FUSE connection that larderd serves, so that either process can be killed: pods' reads pause
//! and go on. Only when both die at once does a mount end.
//!
//! One thread keeps the session with larderd: it connects, takes over what larderd holds and we do not (we were restarted),
//! offers what we hold and larderd does not (it was restarted), then passes on requests, one at a time. When the socket
//! breaks it connects again. Invariants: a connection enters the map when larderd has taken it, or when larderd gave it;
//! credentials are in memory only.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use larder_daemon_api::handover::{Said, Socket};
use larder_daemon_api::v1;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use tokio::sync::{oneshot, watch};
use tracing::{debug, info, warn};

use crate::mount_id::MountId;
use crate::mounter::is_alive;

/// Pause before the first new attempt to connect; it doubles up to [`PAUSE_MOST`].
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// How long larderd may take to answer. It may have to read a manifest first.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Requests that wait for the thread. When full, [`KeeperError::Busy`].
const QUEUE: usize = 64;

/// Why larderd did not take or forget a connection.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// There is no session.
    #[error("larderd is not connected (it listens at {path})")]
    NotConnected {
        /// The handover socket.
        path: PathBuf,
    },
    /// It said no.
    #[error("larderd refuses the mount: {words}")]
    Refused {
        /// Its words.
        words: String,
    },
    /// The session broke before the answer.
    #[error("larderd went away before it answered: {source}")]
    Broken {
        /// Why.
        source: io::Error,
    },
    /// Too many wait already.
    #[error("too many requests wait for larderd")]
    Busy,
}

/// What the thread has counted.
#[derive(Debug, Default)]
pub struct KeeperCounters {
    /// Sessions with larderd.
    pub sessions: AtomicU64,
    /// Connections that larderd held and we did not.
    pub takeovers: AtomicU64,
    /// Connections that were offered to larderd, again or for the first time.
    pub offers: AtomicU64,
    /// Offers that it refused.
    pub refusals: AtomicU64,
}

/// A FUSE connection and all that is needed to serve it anew.
#[derive(Debug)]
pub struct Connection {
    /// Its mount.
    pub mount: MountId,
    /// The device.
    pub fd: OwnedFd,
    /// What it serves, credentials included.
    pub dataset: v1::Dataset,
    /// The kernel's INIT request.
    pub init: Vec<u8>,
}

impl Connection {
    /// False once the kernel has ended it.
    pub fn is_alive(&self) -> bool {
        is_alive(&self.fd)
    }

    fn to_wire(&self) -> v1::Connection {
        v1::Connection { mount: self.mount.to_string(), dataset: Some(self.dataset.clone()), init: self.init.clone() }
    }
}

/// How it stands with larderd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// A session is going on, and its takeovers and offers are done.
    pub connected: bool,
    /// Sessions so far.
    pub count: u64,
}

#[derive(Debug)]
enum Request {
    Offer(Arc<Connection>, oneshot::Sender<Result<(), KeeperError>>),
    Forget(MountId, oneshot::Sender<Result<(), KeeperError>>),
}

#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    daemon_uid: u32,
    connections: Mutex<BTreeMap<MountId, Arc<Connection>>>,
    session: watch::Sender<Session>,
    /// Written to when a request waits or `stop` is set.
    wake: OwnedFd,
    stop: AtomicBool,
    counters: Arc<KeeperCounters>,
}

/// The keeper. Dropping it ends its thread and closes its descriptors.
#[derive(Debug)]
pub struct FdKeeper {
    shared: Arc<Shared>,
    requests: SyncSender<Request>,
    thread: Option<JoinHandle<()>>,
}

impl FdKeeper {
    /// Starts to connect to the handover socket at `socket`, whose owner must be `daemon_uid` or root.
    pub fn start(socket: PathBuf, daemon_uid: u32, counters: Arc<KeeperCounters>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            socket,
            daemon_uid,
            connections: Mutex::default(),
            session: watch::Sender::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            counters,
        });
        let (requests, queue) = sync_channel(QUEUE);
        let keeping = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("fdkeeper".to_owned()).spawn(move || keeping.run(&queue))?;
        Ok(Self { shared, requests, thread: Some(thread) })
    }

    /// True while the thread runs. It ends only by a fault of ours.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// How it stands with larderd, now and from now on.
    pub fn session(&self) -> watch::Receiver<Session> {
        self.shared.session.subscribe()
    }

    /// The connection of a mount.
    pub fn connection(&self, mount: &MountId) -> Option<Arc<Connection>> {
        self.shared.connections().get(mount).cloned()
    }

    /// All mounts that have one.
    pub fn mounts(&self) -> Vec<MountId> {
        self.shared.connections().keys().cloned().collect()
    }

    /// Gives larderd a new connection to serve, and keeps it once larderd has taken it. When it fails the connection is
    /// dropped, and so ends.
    pub async fn offer(&self, connection: Connection) -> Result<(), KeeperError> {
        if !self.shared.session.borrow().connected {
            return Err(self.shared.not_connected());
        }
        self.ask(|reply| Request::Offer(Arc::new(connection), reply)).await
    }

    /// Drops a connection, if it is held, here at once, and at larderd if that is there; a session that is about to begin
    /// is waited for, since larderd may have been offered the connection just now. Errors concern larderd only; it hears of
    /// it in the next session, when the mount has ended.
    pub async fn forget(&self, mount: &MountId) -> Result<(), KeeperError> {
        let Some(held) = self.shared.connections().remove(mount) else { return Ok(()) };
        let outcome = self.ask(|reply| Request::Forget(mount.clone(), reply)).await;
        drop(held);
        outcome
    }

    async fn ask(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<(), KeeperError>>) -> Request,
    ) -> Result<(), KeeperError> {
        let (reply, answer) = oneshot::channel();
        match self.requests.try_send(request(reply)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(KeeperError::Busy),
            Err(TrySendError::Disconnected(_)) => return Err(self.shared.not_connected()),
        }
        self.shared.wake();
        answer.await.unwrap_or_else(|_| Err(self.shared.not_connected()))
    }
}

impl Drop for FdKeeper {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, BTreeMap<MountId, Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn not_connected(&self) -> KeeperError {
        KeeperError::NotConnected { path: self.socket.clone() }
    }

    fn wake(&self) {
        // Full means that it is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn run(&self, queue: &Receiver<Request>) {
        let mut pause = PAUSE;
        let mut silent = false;
        while !self.stopping() {
            let before = self.session.borrow().count;
            let error = match self.keep_session(queue) {
                Ok(()) => return,
                Err(error) => error,
            };
            let had_session = self.session.borrow().count > before;
            self.session.send_modify(|session| session.connected = false);
            if had_session || !silent {
                warn!(%error, held = self.connections().len(), "no session with larderd; trying again");
            }
            silent = true;
            pause = if had_session { PAUSE } else { (pause * 2).min(PAUSE_MOST) };
            let mut rest = Some(pause);
            while let Some(left) = rest.filter(|_| !self.stopping()) {
                let started = std::time::Instant::now();
                self.wait(None, Some(left));
                // Whoever asks now would wait for nothing.
                for request in queue.try_iter() {
                    let (Request::Offer(_, reply) | Request::Forget(_, reply)) = request;
                    let _ = reply.send(Err(self.not_connected()));
                }
                rest = left.checked_sub(started.elapsed()).filter(|left| !left.is_zero());
            }
        }
    }

    /// Ends well when told to stop.
    fn keep_session(&self, queue: &Receiver<Request>) -> io::Result<()> {
        let socket = connect(&self.socket, self.daemon_uid)?;
        self.agree(&socket)?;
        self.counters.sessions.fetch_add(1, Ordering::Relaxed);
        self.session.send_modify(|session| *session = Session { connected: true, count: session.count + 1 });
        info!(held = self.connections().len(), "in session with larderd");
        loop {
            for request in queue.try_iter() {
                self.serve(&socket, request)?;
            }
            if self.stopping() {
                return Ok(());
            }
            if self.wait(Some(&socket), None) {
                return match socket.receive()? {
                    None => Err(io::ErrorKind::UnexpectedEof.into()),
                    Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "larderd spoke out of turn")),
                };
            }
        }
    }

    /// Makes both sides hold the same connections.
    fn agree(&self, socket: &Socket) -> io::Result<()> {
        let mut held = BTreeSet::new();
        let mut dead = Vec::new();
        loop {
            let (connection, fd) = match socket.receive()?.ok_or(io::ErrorKind::UnexpectedEof)? {
                (Said::HeldEnd(_), _) => break,
                (Said::Held(connection), Some(fd)) => (connection, fd),
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "larderd does not say what it holds")),
            };
            let mount =
                MountId::try_from(connection.mount).map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))?;
            if !is_alive(&fd) {
                dead.push(mount);
                continue;
            }
            let mut connections = self.connections();
            if !connections.get(&mount).is_some_and(|ours| ours.is_alive()) {
                info!(%mount, "take over a connection from larderd");
                self.counters.takeovers.fetch_add(1, Ordering::Relaxed);
                let dataset = connection.dataset.unwrap_or_default();
                let ours = Connection { mount: mount.clone(), fd, dataset, init: connection.init };
                connections.insert(mount.clone(), Arc::new(ours));
            }
            held.insert(mount);
        }
        for mount in dead {
            debug!(%mount, "larderd holds a connection that has ended");
            let _ = socket.ask(Said::forget(mount.as_str()), None)?;
        }
        let ours: Vec<_> = self.connections().values().cloned().collect();
        for connection in ours.iter().filter(|ours| !held.contains(&ours.mount) && ours.is_alive()) {
            if let Err(words) = self.offer_now(socket, connection)? {
                // It stays ours: pods wait for it, and a later larderd may take it.
                warn!(mount = %connection.mount, %words, "larderd refuses a mount that pods use");
            }
        }
        Ok(())
    }

    fn offer_now(&self, socket: &Socket, connection: &Connection) -> io::Result<Result<(), String>> {
        self.counters.offers.fetch_add(1, Ordering::Relaxed);
        let answer = socket.ask(Said::Offer(connection.to_wire()), Some(connection.fd.as_fd()))?;
        if answer.is_err() {
            self.counters.refusals.fetch_add(1, Ordering::Relaxed);
        }
        Ok(answer)
    }

    /// Passes one request on. An error ends the session; whoever asked hears of it too.
    fn serve(&self, socket: &Socket, request: Request) -> io::Result<()> {
        let (outcome, reply) = match request {
            Request::Offer(connection, reply) => {
                let outcome = self.offer_now(socket, &connection);
                if let Ok(Ok(())) = outcome {
                    self.connections().insert(connection.mount.clone(), connection);
                }
                (outcome, reply)
            }
            Request::Forget(mount, reply) => (socket.ask(Said::forget(mount.as_str()), None), reply),
        };
        let (answer, end) = match outcome {
            Ok(Ok(())) => (Ok(()), Ok(())),
            Ok(Err(words)) => (Err(KeeperError::Refused { words }), Ok(())),
            Err(error) => {
                let again = io::Error::new(error.kind(), error.to_string());
                (Err(KeeperError::Broken { source: error }), Err(again))
            }
        };
        let _ = reply.send(answer);
        end
    }

    /// Waits until woken, until the time is over, or until larderd says something or goes (true).
    fn wait(&self, socket: Option<&Socket>, timeout: Option<Duration>) -> bool {
        let mut polled = vec![PollFd::new(&self.wake, PollFlags::IN)];
        polled.extend(socket.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if let Err(errno) = rustix::event::poll(&mut polled, timeout.as_ref())
            && errno != rustix::io::Errno::INTR
        {
            // Never seen; without a pause it would be a busy loop.
            std::thread::sleep(PAUSE);
        }
        let heard = polled.get(1).is_some_and(|socket| !socket.revents().is_empty());
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        heard
    }
}

fn connect(path: &Path, daemon_uid: u32) -> io::Result<Socket> {
    let socket = Socket::connect(path)?;
    let uid = socket.peer_uid()?;
    if uid != daemon_uid && uid != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("user {uid} listens at {}, which is neither larderd's ({daemon_uid}) nor root", path.display()),
        ));
    }
    socket.set_timeout(Some(ANSWER_WITHIN))?;
    Ok(socket)
}
