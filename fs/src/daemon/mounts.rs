//! The mounts of a daemon and the task that owns them.
//!
//! The cast: [`Owner`] is the task; an [`Event`] is what changes its state; [`State`] is what it publishes after each event;
//! [`Mounts`] is everybody else's handle: it sends events and reads the state.
//!
//! Invariants: nothing else changes the state. A mount is in the state for as long as the kernel may send it requests. One
//! mount is made at a time. The end of a session is an event; nothing polls for it.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use larder_cachenode::dataset::Dataset;
use larder_cachenode::node::{Found, Node, OpenDataset};
use larder_cachenode::request::DatasetRequest;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};

use super::error::DaemonError;
use crate::connection::{ServeConfig, serve};
use crate::mount::{MountConfig, mount};

/// Events that wait for the owner; more make their senders wait.
const EVENTS_WAITING: usize = 64;

/// One mount, or one connection that was handed over.
#[derive(Clone, Debug)]
pub(super) struct Mount {
    /// One of each, for the life of the daemon.
    pub(super) number: u64,
    /// The dataset's name on this node.
    pub(super) id: String,
    pub(super) dataset: Arc<Dataset>,
    /// What was requested, with the newest credentials that proved good.
    pub(super) request: DatasetRequest,
    /// Of a connection: what the keeper gets back.
    pub(super) connection: Option<Arc<Connection>>,
    /// Of a mount of our own: where it is.
    pub(super) dir: Option<PathBuf>,
}

/// A connection that the keeper holds too.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) fd: OwnedFd,
    pub(super) init: Vec<u8>,
}

/// What everybody may know.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// The oldest first.
    pub(super) mounts: Vec<Arc<Mount>>,
    /// There has been one.
    pub(super) had_mounts: bool,
    /// A keeper has offered all the connections that it holds.
    pub(super) keeper_offered: bool,
    /// Connections that were handed over.
    pub(super) connections_taken: u64,
}

/// What changes the state.
#[derive(Debug)]
enum Event {
    /// A dataset is to be mounted.
    Mount { found: Found, request: DatasetRequest, config: MountConfig, reply: oneshot::Sender<Shown> },
    /// The keeper offers a connection.
    Offer {
        found: Found,
        request: DatasetRequest,
        connection: Connection,
        config: ServeConfig,
        reply: oneshot::Sender<Shown>,
    },
    /// Newer credentials for the connections of a dataset proved good.
    Renewed { id: String, request: DatasetRequest },
    /// A keeper has offered all that it holds.
    KeeperOffered,
    /// The session of a mount has ended.
    Ended { number: u64, outcome: io::Result<()> },
}

/// How a mount or an offer came out.
type Shown = Result<Arc<Mount>, DaemonError>;

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
            open: HashMap::new(),
            next: 0,
        };
        (Self { events, state }, owner)
    }

    /// The state after the last event.
    pub(super) fn now(&self) -> State {
        self.state.borrow().clone()
    }

    /// Waits until the state is as wanted. Errors: the owner is gone.
    pub(super) async fn wait_until(&self, wanted: impl Fn(&State) -> bool) -> Result<(), DaemonError> {
        self.state.clone().wait_for(|state| wanted(state)).await.map(|_| ()).map_err(|_| DaemonError::Stopping)
    }

    /// Mounts a dataset. Not cancelled with its caller: the mount is made in any case.
    pub(super) async fn mount(&self, found: Found, request: DatasetRequest, config: MountConfig) -> Shown {
        let (reply, shown) = oneshot::channel();
        self.send(Event::Mount { found, request, config, reply }).await?;
        shown.await.unwrap_or(Err(DaemonError::Stopping))
    }

    /// Serves a connection.
    pub(super) async fn offer(
        &self,
        found: Found,
        request: DatasetRequest,
        connection: Connection,
        config: ServeConfig,
    ) -> Shown {
        let (reply, shown) = oneshot::channel();
        self.send(Event::Offer { found, request, connection, config, reply }).await?;
        shown.await.unwrap_or(Err(DaemonError::Stopping))
    }

    /// Notes newer credentials for the connections of a dataset.
    pub(super) async fn renewed(&self, id: &str, request: &DatasetRequest) -> Result<(), DaemonError> {
        self.send(Event::Renewed { id: id.to_owned(), request: request.clone() }).await
    }

    /// Notes that a keeper has offered all that it holds. Blocks; not for the runtime's threads.
    pub(super) fn keeper_has_offered(&self) {
        // The owner is gone only when the daemon is.
        let _ = self.events.blocking_send(Event::KeeperOffered);
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
    /// The hold on its dataset that each mount has, by the mount's number.
    open: HashMap<u64, OpenDataset>,
    next: u64,
}

impl Owner {
    /// Applies events until nobody can send one any more.
    pub(super) async fn run(mut self) {
        let mut draining = self.node.watch_draining();
        loop {
            let event = tokio::select! {
                event = self.received.recv() => match event {
                    Some(event) => Some(event),
                    None => return,
                },
                _ = draining.changed() => None,
            };
            if let Some(event) = event {
                self.apply(event).await;
            }
            if self.stop_when_idle && self.state.had_mounts && self.state.mounts.is_empty() && self.node.is_drained() {
                self.node.stopping().cancel();
            }
        }
    }

    async fn apply(&mut self, event: Event) {
        match event {
            Event::Mount { found, request, config, reply } => {
                let _ = reply.send(self.mount(found, request, config).await);
            }
            Event::Offer { found, request, connection, config, reply } => {
                let _ = reply.send(self.offer(found, request, connection, config).await);
            }
            Event::Renewed { id, request } => self.renewed(&id, &request),
            Event::KeeperOffered => self.state.keeper_offered = true,
            Event::Ended { number, outcome } => self.ended(number, outcome),
        }
        self.publish.send_replace(self.state.clone());
    }

    async fn mount(&mut self, found: Found, request: DatasetRequest, config: MountConfig) -> Shown {
        let open = self.node.open_dataset(found, &request).await?;
        let dataset = Arc::clone(open.dataset());
        let mounted = tokio::task::spawn_blocking(move || mount(dataset, &config)).await??;
        let dir = mounted.path().to_owned();
        let mount = self.show(open, request, None, Some(dir));
        self.watch(mount.number, move || mounted.wait());
        Ok(mount)
    }

    async fn offer(
        &mut self,
        found: Found,
        request: DatasetRequest,
        connection: Connection,
        config: ServeConfig,
    ) -> Shown {
        let open = self.node.open_dataset(found, &request).await?;
        let dataset = Arc::clone(open.dataset());
        let serve = move || {
            let serving = serve(dataset, connection.fd.try_clone()?, &connection.init, config)?;
            Ok((connection, serving))
        };
        let served = tokio::task::spawn_blocking(serve).await?;
        let (connection, serving) = served.map_err(|source| DaemonError::Connection { source })?;
        info!(mount = open.id(), "connection taken");
        self.state.connections_taken += 1;
        let mount = self.show(open, request, Some(connection), None);
        self.watch(mount.number, move || serving.wait());
        Ok(mount)
    }

    fn show(
        &mut self,
        open: OpenDataset,
        request: DatasetRequest,
        connection: Option<Connection>,
        dir: Option<PathBuf>,
    ) -> Arc<Mount> {
        let number = self.next;
        self.next += 1;
        let mount = Arc::new(Mount {
            number,
            id: open.id().to_owned(),
            dataset: Arc::clone(open.dataset()),
            request,
            connection: connection.map(Arc::new),
            dir,
        });
        self.open.insert(number, open);
        self.state.had_mounts = true;
        self.state.mounts.push(Arc::clone(&mount));
        mount
    }

    /// Waits for the end of a session in a thread of its own, and reports it.
    fn watch(&self, number: u64, wait: impl FnOnce() -> io::Result<()> + Send + 'static) {
        // It is asked to while an event is being applied, so somebody holds a sender.
        let Some(events) = self.ended.upgrade() else { return };
        let watch = move || {
            let outcome = wait();
            let _ = events.blocking_send(Event::Ended { number, outcome });
        };
        if let Err(error) = std::thread::Builder::new().name("session-end".to_owned()).spawn(watch) {
            warn!(%error, number, "cannot watch a mount: it stays listed after its end");
        }
    }

    fn renewed(&mut self, id: &str, request: &DatasetRequest) {
        for mount in self.state.mounts.iter_mut().filter(|mount| mount.id == id && mount.connection.is_some()) {
            Arc::make_mut(mount).request.credentials.clone_from(&request.credentials);
        }
    }

    fn ended(&mut self, number: u64, outcome: io::Result<()>) {
        let Some(at) = self.state.mounts.iter().position(|mount| mount.number == number) else { return };
        let mount = self.state.mounts.remove(at);
        if let Err(error) = outcome {
            warn!(mount = mount.id, %error, "the mount's session failed");
        }
        info!(mount = mount.id, dir = ?mount.dir, "unmounted");
        // Its dataset is closed, unless another mount shows it.
        self.open.remove(&number);
    }
}
