//! A fake larderd: it prepares every dataset, accepts connections over the handover socket, and serves an empty folder
//! on each.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use larder_daemon_api::handover::{Descriptors, HoldsList, Listener, Message, Socket};
use larder_daemon_api::socket::{GRPC_SOCKET, HANDOVER_SOCKET};
use larder_daemon_api::v1::daemon_server::{Daemon, DaemonServer};
use larder_daemon_api::v1::prepare_response::Outcome;
use larder_daemon_api::v1::*;
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, async_trait};

/// The files and bytes of every dataset.
pub(crate) const FILES: u64 = 7;
pub(crate) const BYTES: u64 = 7_000;

type Answer = Box<dyn Fn(&Dataset) -> Result<Outcome, Status> + Send>;

#[derive(Default)]
struct State {
    served: Mutex<BTreeMap<String, Served>>,
    offered: Mutex<Vec<Connection>>,
    /// Offers of these mounts are not answered.
    held_up: Mutex<BTreeSet<String>>,
    /// The mounts that each keeper said it holds.
    holds: Mutex<Vec<Vec<String>>>,
    renewed: Mutex<Vec<Renew>>,
    /// Ends the session when it receives new credentials, before it uses them.
    dies_of_renewal: AtomicBool,
    /// While true, requests to use new credentials wait. They are rejected once this is false.
    renewals_wait: AtomicBool,
    /// Speaks the first version of the protocol.
    older: bool,
    forgotten: Mutex<Vec<String>>,
    asked: Mutex<Vec<Dataset>>,
    /// The pods for which it was asked.
    pods: Mutex<Vec<Option<Pod>>>,
    /// Of every mount.
    trouble: Mutex<String>,
    answer: Mutex<Option<Answer>>,
    refuse_offers: AtomicBool,
    is_stopping: AtomicBool,
    stop: Arc<AtomicBool>,
}

struct Served {
    connection: Connection,
    fd: Arc<OwnedFd>,
    /// `None`: the keeper takes this for an older larderd.
    memory: Option<OwnedFd>,
    /// Ends when dropped.
    _responder: Responder,
}

/// One run of a larderd.
pub(crate) struct FakeDaemon {
    state: Arc<State>,
    runtime: Option<tokio::runtime::Runtime>,
    handover: Option<JoinHandle<()>>,
    run_dir: PathBuf,
}

/// The name that the fake larderd gives the mount of a source.
pub(crate) fn mount_of(source: &str) -> String {
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

impl FakeDaemon {
    /// Listens in `run_dir`.
    pub(crate) fn start(run_dir: &Path) -> Self {
        Self::start_with(run_dir, State::default())
    }

    fn start_with(run_dir: &Path, state: State) -> Self {
        std::fs::create_dir_all(run_dir).unwrap();
        let state = Arc::new(state);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let path = run_dir.join(GRPC_SOCKET);
        let _ = std::fs::remove_file(&path);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let service = Service(Arc::clone(&state));
        runtime.spawn(async move {
            let incoming = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener).unwrap());
            let server = tonic::transport::Server::builder().add_service(DaemonServer::new(service));
            server.serve_with_incoming(incoming).await.unwrap();
        });
        let listener = Listener::bind(&run_dir.join(HANDOVER_SOCKET)).unwrap();
        let serving = Arc::clone(&state);
        let handover = std::thread::spawn(move || {
            while !serving.stop.load(Ordering::Acquire) {
                if readable(&listener) {
                    serving.keep_session(&listener.accept().unwrap());
                }
            }
        });
        Self { state, runtime: Some(runtime), handover: Some(handover), run_dir: run_dir.to_owned() }
    }

    /// Simulates SIGKILL: every socket and descriptor closes, and the socket files stay.
    pub(crate) fn kill(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        if let Some(handover) = self.handover.take() {
            handover.join().unwrap();
        }
        self.state.served.lock().unwrap().clear();
    }

    /// Starts a new larderd without any state.
    pub(crate) fn restart(&mut self) {
        self.kill();
        *self = Self::start(&self.run_dir.clone());
    }

    /// Starts an older version, which answers requests in order.
    pub(crate) fn restart_as_older(&mut self) {
        self.kill();
        *self = Self::start_with(&self.run_dir.clone(), State { older: true, ..State::default() });
    }

    /// Starts a new larderd that does not answer offers of this mount.
    pub(crate) fn restart_holding_up(&mut self, mount: &str) {
        self.kill();
        let held_up = Mutex::new(BTreeSet::from([mount.to_owned()]));
        *self = Self::start_with(&self.run_dir.clone(), State { held_up, ..State::default() });
    }

    /// Answers the offers that wait.
    pub(crate) fn let_through(&self) {
        self.state.held_up.lock().unwrap().clear();
    }

    /// Sets whether the session ends when new credentials arrive, before they are used.
    pub(crate) fn die_of_renewal(&self, die: bool) {
        self.state.dies_of_renewal.store(die, Ordering::Release);
    }

    /// Makes requests to use new credentials wait, or rejects the waiting ones.
    pub(crate) fn renewals_wait(&self, wait: bool) {
        self.state.renewals_wait.store(wait, Ordering::Release);
    }

    /// The mounts that each keeper said it holds.
    pub(crate) fn holds(&self) -> Vec<Vec<String>> {
        self.state.holds.lock().unwrap().clone()
    }

    /// The renewals that the keeper sent: mount and credentials.
    pub(crate) fn renewed(&self) -> Vec<(String, Option<Credentials>)> {
        let renewed = self.state.renewed.lock().unwrap();
        renewed.iter().map(|renew| (renew.mount.clone(), renew.credentials.clone())).collect()
    }

    /// The credentials with which a served mount is read.
    pub(crate) fn reads_with(&self, mount: &str) -> Option<Credentials> {
        let served = self.state.served.lock().unwrap();
        served[mount].connection.dataset.as_ref().unwrap().credentials.clone()
    }

    /// Sets the answer of Prepare from now on.
    pub(crate) fn answer(&self, answer: impl Fn(&Dataset) -> Result<Outcome, Status> + Send + 'static) {
        *self.state.answer.lock().unwrap() = Some(Box::new(answer));
    }

    /// Sets why there are no keys for the identity of pods.
    pub(crate) fn set_trouble(&self, trouble: &str) {
        trouble.clone_into(&mut self.state.trouble.lock().unwrap());
    }

    pub(crate) fn refuse_offers(&self, refuse: bool) {
        self.state.refuse_offers.store(refuse, Ordering::Release);
    }

    /// Lets no plugin leave from now on.
    pub(crate) fn begin_stop(&self) {
        self.state.is_stopping.store(true, Ordering::Release);
    }

    pub(crate) fn offered(&self) -> Vec<Connection> {
        self.state.offered.lock().unwrap().clone()
    }

    pub(crate) fn forgotten(&self) -> Vec<String> {
        self.state.forgotten.lock().unwrap().clone()
    }

    pub(crate) fn asked(&self) -> Vec<Dataset> {
        self.state.asked.lock().unwrap().clone()
    }

    /// The pods for which Prepare was called.
    pub(crate) fn pods(&self) -> Vec<Option<Pod>> {
        self.state.pods.lock().unwrap().clone()
    }

    pub(crate) fn served(&self) -> Vec<String> {
        self.state.served.lock().unwrap().keys().cloned().collect()
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        self.kill();
    }
}

impl State {
    fn keep_session(&self, socket: &Socket) {
        for served in self.served.lock().unwrap().values() {
            let fds: Vec<_> =
                [Some(served.fd.as_fd()), served.memory.as_ref().map(AsFd::as_fd)].into_iter().flatten().collect();
            socket.send(Message::Held(served.connection.clone()), &fds).unwrap();
        }
        let version = if self.older { 0 } else { larder_daemon_api::handover::VERSION };
        socket.send(Message::HeldEnd(HeldEnd { version }), &[]).unwrap();
        let (mut waiting, mut renewals, mut list) = (Vec::new(), Vec::new(), HoldsList::default());
        while !self.stop.load(Ordering::Acquire) {
            let held_up = |connection: &Connection| self.held_up.lock().unwrap().contains(&connection.mount);
            for (connection, descriptors) in waiting.extract_if(.., |(connection, _)| !held_up(connection)) {
                self.serve(socket, connection, descriptors);
            }
            if !self.renewals_wait.load(Ordering::Acquire) {
                renewals.drain(..).for_each(|request| self.answer(socket, request, Err("no room".to_owned())));
            }
            if !readable(socket) {
                continue;
            }
            match socket.receive() {
                Ok(Some((Message::Offer(connection), Some(descriptors)))) => {
                    self.offered.lock().unwrap().push(Connection { request: 0, ..connection.clone() });
                    if held_up(&connection) {
                        waiting.push((connection, descriptors));
                    } else {
                        self.serve(socket, connection, descriptors);
                    }
                }
                Ok(Some((Message::Forget(Forget { mount, request }), _))) => {
                    self.served.lock().unwrap().remove(&mount);
                    self.forgotten.lock().unwrap().push(mount);
                    self.answer(socket, request, Ok(()));
                }
                Ok(Some((Message::Holds(page), _))) if !self.older => {
                    self.holds.lock().unwrap().extend(list.add(page));
                }
                Ok(Some((Message::Renew(renew), _))) if !self.older => {
                    self.renewed.lock().unwrap().push(renew.clone());
                    if self.dies_of_renewal.load(Ordering::Acquire) {
                        return;
                    }
                    if self.renewals_wait.load(Ordering::Acquire) {
                        renewals.push(renew.request);
                        continue;
                    }
                    if let Some(served) = self.served.lock().unwrap().get_mut(&renew.mount) {
                        served.connection.dataset.as_mut().unwrap().credentials = renew.credentials;
                    }
                    self.answer(socket, renew.request, Ok(()));
                }
                Ok(Some((Message::Leave(Leave { request }), _))) if !self.older => {
                    let is_stopping = self.is_stopping.load(Ordering::Acquire);
                    let outcome = if is_stopping { Err("larderd is stopping".to_owned()) } else { Ok(()) };
                    self.answer(socket, request, outcome);
                }
                Ok(None) | Err(_) => return,
                Ok(Some(other)) => panic!("{other:?}"),
            }
        }
    }

    fn serve(&self, socket: &Socket, connection: Connection, descriptors: Descriptors) {
        let Descriptors { fuse, memory } = descriptors;
        assert_eq!(memory.is_none(), self.older, "an older larderd cannot take two descriptors");
        let request = connection.request;
        if self.refuse_offers.load(Ordering::Acquire) {
            return self.answer(socket, request, Err("no room".to_owned()));
        }
        let fd = Arc::new(fuse);
        let responder = Responder::start(Arc::clone(&fd), &connection.init);
        let mount = connection.mount.clone();
        self.served.lock().unwrap().insert(mount, Served { connection, fd, memory, _responder: responder });
        self.answer(socket, request, Ok(()));
    }

    fn answer(&self, socket: &Socket, request: u64, outcome: Result<(), String>) {
        let _ = socket.send(Message::answer(if self.older { 0 } else { request }, outcome), &[]);
    }
}

/// True if the descriptor becomes readable within a moment.
fn readable(fd: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    let moment = Timespec::try_from(Duration::from_millis(10)).unwrap();
    rustix::event::poll(&mut polled, Some(&moment)).unwrap_or(0) > 0
}

struct Service(Arc<State>);

#[async_trait]
impl Daemon for Service {
    async fn prepare(&self, request: Request<PrepareRequest>) -> Result<Response<PrepareResponse>, Status> {
        let PrepareRequest { dataset, pod, .. } = request.into_inner();
        let dataset = dataset.unwrap();
        self.0.pods.lock().unwrap().push(pod);
        self.0.asked.lock().unwrap().push(dataset.clone());
        let outcome = match &*self.0.answer.lock().unwrap() {
            Some(answer) => answer(&dataset)?,
            None => Outcome::Prepared(Prepared {
                mount: mount_of(&dataset.source),
                name: "a set".to_owned(),
                snapshot: "5a".repeat(32),
                files: FILES,
                bytes: BYTES,
                served: false,
            }),
        };
        Ok(Response::new(PrepareResponse { outcome: Some(outcome) }))
    }

    async fn get_info(&self, _: Request<GetInfoRequest>) -> Result<Response<GetInfoResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn mount(&self, _: Request<MountRequest>) -> Result<Response<MountResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn unmount(&self, _: Request<UnmountRequest>) -> Result<Response<UnmountResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn list_mounts(&self, _: Request<ListMountsRequest>) -> Result<Response<ListMountsResponse>, Status> {
        let trouble = self.0.trouble.lock().unwrap().clone();
        let served = self.0.served.lock().unwrap();
        let info =
            |mount: &String| MountInfo { mount: mount.clone(), trouble: trouble.clone(), ..MountInfo::default() };
        Ok(Response::new(ListMountsResponse { mounts: served.keys().map(info).collect() }))
    }

    async fn list_nodes(&self, _: Request<ListNodesRequest>) -> Result<Response<ListNodesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn list_caches(&self, _: Request<ListCachesRequest>) -> Result<Response<ListCachesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn drop_cache(&self, _: Request<DropCacheRequest>) -> Result<Response<DropCacheResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn pin_cache(&self, _: Request<PinCacheRequest>) -> Result<Response<PinCacheResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

/// Answers the kernel's requests as an empty folder.
struct Responder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    fn start(fd: Arc<OwnedFd>, init: &[u8]) -> Self {
        // After a restart the kernel already has this answer, and rejects a second one.
        answer_to(&fd, init);
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut request = vec![0; 1 << 20];
            while !stopping.load(Ordering::Acquire) {
                if !readable(&*fd) {
                    continue;
                }
                match rustix::io::read(&*fd, &mut request) {
                    Ok(length) => answer_to(&fd, &request[..length]),
                    Err(rustix::io::Errno::NODEV) => return,
                    Err(_) => {}
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn answer_to(fd: &OwnedFd, request: &[u8]) {
    let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
    let (error, body) = match word(4) {
        // LOOKUP
        1 => (2, vec![]),
        // FORGET, INTERRUPT, BATCH_FORGET
        2 | 36 | 42 => return,
        // GETATTR: inode 1, mode 40555, two links
        3 => {
            let mut body = vec![0; 104];
            body[16] = 1;
            body[76..80].copy_from_slice(&0o40555u32.to_ne_bytes());
            body[80] = 2;
            (0, body)
        }
        // INIT
        26 => {
            let mut body = vec![0; 64];
            for (at, value) in [(0, 7), (4, 31), (8, word(48)), (20, 1 << 17)] {
                body[at..at + 4].copy_from_slice(&u32::to_ne_bytes(value));
            }
            (0, body)
        }
        // OPENDIR
        27 => (0, vec![0; 16]),
        // READDIR, RELEASEDIR, READDIRPLUS
        28 | 29 | 44 => (0, vec![]),
        _ => (38, vec![]),
    };
    let mut answer = Vec::new();
    answer.extend(u32::to_ne_bytes(16 + body.len() as u32));
    answer.extend(i32::to_ne_bytes(-error));
    answer.extend(&request[8..16]);
    answer.extend(body);
    let _ = rustix::io::write(fd, &answer);
}
