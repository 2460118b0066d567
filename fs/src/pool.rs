//! The threads that serve all mounts of a process.
//!
//! A mount without requests takes no thread. All connections are in one epoll instance, each armed for one event. The
//! thread that gets the event takes a slot of the connection, reads a request and arms the connection again, so that
//! the next request wakes the next thread. After its answer it continues with the same connection while that has
//! requests: a busy mount costs two system calls a request, and no wake-up. After [`BURST`] requests it looks at the
//! other connections. The slots of a connection limit the threads that serve it at the same time, and the pool has more
//! threads than that. A mount whose reads wait for a slow disk therefore does not keep all of them.
//!
//! All threads start before the first connection is served. A further mount takes no further thread, so none is refused
//! for the lack of one.
//!
//! Invariants: a connection is armed, or a thread has its event and will arm it, or all of its slots are in use and the
//! next thread that gives one back will. A request that was taken is answered, or kept, before its slot is given back.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::sync::oneshot;
use tracing::warn;

use crate::limits;
use crate::slots::Slots;
use crate::wire::{Reply, Request, operation};

#[cfg(test)]
mod tests;

/// The most requests that a thread serves for one connection before it looks at the others.
const BURST: usize = 16;

/// How long a thread without requests keeps its large buffers.
const IDLE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The most threads of a pool.
const THREADS_MAX: usize = 512;

/// The number of the event that ends the threads.
const STOP: u64 = u64::MAX;

/// Answers the requests of a connection. Concurrent calls are possible.
pub(crate) trait Serve: Debug + Send + Sync + 'static {
    /// Answers a request, now or later. A panic is counted there and fails one request.
    fn answer(&self, request: &Request<'_>, reply: Reply);
}

/// The threads, and the connections that they serve. They end after the last reference was dropped.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

/// A connection that is being served, until its mount ends.
#[derive(Debug)]
pub(crate) struct Session {
    ended: oneshot::Receiver<io::Result<()>>,
    _pool: Arc<Pool>,
}

#[derive(Debug)]
struct Shared {
    epoll: OwnedFd,
    /// Readable once the pool ends.
    stop: OwnedFd,
    connections: RwLock<HashMap<u64, Arc<Connection>>>,
    next: AtomicU64,
}

/// A connection. Its fields are dropped in this order, so that its end is reported when it uses nothing anymore.
#[derive(Debug)]
struct Connection {
    number: u64,
    front: Box<dyn Serve>,
    slots: Slots,
    fuse: Arc<OwnedFd>,
    end: End,
}

/// Reports the end of a connection when it is dropped.
#[derive(Debug)]
struct End {
    outcome: Mutex<io::Result<()>>,
    report: Option<oneshot::Sender<io::Result<()>>>,
}

impl Drop for End {
    fn drop(&mut self) {
        let outcome = self.outcome.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(report) = self.report.take() {
            let _ = report.send(std::mem::replace(outcome, Ok(())));
        }
    }
}

/// The number of threads that serve one mount at the same time unless a flag sets another: half of the cores, at least
/// 16, since threads also wait for the disk, and at most 64.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2).clamp(16, 64)
}

impl Pool {
    /// Starts threads for many mounts, of which each is served by at most `threads_of_a_mount` at the same time: four
    /// times as many, but at most a quarter of the threads that the system allows this process. Errors: no thread can
    /// be started.
    pub fn for_many_mounts(threads_of_a_mount: usize) -> io::Result<Arc<Self>> {
        let wanted = (4 * threads_of_a_mount).min(THREADS_MAX);
        let allowed = limits::threads().map_or(wanted, |most| usize::try_from(most / 4).unwrap_or(wanted));
        Self::start(wanted.min(allowed))
    }

    /// Starts this many threads, and at least one. If the system allows fewer, half of those that could be started stay
    /// and the others leave room for the rest of the process. Errors: no thread can be started.
    pub fn start(threads: usize) -> io::Result<Arc<Self>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &stop, EventData::new_u64(STOP), EventFlags::IN)
            .map_err(|error| limits::named(error.into()))?;
        let (connections, next) = (RwLock::default(), AtomicU64::new(0));
        let shared = Arc::new(Shared { epoll, stop, connections, next });
        // A thread begins when it receives a message, and ends if there will be none.
        let mut parked = Vec::new();
        while parked.len() < threads.max(1) {
            let (begin, begun) = sync_channel::<()>(1);
            let shared = Arc::clone(&shared);
            let work = move || {
                if begun.recv().is_ok() {
                    shared.work();
                }
            };
            match std::thread::Builder::new().name(format!("fuse-{}", parked.len())).spawn(work) {
                Ok(_) => parked.push(begin),
                Err(error) if parked.is_empty() => return Err(limits::named(error)),
                Err(error) => {
                    let kept = parked.len().div_ceil(2);
                    let error = limits::named(error);
                    let error = larder_dataset::Chain(&error);
                    warn!(%error, threads, kept, "fewer threads serve the mounts of this node than they should");
                    parked.truncate(kept);
                    break;
                }
            }
        }
        for begin in parked {
            let _ = begin.send(());
        }
        Ok(Arc::new(Self { shared }))
    }

    /// Serves a connection: `front` answers the requests that threads receive in `slots`. Errors: the descriptor cannot
    /// be watched. The connection has lost no request then.
    pub(crate) fn serve(
        self: &Arc<Self>,
        fuse: Arc<OwnedFd>,
        slots: Slots,
        front: Box<dyn Serve>,
    ) -> io::Result<Session> {
        // Touches the first slot. The kernel has its page before the first request.
        if let Some(slot) = slots.take() {
            slots.give_back(slot);
        }
        set_blocking(&fuse, false)?;
        let (report, ended) = oneshot::channel();
        let end = End { outcome: Mutex::new(Ok(())), report: Some(report) };
        let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection { number, front, slots, fuse, end });
        self.shared.connections().insert(number, Arc::clone(&connection));
        let armed = EventFlags::IN | EventFlags::ONESHOT;
        if let Err(error) = epoll::add(&self.shared.epoll, &connection.fuse, EventData::new_u64(number), armed) {
            self.shared.connections().remove(&number);
            return Err(error.into());
        }
        Ok(Session { ended, _pool: Arc::clone(self) })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // No thread reads the number, so each of them gets the event.
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
    }
}

impl Session {
    /// Waits until the mount has ended and no thread serves it. Blocks; do not call it on the runtime's threads.
    pub(crate) fn wait(self) -> io::Result<()> {
        self.ended.blocking_recv().unwrap_or(Ok(()))
    }

    /// Like [`wait`](Self::wait), without blocking.
    pub(crate) async fn ended(self) -> io::Result<()> {
        self.ended.await.unwrap_or(Ok(()))
    }
}

/// Sets whether reads of a connection wait for a request. All processes that have the connection share this setting.
/// Releases before 0.4 need it for their reads.
pub(crate) fn set_blocking(fuse: impl AsFd, blocking: bool) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(&fuse)?;
    let flags = if blocking { flags - OFlags::NONBLOCK } else { flags | OFlags::NONBLOCK };
    Ok(rustix::fs::fcntl_setfl(&fuse, flags)?)
}

impl Shared {
    fn connections(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.connections.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves connections until the pool ends.
    fn work(&self) {
        let mut timeout = None;
        loop {
            let mut events = [MaybeUninit::<Event>::uninit(); 1];
            let number = match epoll::wait(&self.epoll, &mut events, timeout) {
                Ok((events, _)) => events.first().map(|event| event.data.u64()),
                Err(_) => continue,
            };
            match number {
                Some(STOP) => return,
                Some(number) => {
                    let connections = self.connections.read().unwrap_or_else(PoisonError::into_inner);
                    let connection = connections.get(&number).cloned();
                    drop(connections);
                    if let Some(connection) = connection {
                        self.serve_some(&connection);
                    }
                    timeout = Some(&IDLE);
                }
                None => {
                    larder_cachenode::dataset::release_buffers();
                    timeout = None;
                }
            }
        }
    }

    /// Serves requests of a connection while it has some, up to [`BURST`].
    fn serve_some(&self, connection: &Connection) {
        let Some(mut slot) = connection.slots.take() else { return };
        let mut is_armed = false;
        for _ in 0..BURST {
            let received = slot.receive(connection.fuse.as_fd());
            if received == Err(Errno::AGAIN) {
                break;
            }
            if !is_armed {
                self.arm(connection);
                is_armed = true;
            }
            let ended = match received {
                Ok(request) => connection.handle(request),
                // The request was interrupted before it was taken.
                Err(Errno::NOENT | Errno::INTR) => None,
                Err(Errno::NODEV) => Some(Ok(())),
                Err(errno) => Some(Err(errno.into())),
            };
            if let Some(outcome) = ended {
                return self.end(connection, outcome);
            }
        }
        let is_wanted = connection.slots.give_back(slot);
        if is_wanted || !is_armed {
            self.arm(connection);
        }
    }

    fn arm(&self, connection: &Connection) {
        // This fails only if the connection has ended.
        let (data, armed) = (EventData::new_u64(connection.number), EventFlags::IN | EventFlags::ONESHOT);
        let _ = epoll::modify(&self.epoll, &connection.fuse, data, armed);
    }

    fn end(&self, connection: &Connection, outcome: io::Result<()>) {
        if self.connections().remove(&connection.number).is_some() {
            let _ = epoll::delete(&self.epoll, &connection.fuse);
            *connection.end.outcome.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        }
    }
}

impl Connection {
    /// Handles one request. Returns the outcome of the connection if it has ended.
    fn handle(&self, request: &[u8]) -> Option<io::Result<()>> {
        if request.is_empty() {
            // A socket in place of /dev/fuse has closed.
            return Some(Ok(()));
        }
        let Some(request) = Request::parse(request) else {
            return Some(Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel sent an invalid request")));
        };
        match request.operation {
            // Inodes have no state, and the kernel expects no answer.
            operation::FORGET | operation::BATCH_FORGET | operation::NOTIFY_REPLY => None,
            operation::DESTROY => {
                Reply::new(&self.fuse, request.unique).data(&[]);
                Some(Ok(()))
            }
            _ => {
                self.front.answer(&request, Reply::new(&self.fuse, request.unique));
                None
            }
        }
    }
}
