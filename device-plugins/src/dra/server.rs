//! Serves the kubelet on two sockets: one for claims and health, and one through which the kubelet discovers and
//! registers the driver.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use larder_kubelet::dra::dra_plugin_server::DraPluginServer;
use larder_kubelet::dra_health::dra_resource_health_server::DraResourceHealthServer;
use larder_kubelet::registration::{Answer, Plugin};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tracing::{error, warn};

use super::service::Service;
use crate::instance::Instance;
use crate::names::DRIVER;
use larder_kubelet::socket::Listening;

/// How often the sockets are checked.
const LOOK: Duration = Duration::from_secs(1);

/// How long a stop waits for open calls.
const STOP: Duration = Duration::from_secs(5);

/// Serves until `stop`, below the kubelet's folder. The kubelet's answer to the registration goes to `answers`.
pub(super) async fn serve(
    kubelet: &Path,
    instance: &Instance,
    service: Service,
    answers: watch::Sender<Answer>,
    stop: CancellationToken,
) {
    let endpoint = kubelet.join("plugins").join(DRIVER).join("dra.sock");
    let plugin = Plugin { kind: "DRAPlugin", name: DRIVER, endpoint: endpoint.clone(), versions: &["v1.DRAPlugin"] };
    let mut sockets =
        [Socket::new(endpoint), Socket::new(kubelet.join("plugins_registry").join(format!("{DRIVER}-reg.sock")))];
    let [(calls, called), (registrations, registered)] = [mpsc::channel(16), mpsc::channel(16)];
    let calls_served = Server::builder()
        .add_service(DraPluginServer::new(service.clone()))
        .add_service(DraResourceHealthServer::new(service))
        .serve_with_incoming_shutdown(ReceiverStream::new(called), stop.clone().cancelled_owned());
    let stopped = stop.clone().cancelled_owned();
    let registrations_served =
        larder_kubelet::registration::serve(plugin, ReceiverStream::new(registered), answers, stopped);
    let served = async {
        let late = async {
            stop.cancelled().await;
            sleep(STOP).await;
        };
        tokio::select! {
            (calls, registrations) = async { tokio::join!(calls_served, registrations_served) } => {
                if let Err(error) = calls.and(registrations) {
                    error!(%error, "the server of claims stopped");
                }
            }
            () = late => {}
        }
    };
    let kept = async {
        loop {
            if instance.is_newest() {
                // In this order: the kubelet calls the first socket as soon as it finds the second.
                for (socket, feed) in sockets.iter_mut().zip([&calls, &registrations]) {
                    socket.keep(feed);
                }
            }
            if timeout(LOOK, stop.cancelled()).await.is_ok() {
                break;
            }
        }
        drop(sockets);
    };
    tokio::join!(served, kept);
}

/// A socket with a fixed name that the kubelet expects.
struct Socket {
    path: PathBuf,
    listening: Option<Listening>,
    /// Why listening failed; logged once per reason.
    trouble: String,
}

impl Socket {
    fn new(path: PathBuf) -> Self {
        Self { path, listening: None, trouble: String::new() }
    }

    /// Listens again if the socket file was removed, or replaced by another process.
    fn keep(&mut self, feed: &mpsc::Sender<io::Result<UnixStream>>) {
        if self.listening.as_ref().is_some_and(Listening::is_there) {
            return;
        }
        self.listening = None;
        match self.begin(feed.clone()) {
            Ok(listening) => {
                self.listening = Some(listening);
                self.trouble.clear();
            }
            Err(error) => {
                let trouble = error.to_string();
                if self.trouble != trouble {
                    warn!(socket = %self.path.display(), trouble, "cannot serve claims; retrying");
                }
                self.trouble = trouble;
            }
        }
    }

    fn begin(&self, feed: mpsc::Sender<io::Result<UnixStream>>) -> io::Result<Listening> {
        use std::os::unix::fs::FileTypeExt;
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        match std::fs::symlink_metadata(&self.path) {
            Ok(found) if found.file_type().is_socket() => std::fs::remove_file(&self.path)?,
            Ok(_) => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file there is not a socket"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Listening::begin(&self.path, feed)
    }
}

#[cfg(test)]
mod tests;
