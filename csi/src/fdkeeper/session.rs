//! The thread that keeps the session with larderd.
//!
//! It connects, takes over the connections that larderd holds and the keeper does not (the plugin was restarted), offers
//! those that the keeper holds and larderd does not (larderd was restarted), then passes on requests one at a time. When the
//! socket breaks it reconnects.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_daemon_api::handover::{Message, Socket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use tokio::sync::{oneshot, watch};
use tracing::{debug, info, warn};

use crate::fdkeeper::connection::{Connection, is_alive};
use crate::fdkeeper::error::KeeperError;
use crate::mount_id::MountId;

/// The pause before the first attempt to reconnect; it doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long larderd may take to answer. It may have to read a manifest first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

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
pub struct Session {
    /// A session exists, and its takeovers and offers are done.
    pub connected: bool,
    /// Sessions so far.
    pub count: u64,
}

/// Receives the outcome of a request.
pub(crate) type Reply = oneshot::Sender<Result<(), KeeperError>>;

/// A request to larderd.
#[derive(Debug)]
pub(crate) enum Request {
    Offer(Arc<Connection>, Reply),
    Forget(MountId, Reply),
}

/// The state that the keeper and its thread share.
#[derive(Debug)]
pub(crate) struct Keeping {
    socket: PathBuf,
    daemon_uid: u32,
    connections: Mutex<BTreeMap<MountId, Arc<Connection>>>,
    session: watch::Sender<Session>,
    /// Written to when a request waits or `stop` is set.
    wake: OwnedFd,
    stop: AtomicBool,
    counters: Arc<KeeperCounters>,
}

impl Keeping {
    pub(crate) fn new(socket: PathBuf, daemon_uid: u32, counters: Arc<KeeperCounters>) -> io::Result<Self> {
        Ok(Self {
            socket,
            daemon_uid,
            connections: Mutex::default(),
            session: watch::Sender::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            counters,
        })
    }

    pub(crate) fn connections(&self) -> MutexGuard<'_, BTreeMap<MountId, Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Session> {
        self.session.subscribe()
    }

    pub(crate) fn not_connected(&self) -> KeeperError {
        KeeperError::NotConnected { path: self.socket.clone() }
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

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Keeps sessions until stopped.
    pub(crate) fn run(&self, queue: &Receiver<Request>) {
        let mut pause = PAUSE;
        let mut warned = false;
        while !self.stopping() {
            let before = self.session.borrow().count;
            let error = match self.keep_session(queue) {
                Ok(()) => return,
                Err(error) => error,
            };
            let had_session = self.session.borrow().count > before;
            self.session.send_modify(|session| session.connected = false);
            if had_session || !warned {
                warn!(%error, held = self.connections().len(), "no session with larderd; reconnecting");
            }
            warned = true;
            pause = if had_session { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
            self.refuse_for(pause, queue);
        }
    }

    /// Refuses requests for a while: without a session they would wait in vain.
    fn refuse_for(&self, pause: Duration, queue: &Receiver<Request>) {
        let mut rest = Some(pause);
        while let Some(left) = rest.filter(|_| !self.stopping()) {
            let started = Instant::now();
            self.wait(None, Some(left));
            for request in queue.try_iter() {
                let (Request::Offer(_, reply) | Request::Forget(_, reply)) = request;
                let _ = reply.send(Err(self.not_connected()));
            }
            rest = left.checked_sub(started.elapsed()).filter(|left| !left.is_zero());
        }
    }

    /// Keeps one session. Returns `Ok` when stopped.
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
                    Some(_) => Err(invalid("larderd sent a message without being asked")),
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
                (Message::HeldEnd(_), _) => break,
                (Message::Held(connection), Some(fd)) => (connection, fd),
                _ => return Err(invalid("larderd does not list the connections that it holds")),
            };
            let mount = MountId::try_from(connection.mount).map_err(invalid)?;
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
            let _ = socket.ask(Message::forget(mount.as_str()), None)?;
        }
        let ours: Vec<_> = self.connections().values().cloned().collect();
        for connection in ours.iter().filter(|ours| !held.contains(&ours.mount) && ours.is_alive()) {
            if let Err(reason) = self.offer(socket, connection)? {
                // The keeper keeps it: pods wait for it, and a later larderd may accept it.
                warn!(mount = %connection.mount, %reason, "larderd refuses a mount that pods use");
            }
        }
        Ok(())
    }

    fn offer(&self, socket: &Socket, connection: &Connection) -> io::Result<Result<(), String>> {
        self.counters.offers.fetch_add(1, Ordering::Relaxed);
        let answer = socket.ask(Message::Offer(connection.to_wire()), Some(connection.fd.as_fd()))?;
        if answer.is_err() {
            self.counters.refusals.fetch_add(1, Ordering::Relaxed);
        }
        Ok(answer)
    }

    /// Passes one request on. An error ends the session, and is sent to the requester too.
    fn serve(&self, socket: &Socket, request: Request) -> io::Result<()> {
        let (outcome, reply) = match request {
            Request::Offer(connection, reply) => {
                let outcome = self.offer(socket, &connection);
                if let Ok(Ok(())) = outcome {
                    self.connections().insert(connection.mount.clone(), connection);
                }
                (outcome, reply)
            }
            Request::Forget(mount, reply) => (socket.ask(Message::forget(mount.as_str()), None), reply),
        };
        let (answer, end) = match outcome {
            Ok(Ok(())) => (Ok(()), Ok(())),
            Ok(Err(reason)) => (Err(KeeperError::Refused { reason }), Ok(())),
            Err(error) => {
                let copy = io::Error::new(error.kind(), error.to_string());
                (Err(KeeperError::Broken { source: error }), Err(copy))
            }
        };
        let _ = reply.send(answer);
        end
    }

    /// Waits until woken, until the timeout, or until larderd sends something or closes (true).
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
        let readable = polled.get(1).is_some_and(|socket| !socket.revents().is_empty());
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        readable
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn connect(path: &Path, daemon_uid: u32) -> io::Result<Socket> {
    let socket = Socket::connect(path)?;
    let uid = socket.peer_uid()?;
    if uid != daemon_uid && uid != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "user {uid} listens at {}, but larderd must run as user {daemon_uid} or root (--daemon-uid)",
                path.display()
            ),
        ));
    }
    socket.set_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(socket)
}
