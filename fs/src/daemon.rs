//! The node daemon: one cache, many mounts.
//!
//! The cast: [`DaemonConfig`] configures it; [`Daemon`] is a [`Node`](larder_cachenode::Node) with mounts (`core`); `mounts`
//! owns the mounts; `service` answers gRPC; `handover` takes connections from the keeper and returns those that are held;
//! `offers` has those that are not served yet; `error` is the only place where an error becomes a gRPC code.
//!
//! Invariants: a mount is listed for as long as the kernel may send it requests. Credentials are in memory only.

mod convert;
mod core;
mod error;
mod handover;
mod mounts;
mod offers;
mod service;

use std::sync::Arc;

use larder_daemon_api::socket::{GRPC_SOCKET, HANDOVER_SOCKET};
use larder_daemon_api::v1;
use larder_dataset::environment::PEER_TOKEN;

pub use self::core::{Daemon, DaemonConfig};
pub use error::DaemonError;

impl Daemon {
    /// Serves the sockets, until [`Self::stopping`] is cancelled or, if so configured, the last mount has ended.
    /// Errors: a socket or the admin address cannot be used, or a task of the daemon has ended.
    pub async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(service::serve(Arc::clone(&self), self.run_dir.join(GRPC_SOCKET)));
        tasks.spawn(handover::serve(Arc::clone(&self), self.run_dir.join(HANDOVER_SOCKET)));
        if let Some(address) = self.admin {
            tasks.spawn(service::serve_admin(Arc::clone(&self), address));
        }
        let node = Arc::clone(&self.node);
        tasks.spawn(async move { node.share().await });
        let daemon = Arc::clone(&self);
        let let_go = move || daemon.keep_what_is_here();
        tasks.spawn(handover::without_keeper(self.keepers.subscribe(), let_go));
        let mounts = self.mounts.clone();
        tasks.spawn(async move {
            mounts.wait_until(|_| false).await?;
            Ok(())
        });
        let stopping = self.stopping();
        let outcome = tokio::select! {
            () = stopping.cancelled() => Ok(()),
            Some(ended) = tasks.join_next() => ended.map_err(anyhow::Error::from).flatten(),
        };
        stopping.cancel();
        for socket in [GRPC_SOCKET, HANDOVER_SOCKET] {
            let _ = std::fs::remove_file(self.run_dir.join(socket));
        }
        tasks.shutdown().await;
        outcome
    }
}

/// The variables of this process with which origins are accessed.
pub fn origin_variables() -> v1::Credentials {
    const PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];
    // Profile files are looked for at home.
    let wanted =
        |name: &str| ["HOME", PEER_TOKEN].contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    v1::Credentials {
        variables: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| wanted(name))
            .collect(),
    }
}
