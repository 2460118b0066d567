//! Keeps one resource served and registered.
//!
//! A registration is valid until the kubelet's socket or ours is replaced, or the kubelet closes its last ListAndWatch
//! stream. In a rolling update, Kubernetes 1.36 closes the new process's stream when the old process's stream ends.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use larder_kubelet::deviceplugin::device_plugin_server::DevicePluginServer;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server as Grpc;
use tracing::{error, info, warn};

use super::registration::{KUBELET_SOCKET, register};
use super::service::{Service, Streams};
use super::settings::Settings;
use crate::config::ResourceName;
use crate::instance::Instance;
use crate::view::View;
use larder_kubelet::socket::{Listening, Pinned};

/// How soon the first failure is retried; each further failure doubles the delay, up to [`RETRY_MOST`]. The first retry
/// is not immediate: a kubelet that closes a stream marks the devices unhealthy a moment later, and that must not
/// happen after our new list.
const RETRY: Duration = Duration::from_millis(25);
const RETRY_MOST: Duration = Duration::from_secs(2);

/// How often an older process checks whether the newer one is still running.
const STAND_BY: Duration = Duration::from_secs(1);

/// How soon after a registration the kubelet must have opened a stream. The list is then sent once more.
const SETTLE: Duration = Duration::from_secs(1);

/// How long a stop waits for open calls.
const STOP: Duration = Duration::from_secs(5);

/// Serves one resource.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) resource: ResourceName,
    pub(super) settings: Arc<Settings>,
    pub(super) instance: Arc<Instance>,
    pub(super) views: watch::Receiver<Arc<View>>,
    /// Incremented when a socket in the folder may have changed.
    pub(super) changes: watch::Receiver<u64>,
    pub(super) stop: CancellationToken,
}

impl Server {
    /// Serves until `stop`.
    pub(super) async fn run(self) {
        let (feed, connections) = mpsc::channel(16);
        let (streams, again) = (watch::Sender::new(Streams::default()), watch::Sender::new(0));
        let stop = self.stop.clone();
        let service = Service {
            resource: self.resource.clone(),
            settings: Arc::clone(&self.settings),
            views: self.views.clone(),
            streams: streams.clone(),
            again: again.clone(),
            instance: Arc::clone(&self.instance),
            stop: stop.clone(),
        };
        let serving = Grpc::builder()
            .add_service(DevicePluginServer::new(service))
            .serve_with_incoming_shutdown(ReceiverStream::new(connections), stop.clone().cancelled_owned());
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(STOP).await;
        };
        let serving = async {
            tokio::select! {
                served = serving => if let Err(error) = served {
                    error!(%error, "the device plugin server stopped");
                },
                () = late => {}
            }
        };
        let kubelet = self.settings.folder.join(KUBELET_SOCKET);
        let mut presence = Presence {
            server: self,
            kubelet,
            feed,
            again,
            known: None,
            listening: None,
            registered: None,
            failures: 0,
            due: Instant::now(),
        };
        let keeping = async {
            stop.run_until_cancelled(presence.keep(streams.subscribe())).await;
            // The server has ended, so the kubelet must not find its socket.
            presence.listening = None;
        };
        tokio::join!(serving, keeping);
    }
}

/// The sockets and the registration of a server.
struct Presence {
    server: Server,
    kubelet: PathBuf,
    feed: mpsc::Sender<io::Result<UnixStream>>,
    again: watch::Sender<u64>,
    /// The kubelet's socket.
    known: Option<Pinned>,
    listening: Option<Listening>,
    registered: Option<Registered>,
    /// Consecutive failures.
    failures: u32,
    /// No attempt is made before this time.
    due: Instant,
}

/// A registration with the kubelet behind `Presence::known`.
struct Registered {
    /// [`Streams::opened`] before the registration.
    opened: u64,
    at: Instant,
    is_repeated: bool,
}

impl Presence {
    /// Listens and registers whenever necessary.
    async fn keep(&mut self, mut streams: watch::Receiver<Streams>) {
        let mut changes = self.server.changes.clone();
        loop {
            changes.borrow_and_update();
            let now = *streams.borrow_and_update();
            let look = self.step(now, &mut changes).await;
            tokio::select! {
                () = tokio::time::sleep(look) => {}
                _ = changes.changed() => {}
                _ = streams.changed() => {}
            }
        }
    }

    /// Does the next step that is possible now. Returns how long to wait before the next call if nothing changes.
    async fn step(&mut self, streams: Streams, changes: &mut watch::Receiver<u64>) -> Duration {
        if !self.known.as_ref().is_some_and(|known| known.is_at(&self.kubelet)) {
            self.known = Pinned::open(&self.kubelet).ok();
            self.registered = None;
            // A new kubelet socket: failures with the previous one do not count.
            (self.failures, self.due) = (0, Instant::now());
        }
        if !self.listening.as_ref().is_some_and(Listening::is_there) {
            self.registered = None;
            let path = self.server.settings.folder.join(self.server.instance.new_socket_name());
            match Listening::begin(&path, self.feed.clone()) {
                Ok(listening) => self.listening = Some(listening),
                Err(error) => self.failed(&format!("listen: {error}")),
            }
        }
        if !self.server.instance.is_newest() {
            // The newer process registers. This process registers again after the newer one has ended.
            self.registered = None;
            return STAND_BY;
        }
        if let Some(registered) = &mut self.registered {
            let age = registered.at.elapsed();
            let is_lost = streams.open == 0 && (streams.opened > registered.opened || age >= SETTLE);
            if !is_lost {
                if age >= SETTLE && !std::mem::replace(&mut registered.is_repeated, true) {
                    self.failures = 0;
                    self.again.send_modify(|count| *count += 1);
                }
                return if registered.is_repeated { Duration::MAX } else { SETTLE.saturating_sub(age) };
            }
            self.registered = None;
            self.failed("the kubelet closed the stream of lists");
        }
        let (Some(_), Some(listening)) = (&self.known, &self.listening) else { return self.wait() };
        if Instant::now() < self.due {
            return self.wait();
        }
        let turn = match self.server.instance.turn().await {
            Ok(Some(turn)) => turn,
            Ok(None) => return STAND_BY,
            Err(error) => {
                self.failed(&format!("take turns with other processes: {error}"));
                return self.wait();
            }
        };
        let registering = register(&self.server.settings.folder, &self.server.resource, listening.name());
        let outcome = tokio::select! {
            outcome = registering => outcome.map_err(|status| status.message().to_owned()),
            () = self.outdated(listening, changes) => Err("a socket was replaced during registration".to_owned()),
        };
        drop(turn);
        match outcome {
            Ok(()) => {
                info!(resource = %self.server.resource, endpoint = listening.name(), "registered with the kubelet");
                self.registered = Some(Registered { opened: streams.opened, at: Instant::now(), is_repeated: false });
                Duration::ZERO
            }
            Err(why) => {
                self.failed(&why);
                self.wait()
            }
        }
    }

    /// Returns when the kubelet's socket or ours was removed or replaced.
    async fn outdated(&self, listening: &Listening, changes: &mut watch::Receiver<u64>) {
        while listening.is_there() && self.known.as_ref().is_some_and(|known| known.is_at(&self.kubelet)) {
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn failed(&mut self, why: &str) {
        if self.failures == 0 {
            warn!(resource = %self.server.resource, why, "cannot register with the kubelet; retrying");
        }
        self.due = Instant::now() + RETRY_MOST.min(RETRY * 2_u32.saturating_pow(self.failures.min(16)));
        self.failures += 1;
    }

    /// The time until the next attempt; unlimited if there is no kubelet.
    fn wait(&self) -> Duration {
        if self.known.is_none() && self.listening.is_some() {
            return Duration::MAX;
        }
        self.due.saturating_duration_since(Instant::now())
    }
}
