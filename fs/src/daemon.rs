//! The node daemon: one cache, many mounts.
//!
//! Its parts: [`DaemonConfig`] configures it; [`Daemon`] is a [`Node`](larder_cachenode::Node) with mounts (`core`);
//! `mounts` owns the mounts; `service` answers gRPC; `handover` takes connections from the keeper and returns the ones
//! that are held; `keepers` decides when either may stop; `descriptor_store` keeps our own mounts while a service
//! restarts; `offers` holds the connections that are not served yet; `error` is the only place where an error becomes a
//! gRPC code.
//!
//! Invariants: a mount is listed while the kernel may send it requests. Credentials are in memory only.

mod convert;
mod core;
mod descriptor_store;
mod error;
mod handover;
mod keepers;
mod mounts;
mod offers;
mod service;

use std::path::PathBuf;
use std::sync::Arc;

use larder_cachenode::process::wait_for_folder;
use larder_daemon_api::socket::{GRPC_SOCKET, HANDOVER_SOCKET};
use larder_dataset::Chain;
use tracing::warn;

use crate::starved;

pub use self::convert::cache_info;
pub use self::core::{Daemon, DaemonConfig};
pub use descriptor_store::{DescriptorStore, LeftMount};
pub use error::DaemonError;
use handover::CurrentKeeper;

impl Daemon {
    /// Serves the sockets until [`Self::stopping`] is cancelled or, if so configured, the last mount has ended. Errors:
    /// a socket or the admin address cannot be used, or a task of the daemon ended unexpectedly.
    pub async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        let mut tasks = tokio::task::JoinSet::new();
        let keeper = CurrentKeeper::default();
        for dir in &self.run_dirs {
            tasks.spawn(Arc::clone(&self).serve_in(dir.clone(), keeper.clone()));
        }
        if let Some(at) = self.admin.clone() {
            tasks.spawn(service::serve_admin(Arc::clone(&self), at));
        }
        let node = Arc::clone(&self.node);
        tasks.spawn(async move { node.run().await });
        tasks.spawn(starved::follow(Arc::clone(&self.node)));
        let daemon = Arc::clone(&self);
        let let_go = move || daemon.keep_what_is_here();
        tasks.spawn(self.keepers.without_one(let_go));
        tasks.spawn(Arc::clone(&self).collect_manifests());
        tasks.spawn(Arc::clone(&self).follow_own_credentials());
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
        for dir in &self.run_dirs {
            for socket in [GRPC_SOCKET, HANDOVER_SOCKET] {
                let _ = std::fs::remove_file(dir.join(socket));
            }
        }
        tasks.shutdown().await;
        outcome
    }

    /// Serves the sockets in a folder once it is writable: `larder-csi` may still have to make this user its owner.
    /// Errors: the folder was writable from the start, but a socket in it cannot be used.
    async fn serve_in(self: Arc<Self>, dir: PathBuf, keeper: CurrentKeeper) -> anyhow::Result<()> {
        let was_late = wait_for_folder(&dir).await;
        let served = tokio::try_join!(
            service::serve(Arc::clone(&self), dir.join(GRPC_SOCKET)),
            handover::serve(Arc::clone(&self), keeper, dir.join(HANDOVER_SOCKET)),
        );
        match served {
            Err(error) if was_late => {
                warn!(
                    error = %Chain(&*error),
                    "cannot serve the sockets in a folder: using the other \
                folders"
                );
                self.stopping().cancelled().await;
                Ok(())
            }
            served => served.map(drop),
        }
    }
}
