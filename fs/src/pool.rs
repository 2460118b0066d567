//! The threads that serve all mounts of a process.
//!
//! A thread that serves a busy mount stays with it, blocked in read(2) between two requests: a request costs one system
//! call to receive, and wakes one thread. A thread that takes a request and leaves no other one waiting in a read arms
//! the connection in an epoll instance, for one event, if a slot is left. The next request then brings another thread.
//! A busy mount soon has one thread more than it uses, and makes no epoll call.
//!
//! A mount without requests takes no thread. The housekeeper, one thread for all mounts, interrupts threads that have
//! waited in one read since it last looked, and the last of them arms the connection. It looks once a second, and more
//! often while a connection has an event and the pool has no free thread. Threads that never wait then look for such an
//! event themselves, once they have served [`BURST`] requests. The slots of a connection limit its threads, and the
//! pool has more than that ([`Pool::most_of_one`]). A mount whose reads wait for a slow disk therefore does not keep
//! all of them.
//!
//! All threads start before the first connection is served. A further mount takes no further thread, so none is refused
//! for the lack of one.
//!
//! Invariants: a connection is armed, or a thread has its event and will serve it, or a thread that serves it will read
//! again, or arm it before it leaves. A request that was taken is answered, or kept, before its thread reads again or
//! gives the slot back.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use tokio::sync::oneshot;
use tracing::warn;

use crate::slots::Slots;
use crate::wire::{Reply, Request, operation};
use crate::{interrupt, limits};

#[cfg(test)]
mod tests;

/// The number of requests that a thread serves for one connection before it looks at the others, if they lack threads.
const BURST: u64 = 16;

/// How long a thread waits for the next request of a connection, at least, before it is taken back.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same while another connection lacks a thread.
const HASTE: Duration = Duration::from_millis(2);

/// Requests that have waited for a thread for less than this are not reported.
const QUEUED_LEAST: Duration = Duration::from_millis(10);

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// How long a free thread keeps its large buffers.
const IDLE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The most threads of a pool.
const THREADS_MAX: usize = 512;

/// The number of the event that ends the threads.
const STOP: u64 = u64::MAX;

/// Answers the requests of a connection. Concurrent calls are possible.
pub(crate) trait Serve: Debug + Send + Sync + 'static {
    /// Answers a request, now or later. A panic is counted there and fails one request.
    fn answer(&self, request: &Request<'_>, reply: Reply);

    /// Takes pages that were asked for. The kernel expects no answer.
    fn retrieved(&self, _: &Request<'_>) {}

    /// Notes that requests have waited in the kernel since then, because all slots were taken.
    fn were_queued(&self, _since: Instant) {}
}

/// The threads, and the connections that they serve. They end after the last reference was dropped.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    threads: usize,
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
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    next: AtomicU64,
    /// The number of threads that wait for an event.
    free: AtomicUsize,
    /// Whether an event may be waiting for a thread while none is free.
    is_short: AtomicBool,
    housekeeper: Thread,
}

/// A thread of the pool, as the housekeeper sees it.
#[derive(Debug)]
struct Attendant {
    /// How often it has begun and ended to wait for a request: odd while it waits.
    turns: Arc<AtomicU64>,
    /// The turns when the housekeeper last looked.
    seen: u64,
    thread: JoinHandle<()>,
}

/// A connection. Its fields are dropped in this order, so that its end is reported when it uses nothing anymore.
#[derive(Debug)]
struct Connection {
    number: u64,
    front: Box<dyn Serve>,
    slots: Slots,
    fuse: Arc<OwnedFd>,
    /// Whether the next request brings a thread: the connection is armed, or a thread is about to serve its event.
    is_armed: AtomicBool,
    /// The number of threads that wait for its next request.
    waiting: AtomicUsize,
    /// Whether its threads leave it.
    is_ended: AtomicBool,
    began: Instant,
    /// Since when all slots are taken, in nanoseconds since it began; 0 if they are not.
    full_since: AtomicU64,
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

    /// Starts this many threads, and at least one, and the housekeeper. If the system allows fewer, half of those that
    /// could be started stay and the others leave room for the rest of the process. Errors: no thread can be started.
    pub fn start(threads: usize) -> io::Result<Arc<Self>> {
        interrupt::prepare()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &stop, EventData::new_u64(STOP), EventFlags::IN)
            .map_err(|error| limits::named(error.into()))?;
        // A thread begins when it receives a message, and ends if there will be none.
        let (begin_housekeeping, begun) = sync_channel::<(Arc<Shared>, Vec<Attendant>)>(1);
        let housekeep = move || {
            if let Ok((shared, attendants)) = begun.recv() {
                shared.housekeep(attendants);
            }
        };
        let housekeeper =
            std::thread::Builder::new().name("fuse-keep".to_owned()).spawn(housekeep).map_err(limits::named)?;
        let shared = Arc::new(Shared {
            epoll,
            stop,
            connections: Mutex::default(),
            next: AtomicU64::new(0),
            free: AtomicUsize::new(0),
            is_short: AtomicBool::new(false),
            housekeeper: housekeeper.thread().clone(),
        });
        let mut parked = Vec::new();
        while parked.len() < threads.max(1) {
            let (begin, begun) = sync_channel::<()>(1);
            let turns = Arc::new(AtomicU64::new(0));
            let work = {
                let (shared, turns) = (Arc::clone(&shared), Arc::clone(&turns));
                move || {
                    if begun.recv().is_ok() {
                        shared.work(&turns);
                    }
                }
            };
            match std::thread::Builder::new().name(format!("fuse-{}", parked.len())).spawn(work) {
                Ok(thread) => parked.push((begin, Attendant { turns, seen: 0, thread })),
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
        let (begins, attendants): (Vec<_>, Vec<_>) = parked.into_iter().unzip();
        for begin in begins {
            let _ = begin.send(());
        }
        let threads = attendants.len();
        let _ = begin_housekeeping.send((Arc::clone(&shared), attendants));
        Ok(Arc::new(Self { shared, threads }))
    }

    /// The most threads that a mount may use if it wants so many: three quarters of all. Its requests may take long,
    /// for example if its disk hangs, and the pool may be smaller than planned.
    pub(crate) fn most_of_one(&self, wanted: usize) -> usize {
        wanted.min(self.threads * 3 / 4).max(1)
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
        let (report, ended) = oneshot::channel();
        let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection {
            number,
            front,
            slots,
            fuse,
            is_armed: AtomicBool::new(true),
            waiting: AtomicUsize::new(0),
            is_ended: AtomicBool::new(false),
            began: Instant::now(),
            full_since: AtomicU64::new(0),
            end: End { outcome: Mutex::new(Ok(())), report: Some(report) },
        });
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

impl Shared {
    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves connections until the pool ends.
    fn work(&self, turns: &AtomicU64) {
        let mut next = None;
        loop {
            let number = next.take().unwrap_or_else(|| self.wait());
            if number == STOP {
                return;
            }
            let connection = self.connections().get(&number).cloned();
            if let Some(connection) = connection {
                connection.is_armed.store(false, Ordering::SeqCst);
                next = self.attend(&connection, turns);
            }
        }
    }

    /// Waits for an event, and returns its number.
    fn wait(&self) -> u64 {
        self.free.fetch_add(1, Ordering::SeqCst);
        let number = self.event(Some(&IDLE)).unwrap_or_else(|| {
            larder_cachenode::dataset::release_buffers();
            loop {
                if let Some(number) = self.event(None) {
                    break number;
                }
            }
        });
        if self.free.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.housekeeper.unpark();
        }
        number
    }

    /// The number of an event. `None` after the timeout or an interruption.
    fn event(&self, timeout: Option<&Timespec>) -> Option<u64> {
        let mut events = [MaybeUninit::<Event>::uninit(); 1];
        let (events, _) = epoll::wait(&self.epoll, &mut events, timeout).ok()?;
        events.first().map(|event| event.data.u64())
    }

    /// Serves a connection until it ends, the housekeeper interrupts this thread, or another connection lacks one.
    /// Returns the number of that connection's event.
    fn attend(&self, connection: &Connection, turns: &AtomicU64) -> Option<u64> {
        let mut slot = connection.slots.take()?;
        let mut next = None;
        let mut requests: u64 = 0;
        while next.is_none() && !connection.is_ended.load(Ordering::Relaxed) {
            connection.note_free();
            connection.waiting.fetch_add(1, Ordering::SeqCst);
            turns.fetch_add(1, Ordering::Relaxed);
            let received = slot.receive(connection.fuse.as_fd());
            turns.fetch_add(1, Ordering::Relaxed);
            let was_last = connection.waiting.fetch_sub(1, Ordering::SeqCst) == 1;
            // Without a slot left, no other thread could serve it. A thread that frees one arms it if none waits.
            if was_last && received.is_ok() {
                if connection.slots.are_all_taken() { connection.note_full() } else { self.arm(connection) }
            }
            let ended = match received {
                Ok(request) => connection.handle(request),
                // The request was interrupted before it was taken.
                Err(Errno::NOENT) => None,
                // EAGAIN: another process has made the descriptor, which it shares, non-blocking.
                Err(Errno::INTR | Errno::AGAIN) => break,
                Err(Errno::NODEV) => Some(Ok(())),
                Err(errno) => Some(Err(errno.into())),
            };
            if let Some(outcome) = ended {
                self.end(connection, outcome);
            }
            requests += 1;
            if requests >= BURST && self.is_short.load(Ordering::Relaxed) {
                next = self.event(Some(&NO_TIME));
                self.is_short.store(next.is_some(), Ordering::Relaxed);
            }
        }
        connection.slots.give_back(slot);
        if connection.waiting.load(Ordering::SeqCst) == 0 {
            self.arm(connection);
        }
        next
    }

    /// Makes the next request of a connection bring a thread.
    fn arm(&self, connection: &Connection) {
        if !connection.is_armed.swap(true, Ordering::SeqCst) {
            // This fails only if the connection has ended.
            let (data, armed) = (EventData::new_u64(connection.number), EventFlags::IN | EventFlags::ONESHOT);
            let _ = epoll::modify(&self.epoll, &connection.fuse, data, armed);
        }
    }

    /// Takes threads back from connections without requests, until all threads have ended.
    fn housekeep(&self, mut attendants: Vec<Attendant>) {
        let mut looked = Instant::now();
        while attendants.iter().any(|attendant| !attendant.thread.is_finished()) {
            let is_short = if self.free.load(Ordering::SeqCst) == 0 {
                self.has_event(PATIENCE)
            } else {
                // The thread that leaves no free one ends this wait.
                std::thread::park_timeout(PATIENCE);
                false
            };
            if is_short {
                self.is_short.store(true, Ordering::Relaxed);
                std::thread::sleep(HASTE);
            } else if looked.elapsed() < PATIENCE {
                continue;
            }
            looked = Instant::now();
            for attendant in &mut attendants {
                let turns = attendant.turns.load(Ordering::Relaxed);
                // A signal that comes before the thread is in the system call is lost, and repeated at the next look.
                if turns == attendant.seen && turns & 1 == 1 {
                    interrupt::interrupt(&attendant.thread);
                }
                attendant.seen = turns;
            }
        }
    }

    /// Whether an event waits for a thread, or one does within this time. The end of the pool is one.
    fn has_event(&self, timeout: Duration) -> bool {
        let timeout = Timespec::try_from(timeout).ok();
        poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }

    fn end(&self, connection: &Connection, outcome: io::Result<()>) {
        connection.is_ended.store(true, Ordering::Relaxed);
        if self.connections().remove(&connection.number).is_some() {
            let _ = epoll::delete(&self.epoll, &connection.fuse);
            *connection.end.outcome.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        }
    }
}

impl Connection {
    /// Notes that no thread is left for the next request.
    fn note_full(&self) {
        let since = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.full_since.store(since.max(1), Ordering::Relaxed);
    }

    /// Notes that a thread takes the next request.
    fn note_free(&self) {
        if self.full_since.load(Ordering::Relaxed) == 0 {
            return;
        }
        let since = self.began + Duration::from_nanos(self.full_since.swap(0, Ordering::Relaxed));
        // A short time is that of ordinary requests.
        if since > self.began && since.elapsed() >= QUEUED_LEAST && self.has_request() {
            self.front.were_queued(since);
        }
    }

    /// Whether the kernel has a request.
    fn has_request(&self) -> bool {
        poll(&mut [PollFd::new(&self.fuse, PollFlags::IN)], Some(&NO_TIME)).is_ok_and(|ready| ready > 0)
    }

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
            operation::FORGET | operation::BATCH_FORGET => None,
            operation::NOTIFY_REPLY => {
                self.front.retrieved(&request);
                None
            }
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
