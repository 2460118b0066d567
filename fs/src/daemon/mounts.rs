//! The mounts of a daemon and the task that owns them.
//!
//! The cast: [`Owner`] is the task; an [`Event`] changes its state; it publishes a [`State`] after each event;
//! [`Mounts`] is the handle with which everything else sends events and reads the state. A [`Job`] makes a mount or
//! takes a connection.
//!
//! Invariants: nothing else changes the state. A mount is in the state for as long as the kernel may send it requests.
//! One job runs at a time, beside the task: a mount point that hangs holds up other jobs, and no other event. The end
//! of a session is an event; nothing polls for it. A caller gets its answer after the state that has it.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use larder_cachenode::DatasetSummary;
use larder_cachenode::node::{Found, Node, OpenDataset, User};
use larder_cachenode::request::DatasetRequest;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::error::DaemonError;
use crate::connection::{ServeConfig, serve};
use crate::mount::{MountConfig, mount};
use crate::requests::Requests;

/// Events that wait for the owner; more make their senders wait.
const EVENTS_WAITING: usize = 64;

/// One mount, or one connection that was handed over.
#[derive(Clone, Debug)]
pub(super) struct Mount {
    /// Unique for the life of the daemon.
    pub(super) number: u64,
    /// The dataset's name on this node.
    pub(super) id: String,
    /// A description, not the dataset itself: a copy of the state must not keep a dataset open.
    pub(super) summary: DatasetSummary,
    /// The request, with the newest credentials that proved good.
    pub(super) request: DatasetRequest,
    /// Of a connection: what the keeper gets back.
    pub(super) connection: Option<Arc<Connection>>,
    /// Of a connection: what this daemon has taken from the kernel and not answered.
    pub(super) requests: Option<Arc<Requests>>,
    /// Of a mount of our own: where it is.
    pub(super) dir: Option<PathBuf>,
}

/// A connection that the keeper holds too.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) fd: OwnedFd,
    /// Where its unanswered requests are.
    pub(super) memory: OwnedFd,
    pub(super) init: Vec<u8>,
}

/// The state that the handles read.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// The oldest first.
    pub(super) mounts: Vec<Arc<Mount>>,
    /// True once there was a mount.
    pub(super) had_mounts: bool,
    /// Connections that were handed over.
    pub(super) connections_taken: u64,
    /// Jobs that run or wait.
    pub(super) jobs: usize,
}

/// A change of the state.
#[derive(Debug)]
enum Event {
    /// A dataset is to be served.
    Serve(Job),
    /// Newer credentials for the connections of a dataset proved good.
    Renewed { id: String, request: DatasetRequest },
    /// The session of a mount has ended.
    Ended { number: u64, outcome: io::Result<()> },
}

/// A dataset that is to be served, and the caller that waits for it.
#[derive(Debug)]
struct Job {
    found: Found,
    request: DatasetRequest,
    target: Target,
    reply: oneshot::Sender<Served>,
}

/// Where a dataset is to be served.
#[derive(Debug)]
enum Target {
    /// At a folder, by a mount of our own.
    Folder(MountConfig),
    /// Over a connection whose mount the keeper made.
    Connection(Arc<Connection>, ServeConfig),
}

/// A job that is done, apart from its place in the state.
#[derive(Debug)]
struct Done {
    open: OpenDataset,
    connection: Option<(Arc<Connection>, Arc<Requests>)>,
    dir: Option<PathBuf>,
}

/// The job that runs.
#[derive(Debug)]
struct Running {
    number: u64,
    request: DatasetRequest,
    reply: oneshot::Sender<Served>,
    task: JoinHandle<Result<Done, DaemonError>>,
    /// The session's end, if that was reported before the mount was there.
    ended: Option<io::Result<()>>,
}

/// Waits for a session to end.
type Session = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// How a mount or an offer came out.
type Served = Result<Arc<Mount>, DaemonError>;

/// The handle on the mounts.
#[derive(Clone, Debug)]
pub(super) struct Mounts {
    events: mpsc::Sender<Event>,
    state: watch::Receiver<State>,
}

impl Mounts {
    /// The handle, and the task that must run for it to work.
    pub(super) fn new(node: Arc<Node>, stop_when_idle: bool) -> (Self, Owner) {
        let (events, received) = mpsc::channel(EVENTS_WAITING);
        let (publish, state) = watch::channel(State::default());
        let ended = events.downgrade();
        let owner = Owner {
            node,
            stop_when_idle,
            received,
            ended,
            publish,
            state: State::default(),
            waiting: VecDeque::new(),
            running: None,
            open: HashMap::new(),
            next: 0,
        };
        (Self { events, state }, owner)
    }

    /// The state after the last event.
    pub(super) fn now(&self) -> State {
        self.state.borrow().clone()
    }

    /// The state, and its changes.
    pub(super) fn watch(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Waits until the state is as wanted. Errors: the owner is gone.
    pub(super) async fn wait_until(&self, wanted: impl Fn(&State) -> bool) -> Result<(), DaemonError> {
        self.state.clone().wait_for(|state| wanted(state)).await.map(|_| ()).map_err(|_| DaemonError::Stopping)
    }

    /// Mounts a dataset. Not cancelled with its caller: the mount is made in any case.
    pub(super) async fn mount(&self, found: Found, request: DatasetRequest, config: MountConfig) -> Served {
        self.serve(found, request, Target::Folder(config)).await
    }

    /// Serves a connection.
    pub(super) async fn offer(
        &self,
        found: Found,
        request: DatasetRequest,
        connection: Arc<Connection>,
        config: ServeConfig,
    ) -> Served {
        self.serve(found, request, Target::Connection(connection, config)).await
    }

    async fn serve(&self, found: Found, request: DatasetRequest, target: Target) -> Served {
        let (reply, served) = oneshot::channel();
        self.send(Event::Serve(Job { found, request, target, reply })).await?;
        served.await.unwrap_or(Err(DaemonError::Stopping))
    }

    /// Notes newer credentials for the connections of a dataset.
    pub(super) async fn renewed(&self, id: &str, request: &DatasetRequest) -> Result<(), DaemonError> {
        self.send(Event::Renewed { id: id.to_owned(), request: request.clone() }).await
    }

    async fn send(&self, event: Event) -> Result<(), DaemonError> {
        self.events.send(event).await.map_err(|_| DaemonError::Stopping)
    }
}

/// The task that owns the mounts.
#[derive(Debug)]
pub(super) struct Owner {
    node: Arc<Node>,
    stop_when_idle: bool,
    received: mpsc::Receiver<Event>,
    /// For the threads that wait for sessions to end.
    ended: mpsc::WeakSender<Event>,
    publish: watch::Sender<State>,
    state: State,
    /// Jobs that wait for the running one. Bounded by their callers, each of which waits for its own.
    waiting: VecDeque<Job>,
    running: Option<Running>,
    /// The hold on its dataset that each mount has, by the mount's number.
    open: HashMap<u64, OpenDataset>,
    next: u64,
}

impl Owner {
    /// Applies events until no handle is left.
    pub(super) async fn run(mut self) {
        let mut draining = self.node.watch_draining();
        loop {
            self.start_next();
            tokio::select! {
                event = self.received.recv() => match event {
                    Some(event) => self.apply(event),
                    None => return,
                },
                done = Self::finished(&mut self.running) => self.finish(done),
                _ = draining.changed() => {}
            }
            let idle =
                self.state.had_mounts && self.state.mounts.is_empty() && self.jobs() == 0 && self.node.is_drained();
            if self.stop_when_idle && idle {
                self.node.stopping().cancel();
            }
        }
    }

    fn jobs(&self) -> usize {
        self.waiting.len() + usize::from(self.running.is_some())
    }

    fn publish(&mut self) {
        self.state.jobs = self.jobs();
        self.publish.send_replace(self.state.clone());
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Serve(job) => self.waiting.push_back(job),
            Event::Renewed { id, request } => self.renewed(&id, &request),
            Event::Ended { number, outcome } => self.ended(number, outcome),
        }
        self.publish();
    }

    /// Starts the next job, unless one is running.
    fn start_next(&mut self) {
        if self.running.is_some() {
            return;
        }
        let Some(Job { found, request, target, reply }) = self.waiting.pop_front() else { return };
        // There is a handle, whose caller waits for this job; if it has just gone, so has the daemon.
        let Some(events) = self.ended.upgrade() else { return };
        let number = self.next;
        self.next += 1;
        let (node, wanted) = (Arc::clone(&self.node), request.clone());
        let task = self.node.runtime().spawn(async move {
            let sessions = watch_session(number, events)?;
            make(&node, found, &wanted, target, sessions).await
        });
        self.running = Some(Running { number, request, reply, task, ended: None });
    }

    /// The outcome of the running job; pending if there is none. Cancel-safe.
    async fn finished(running: &mut Option<Running>) -> Result<Done, DaemonError> {
        match running {
            Some(running) => (&mut running.task).await.unwrap_or_else(|error| Err(error.into())),
            None => std::future::pending().await,
        }
    }

    fn finish(&mut self, done: Result<Done, DaemonError>) {
        let Some(Running { number, request, reply, ended, .. }) = self.running.take() else { return };
        let served = done.map(|Done { open, connection, dir }| {
            let (connection, requests) = connection.unzip();
            let (id, summary) = (open.id().to_owned(), open.summary());
            let mount = Arc::new(Mount { number, id, summary, request, connection, requests, dir });
            if mount.connection.is_some() {
                info!(mount = mount.id, "connection taken");
                self.state.connections_taken += 1;
            }
            self.open.insert(number, open);
            self.state.had_mounts = true;
            self.state.mounts.push(Arc::clone(&mount));
            mount
        });
        self.publish();
        // A caller that is gone leaves the mount as it is.
        let _ = reply.send(served);
        if let Some(outcome) = ended {
            self.ended(number, outcome);
            self.publish();
        }
    }

    fn renewed(&mut self, id: &str, request: &DatasetRequest) {
        for mount in self.state.mounts.iter_mut().filter(|mount| mount.id == id && mount.connection.is_some()) {
            Arc::make_mut(mount).request.credentials.clone_from(&request.credentials);
        }
    }

    fn ended(&mut self, number: u64, outcome: io::Result<()>) {
        if let Some(running) = self.running.as_mut().filter(|running| running.number == number) {
            // The session was over before its mount was there.
            running.ended = Some(outcome);
            return;
        }
        let Some(at) = self.state.mounts.iter().position(|mount| mount.number == number) else { return };
        let mount = self.state.mounts.remove(at);
        if let Err(error) = outcome {
            warn!(mount = mount.id, %error, "the mount's session failed");
        }
        info!(mount = mount.id, dir = ?mount.dir, "unmounted");
        // Its dataset is closed, unless another mount serves it. It drains before anyone can see that the mount is
        // gone.
        self.open.remove(&number);
    }
}

/// A thread that waits for a session to end and reports it. It takes the session over the channel, and is there before
/// the session is, so that no session stays unwatched.
fn watch_session(number: u64, events: mpsc::Sender<Event>) -> Result<SyncSender<Session>, DaemonError> {
    let (give, take) = sync_channel::<Session>(1);
    let watch = move || {
        // Nothing comes if the job failed.
        let Ok(session) = take.recv() else { return };
        let outcome = session();
        let _ = events.blocking_send(Event::Ended { number, outcome });
    };
    let thread = std::thread::Builder::new().name("session-end".to_owned()).spawn(watch);
    thread.map_err(|source| DaemonError::Connection { source })?;
    Ok(give)
}

/// Opens a dataset and serves it.
async fn make(
    node: &Arc<Node>,
    found: Found,
    request: &DatasetRequest,
    target: Target,
    sessions: SyncSender<Session>,
) -> Result<Done, DaemonError> {
    let user = match target {
        Target::Folder(_) => User::Mount,
        Target::Connection(..) => User::Connection,
    };
    let open = node.open_dataset(found, request, user).await?;
    let (dataset, stopping) = (Arc::clone(open.dataset()), node.stopping().clone());
    let start = move || match target {
        Target::Folder(config) => {
            let mounted = mount(dataset, &config)?;
            if stopping.is_cancelled() {
                // Dropping it unmounts: the daemon may have looked for its mounts already.
                return Err(DaemonError::Stopping);
            }
            let dir = mounted.path().to_owned();
            let _ = sessions.send(Box::new(move || mounted.wait()));
            Ok((None, Some(dir)))
        }
        Target::Connection(connection, config) => {
            let serving = connection
                .fd
                .try_clone()
                .and_then(|fd| serve(dataset, fd, &connection.init, connection.memory.as_fd(), config))
                .map_err(|source| DaemonError::Connection { source })?;
            let requests = Arc::clone(serving.requests());
            let _ = sessions.send(Box::new(move || serving.wait()));
            Ok((Some((connection, requests)), None))
        }
    };
    let (connection, dir) = tokio::task::spawn_blocking(start).await??;
    Ok(Done { open, connection, dir })
}
