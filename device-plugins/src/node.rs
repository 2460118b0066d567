//! Reports the node's devices to Kubernetes: labels and a condition of the node, and Events.
//!
//! The cast: [`labels`], [`condition`] and [`events`] decide, all pure. [`holders`] knows which pods hold which devices, from
//! [`pods`], which asks the kubelet, and [`uids`]. The other modules write.
//!
//! Invariants: writes follow from the newest view and the API server's state, so a restart of either side loses only Events. Only
//! the labels below [`labels::PREFIX`] and one condition of the Node are touched. A failure stops nothing else and is retried with
//! growing pauses.

pub mod condition;
pub mod counters;
mod emit;
pub mod events;
pub mod holders;
pub mod labels;
mod object;
pub mod pods;
pub mod uids;
pub mod words;

#[cfg(test)]
pub(crate) mod samples;

use std::sync::Arc;
use std::time::Duration;

use larder_kube::Client;
use tokio::sync::{mpsc, watch};
use tracing::warn;

use crate::health::Notice;
use crate::view::View;
use counters::Counters;
use pods::Pods;

/// The pause before another attempt to configure a client.
const CONNECT_EVERY: Duration = Duration::from_secs(30);

/// Reports the node's devices.
#[derive(Clone, Debug)]
pub struct Reporter {
    pub node: String,
    pub pods: Arc<Pods>,
    pub counters: Arc<Counters>,
}

impl Reporter {
    /// Reports until the sender of views is gone, starting with the current view. Waits until a client can be configured.
    pub async fn run(self, view: watch::Receiver<Arc<View>>, notices: mpsc::Receiver<Notice>) {
        self.run_with(connect().await, view, notices).await;
    }

    /// The same with a client.
    pub async fn run_with(self, client: Client, view: watch::Receiver<Arc<View>>, notices: mpsc::Receiver<Notice>) {
        let Self { node, pods, counters } = self;
        let (found, to_make) = mpsc::channel(emit::WAITING);
        let finder = emit::Finder { node: node.clone(), pods, found, counters: Arc::clone(&counters) };
        let object = object::keep(client.clone(), node.clone(), view.clone(), Arc::clone(&counters));
        tokio::join!(object, finder.run(view, notices), emit::make(client, node, to_make, counters));
    }
}

/// A client of the API server, which may be unreachable.
pub async fn connect() -> Client {
    loop {
        match Client::try_default().await {
            Ok(client) => return client,
            Err(error) => {
                warn!(%error, "cannot configure a Kubernetes client: larder-devices needs a service account or KUBECONFIG")
            }
        }
        tokio::time::sleep(CONNECT_EVERY).await;
    }
}

#[cfg(test)]
mod tests;
