//! The NRI plugin: the container runtime asks it about each container before it creates it.
//!
//! It sets what the hook cannot (RLIMIT_MEMLOCK), passes a pod's request for lower limits to the hook, and refuses containers of
//! pods whose request cannot be met. The cast: `Mux` carries two connections of ttrpc over one socket in `frame`s; `Plugin` is what the
//! runtime calls on one of them; `container` decides about one container; [`Containers`] are those with HCAs.
//!
//! Invariant: no limit of RDMA objects depends on this plugin. Runtimes create containers without a plugin that is absent, late or
//! dead, so the hook sets the limit.

mod container;
mod frame;
mod held;
mod mux;
mod service;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use larder_devices_api::nri::RegisterPluginRequest;
use prost::Message;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use ttrpc::r#async::transport::{Listener, Socket};
use ttrpc::r#async::{Client, Server};
use ttrpc::proto::Request;

pub use held::{Containers, Held, Key};

use crate::instance::Begun;
use crate::view::View;
use mux::Mux;
use service::Plugin;

/// The version of the protocol.
const NRI_VERSION: &str = "v0.12.3";

/// The runtime rejects a plugin that takes longer to register.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(5);

/// The pauses between attempts to connect. They are short because containers that start meanwhile are not adjusted.
const PAUSES_MS: [u64; 5] = [10, 50, 100, 250, 500];

/// Whether the runtime calls the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    Connected,
    /// It does not, with the reason.
    Away(Arc<str>),
}

/// What the plugin publishes.
#[derive(Clone, Debug)]
pub struct Outputs {
    pub status: watch::Sender<Status>,
    /// The containers that have HCAs.
    pub containers: watch::Sender<Arc<Containers>>,
}

impl Default for Outputs {
    fn default() -> Self {
        let status = watch::Sender::new(Status::Away("not tried yet".into()));
        Self { status, containers: watch::Sender::new(Arc::default()) }
    }
}

/// Serves the runtime at `socket` until `stop`, and reconnects whenever the connection ends. While a newer process runs, this one
/// leaves containers to it.
pub async fn run(
    socket: PathBuf,
    view: watch::Receiver<Arc<View>>,
    instance: Begun,
    outputs: Outputs,
    stop: CancellationToken,
) {
    let mut attempt = 0;
    loop {
        let plugin = Arc::new(Plugin::new(view.clone(), instance.clone(), outputs.containers.clone()));
        let mut is_asked = plugin.is_asked();
        let connected = async {
            let _ = is_asked.wait_for(|asked| *asked).await;
            outputs.status.send_replace(Status::Connected);
            info!("the container runtime calls the NRI plugin");
            std::future::pending().await
        };
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = connection(&socket, Arc::clone(&plugin)) => ended,
            ended = connected => ended,
        };
        let was_asked = *plugin.is_asked().borrow();
        let why: Arc<str> = format!("{}: {}", socket.display(), ended).into();
        let is_news = outputs.status.send_if_modified(|status| {
            let away = Status::Away(Arc::clone(&why));
            std::mem::replace(status, away.clone()) != away
        });
        if is_news {
            warn!(%why, "the container runtime does not call the NRI plugin");
        }
        attempt = if was_asked { 0 } else { (attempt + 1).min(PAUSES_MS.len() - 1) };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(PAUSES_MS[attempt])) => {}
        }
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("connect: {0}")]
    Connect(std::io::Error),
    #[error("register: {0}")]
    Register(ttrpc::Error),
    #[error("serve: {0}")]
    Serve(ttrpc::Error),
    #[error("{0}")]
    Broken(std::io::Error),
    #[error("the container runtime closed the connection")]
    Closed,
}

/// Connects, registers, and answers until the connection ends.
async fn connection(socket: &Path, plugin: Arc<Plugin>) -> Ended {
    let trunk = match UnixStream::connect(socket).await {
        Ok(trunk) => trunk,
        Err(error) => return Ended::Connect(error),
    };
    let (served, called, carry) = Mux::new(trunk).into_parts();
    let once = futures::stream::once(async { std::io::Result::Ok(served) });
    let listener = Listener::new(futures::StreamExt::chain(once, futures::stream::pending()));
    let services = HashMap::from([("nri.pkg.api.v1alpha1.Plugin".to_owned(), plugin.service())]);
    let mut server = Server::new().add_listener(listener).register_service(services);
    if let Err(error) = server.start().await {
        return Ended::Serve(error);
    }
    let client = Client::new(Socket::new(called));
    let registered = async {
        match client.request(register()).await {
            Ok(_) => std::future::pending().await,
            Err(error) => Ended::Register(error),
        }
    };
    let ended = tokio::select! {
        carried = carry => carried.map_or_else(Ended::Broken, |()| Ended::Closed),
        ended = registered => ended,
    };
    // Else its tasks would wait for connections that never come.
    let _ = server.shutdown().await;
    ended
}

fn register() -> Request {
    let register = RegisterPluginRequest {
        plugin_name: "larder".to_owned(),
        // Plugins are asked in the order of these two digits.
        plugin_idx: "50".to_owned(),
        nri_version: NRI_VERSION.to_owned(),
    };
    let mut request = Request::new();
    request.service = "nri.pkg.api.v1alpha1.Runtime".to_owned();
    request.method = "RegisterPlugin".to_owned();
    request.timeout_nano = REGISTER_TIMEOUT.as_nanos() as i64;
    request.payload = register.encode_to_vec();
    request
}

#[cfg(test)]
mod tests;
