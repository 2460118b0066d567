//! The mounts of a daemon, and the task that owns them.
//!
//! Its parts: [`Owner`] is the task; an [`Event`] changes its state; the task publishes a [`State`] after each event.
//! All other code uses [`Mounts`], the handle, to send events and to read the state. A [`Job`] makes a mount or takes a
//! connection.
//!
//! Invariants: only the task changes the state. A mount is in the state while the kernel may send it requests. A few
//! jobs run at a time, concurrently with the task, so that a restart serves many connections soon; of those that make
//! mounts one at a time, since a mount point that hangs must not occupy all. The end of a session is an event, so no
//! code polls for it. A caller gets its answer after the state that includes the result.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use larder_cachenode::DatasetSummary;
use larder_cachenode::dataset::Dataset;
use larder_cachenode::node::{Found, Node, OpenDataset, User};
use larder_cachenode::request::DatasetRequest;
use larder_daemon_api::v1;
use larder_telemetry::Heartbeat;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{self, JoinSet};
use tracing::{info, warn};

use super::convert;
use super::descriptor_store::{DescriptorStore, OwnMount};
use super::error::DaemonError;
use crate::connection::{ServeConfig, serve_lending};
use crate::limits;
use crate::mount::{MountConfig, detach, mount, mount_unserved, raise_read_ahead};
use crate::passthrough::Lender;
use crate::pool::Pool;
use crate::requests::Requests;

/// The capacity of the owner's queue of events. Senders wait while it is full.
const EVENTS_WAITING: usize = 64;

/// The most jobs that run at a time. Each waits for the disk most of the time.
const JOBS_AT_ONCE: usize = 8;

/// One mount, or one connection that was handed over.
#[derive(Clone, Debug)]
pub(super) struct Mount {
    /// Unique within this run of the daemon.
    pub(super) number: u64,
    /// The dataset's name on this node.
    pub(super) id: String,
    /// A description instead of the dataset itself: a copy of the state must not keep a dataset open.
    pub(super) summary: DatasetSummary,
    /// The request, with the newest credentials that worked.
    pub(super) request: DatasetRequest,
    /// The connection to return to the keeper. None for a mount of our own.
    pub(super) connection: Option<Arc<Connection>>,
    /// The requests that this daemon has taken from the kernel and not answered. None for a mount that ends with it.
    pub(super) requests: Option<Arc<Requests>>,
    /// The folder of a mount of our own. None for a connection.
    pub(super) dir: Option<PathBuf>,
    /// A mount of our own that the descriptor store keeps.
    pub(super) own: Option<OwnMount>,
}

/// A connection of which the keeper or the descriptor store holds duplicates.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) fd: OwnedFd,
    /// The memory of the connection's unanswered requests.
    pub(super) memory: OwnedFd,
    pub(super) init: Vec<u8>,
    /// The keeper, which lets the kernel read cached files by itself.
    pub(super) lender: Option<Lender>,
    /// The mount of our own that it belongs to; None if the keeper made the mount.
    pub(super) own: Option<OwnMount>,
}

/// The state that the handles can read.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Ordered by age, the oldest first.
    pub(super) mounts: Vec<Arc<Mount>>,
    /// True once there has been a mount.
    pub(super) had_mounts: bool,
    /// The number of connections that were handed over.
    pub(super) connections_taken: u64,
    /// The number of jobs that are running or waiting.
    pub(super) jobs: usize,
}

/// A change of the state.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "few are queued, and each is moved once")]
enum Event {
    /// Serve a dataset.
    Serve(Job),
    /// Newer credentials for the connections of a dataset have worked.
    Renewed { id: String, request: DatasetRequest },
    /// The session of a mount has ended.
    Ended { number: u64, outcome: io::Result<()> },
}

/// A dataset to serve, and the caller that waits for it.
#[derive(Debug)]
struct Job {
    found: Found,
    request: DatasetRequest,
    target: Target,
    reply: oneshot::Sender<Served>,
}

/// Where to serve a dataset.
#[derive(Debug)]
enum Target {
    /// At a folder, through a mount of our own.
    Folder(MountConfig),
    /// Over a connection whose mount is there already.
    Connection(Arc<Connection>, ServeConfig),
}

impl Target {
    fn makes_mount(&self) -> bool {
        matches!(self, Self::Folder(_))
    }
}

/// A finished job whose result is not in the state yet.
#[derive(Debug)]
struct Done {
    open: OpenDataset,
    connection: Option<(Arc<Connection>, Arc<Requests>)>,
    dir: Option<PathBuf>,
}

/// A job that is running.
#[derive(Debug)]
struct Running {
    number: u64,
    request: DatasetRequest,
    reply: oneshot::Sender<Served>,
    task: task::Id,
    /// True if it makes a mount of our own.
    makes_mount: bool,
    /// The end of the session, if it was reported before the job had finished.
    ended: Option<io::Result<()>>,
}

/// The result of a mount or an offer.
type Served = Result<Arc<Mount>, DaemonError>;

/// The handle to the mounts.
#[derive(Clone, Debug)]
pub(super) struct Mounts {
    events: mpsc::Sender<Event>,
    state: watch::Receiver<State>,
    heartbeat: Heartbeat,
}

impl Mounts {
    /// Creates the handle and the task. The handle works only while the task runs. The mounts that it makes are kept in
    /// `store`, if there is one.
    pub(super) fn new(
        node: Arc<Node>,
        pool: Arc<Pool>,
        store: Option<Arc<DescriptorStore>>,
        stop_when_idle: bool,
    ) -> (Self, Owner) {
        let (events, received) = mpsc::channel(EVENTS_WAITING);
        let (publish, state) = watch::channel(State::default());
        let heartbeat = Heartbeat::default();
        let ended = events.downgrade();
        let owner = Owner {
            node,
            pool,
            store,
            stop_when_idle,
            received,
            ended,
            publish,
            heartbeat: heartbeat.clone(),
            state: State::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            tasks: JoinSet::new(),
            open: HashMap::new(),
            next: 0,
        };
        (Self { events, state, heartbeat }, owner)
    }

    /// The heartbeat of the task.
    pub(super) fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    /// The state after the last event.
    pub(super) fn now(&self) -> State {
        self.state.borrow().clone()
    }

    /// A receiver of the state and its changes.
    pub(super) fn watch(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Waits until `wanted` returns true for the state. Errors: the owner task has ended.
    pub(super) async fn wait_until(&self, wanted: impl Fn(&State) -> bool) -> Result<(), DaemonError> {
        self.state.clone().wait_for(|state| wanted(state)).await.map(|_| ()).map_err(|_| DaemonError::Stopping)
    }

    /// Mounts a dataset. The mount is completed even if the caller drops the future.
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

    /// Records newer credentials for the connections of a dataset.
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
    /// The threads that serve all mounts.
    pool: Arc<Pool>,
    store: Option<Arc<DescriptorStore>>,
    stop_when_idle: bool,
    received: mpsc::Receiver<Event>,
    /// For the tasks that wait for sessions to end. Weak, so that the task ends with the last handle.
    ended: mpsc::WeakSender<Event>,
    publish: watch::Sender<State>,
    heartbeat: Heartbeat,
    state: State,
    /// Jobs that wait for running ones. Bounded by the number of callers, since each waits for its job.
    waiting: VecDeque<Job>,
    /// The oldest first.
    running: Vec<Running>,
    tasks: JoinSet<Result<Done, DaemonError>>,
    /// Keeps the dataset of each mount open, by the mount's number.
    open: HashMap<u64, OpenDataset>,
    next: u64,
}

impl Owner {
    /// Applies events until every handle is dropped.
    pub(super) async fn run(mut self) {
        let mut draining = self.node.watch_draining();
        loop {
            self.heartbeat.beat();
            while let Some(at) = self.startable() {
                self.start(at);
            }
            tokio::select! {
                event = self.received.recv() => match event {
                    Some(event) => self.apply(event),
                    None => return self.tasks.detach_all(),
                },
                (task, done) = Self::finished(&mut self.tasks) => self.finish(task, done),
                _ = draining.changed() => {}
                () = tokio::time::sleep(Heartbeat::EVERY) => {}
            }
            let idle =
                self.state.had_mounts && self.state.mounts.is_empty() && self.jobs() == 0 && self.node.is_drained();
            if self.stop_when_idle && idle {
                self.node.stopping().cancel();
            }
        }
    }

    fn jobs(&self) -> usize {
        self.waiting.len() + self.running.len()
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

    /// The first waiting job that may run now. A connection does not wait behind mounts that wait for another one,
    /// whose mount point may hang.
    fn startable(&self) -> Option<usize> {
        let is_making = self.running.iter().any(|running| running.makes_mount);
        let may_run = |job: &Job| !is_making || !job.target.makes_mount();
        self.waiting.iter().position(may_run).filter(|_| self.running.len() < JOBS_AT_ONCE)
    }

    fn start(&mut self, at: usize) {
        let Some(Job { found, request, target, reply }) = self.waiting.remove(at) else { return };
        // A handle exists, because its caller waits for this job. If it was dropped just now, the daemon is ending.
        let Some(events) = self.ended.upgrade() else { return };
        let number = self.next;
        self.next += 1;
        let (node, pool, store) = (Arc::clone(&self.node), Arc::clone(&self.pool), self.store.clone());
        let (wanted, makes_mount) = (request.clone(), target.makes_mount());
        let sessions = Sessions { number, events };
        let job = async move { make(&node, pool, store, found, wanted, target, sessions).await };
        let task = self.tasks.spawn_on(job, self.node.runtime()).id();
        self.running.push(Running { number, request, reply, task, makes_mount, ended: None });
    }

    /// The outcome of a job. Pending forever if no job is running. Cancel-safe.
    async fn finished(tasks: &mut JoinSet<Result<Done, DaemonError>>) -> (task::Id, Result<Done, DaemonError>) {
        match tasks.join_next_with_id().await {
            Some(Ok(finished)) => finished,
            Some(Err(error)) => (error.id(), Err(error.into())),
            None => std::future::pending().await,
        }
    }

    fn finish(&mut self, task: task::Id, done: Result<Done, DaemonError>) {
        let Some(at) = self.running.iter().position(|running| running.task == task) else { return };
        let Running { number, request, reply, ended, .. } = self.running.remove(at);
        let served = done.map(|Done { open, connection, dir }| {
            let (connection, requests) = connection.unzip();
            let own = connection.as_ref().and_then(|connection| connection.own.clone());
            let connection = connection.filter(|connection| connection.own.is_none());
            let (id, summary) = (open.id().to_owned(), open.summary());
            let mount = Arc::new(Mount { number, id, summary, request, connection, requests, dir, own });
            if mount.connection.is_some() {
                info!(mount = mount.id, "connection taken");
                self.state.connections_taken += 1;
            }
            self.open.insert(number, open);
            self.state.had_mounts = true;
            // A later job may have finished first.
            let at = self.state.mounts.partition_point(|other| other.number < number);
            self.state.mounts.insert(at, Arc::clone(&mount));
            mount
        });
        self.publish();
        // If the caller has dropped its future, the mount stays.
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
        if let Some(running) = self.running.iter_mut().find(|running| running.number == number) {
            // The session ended before the job had finished.
            running.ended = Some(outcome);
            return;
        }
        let Some(at) = self.state.mounts.iter().position(|mount| mount.number == number) else { return };
        let mount = self.state.mounts.remove(at);
        if let Err(error) = outcome {
            warn!(mount = mount.id, %error, "the mount's session failed");
        }
        info!(mount = mount.id, dir = ?mount.dir, "unmounted");
        if let Some(own) = mount.own.clone() {
            // systemd may take its time.
            self.node.runtime().spawn_blocking(move || own.forget());
        }
        // This closes the mount's dataset, unless another mount serves it. The dataset drains before any caller can see
        // that the mount has ended.
        self.open.remove(&number);
    }
}

/// Reports the end of the session that a job starts.
struct Sessions {
    number: u64,
    events: mpsc::Sender<Event>,
}

impl Sessions {
    /// Waits for a session to end, in a task of the runtime.
    fn watch(self, node: &Node, ended: impl Future<Output = io::Result<()>> + Send + 'static) {
        let Self { number, events } = self;
        node.runtime().spawn(async move {
            let outcome = ended.await;
            let _ = events.send(Event::Ended { number, outcome }).await;
        });
    }
}

/// Opens a dataset and serves it.
async fn make(
    node: &Arc<Node>,
    pool: Arc<Pool>,
    store: Option<Arc<DescriptorStore>>,
    found: Found,
    request: DatasetRequest,
    target: Target,
    sessions: Sessions,
) -> Result<Done, DaemonError> {
    let open = match &target {
        Target::Connection(..) => node.open_dataset(found, &request, User::Connection).await?,
        Target::Folder(_) => {
            // It has what it asks for, or is refused.
            let open = node.open_dataset(found.clone(), &request, User::Mount).await?;
            match &store {
                None => open,
                // Its readers outlive this process. After a restart they get what there is, and nobody takes their
                // room.
                Some(_) => node.open_dataset(found, &request, User::Connection).await?,
            }
        }
    };
    let (id, dataset, node) = (open.id().to_owned(), Arc::clone(open.dataset()), Arc::clone(node));
    let start = move || match (target, store) {
        (Target::Folder(config), None) => {
            let mounted = mount(&pool, dataset, &config)?;
            if node.stopping().is_cancelled() {
                // Dropping the mount unmounts it. The stopping daemon may already have collected the mounts to end.
                return Err(DaemonError::Stopping);
            }
            let dir = mounted.path().to_owned();
            sessions.watch(&node, mounted.ended());
            Ok((None, Some(dir)))
        }
        (Target::Folder(config), Some(store)) => {
            let name = dataset.stats().dataset.name;
            let (path, fuse, init) = mount_unserved(&config, &name)?;
            let kept = keep(&store, &node, fuse, convert::kept_mount(id, init, &request, &config, &path));
            let served = kept.and_then(|connection| {
                let (threads, ownership) = (config.threads, config.ownership);
                let serve = ServeConfig { threads, max_background: config.max_background, ownership };
                let requests = start_serving(&pool, &node, dataset, &connection, serve, sessions)
                    .inspect_err(|_| connection.own.iter().for_each(OwnMount::forget))?;
                Ok((connection, requests))
            });
            match served {
                Ok(served) => {
                    raise_read_ahead(&path, config.read_ahead_bytes);
                    info!(path = %path.display(), "mounted");
                    Ok((Some(served), Some(path)))
                }
                Err(error) => {
                    detach(&path);
                    Err(error)
                }
            }
        }
        (Target::Connection(connection, config), _) => {
            let requests = start_serving(&pool, &node, dataset, &connection, config, sessions)?;
            let dir = connection.own.as_ref().map(|own| own.dir.clone());
            Ok((Some((connection, requests)), dir))
        }
    };
    let (connection, dir) = tokio::task::spawn_blocking(start).await??;
    Ok(Done { open, connection, dir })
}

/// Puts a mount of our own into the store. Errors: the store cannot take it, or the daemon is stopping.
fn keep(
    store: &Arc<DescriptorStore>,
    node: &Node,
    fuse: OwnedFd,
    mount: v1::KeptMount,
) -> Result<Arc<Connection>, DaemonError> {
    if node.stopping().is_cancelled() {
        return Err(DaemonError::Stopping);
    }
    let (own, memory) = store.keep(&fuse, &mount).map_err(|source| DaemonError::Keep { source })?;
    let lender = Lender::of_own(own.verify_always);
    Ok(Arc::new(Connection { fd: fuse, memory, init: mount.init, lender, own: Some(own) }))
}

/// Serves a connection, and has the end of its session reported.
fn start_serving(
    pool: &Arc<Pool>,
    node: &Node,
    dataset: Arc<Dataset>,
    connection: &Connection,
    config: ServeConfig,
    sessions: Sessions,
) -> Result<Arc<Requests>, DaemonError> {
    let fd = connection.fd.try_clone().map_err(limits::named);
    let (init, memory, lender) = (&connection.init, connection.memory.as_fd(), connection.lender.clone());
    let serving = fd
        .and_then(|fd| serve_lending(pool, dataset, fd, init, memory, config, lender))
        .map_err(|source| DaemonError::Connection { source })?;
    let requests = Arc::clone(serving.requests());
    sessions.watch(node, serving.ended());
    Ok(requests)
}
