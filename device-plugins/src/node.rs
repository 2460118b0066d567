//! Reports the node's devices to Kubernetes: labels and a condition of the node, and events.
//!
//! The cast: [`labels`], [`condition`] and [`events`] decide, all pure; [`holders`] says which pods hold which devices, after
//! [`pods`], which asks the kubelet, and [`uids`]; the rest writes.
//!
//! Invariants: what is written follows from the newest view and from what the API server has, so a restart of either side loses
//! nothing but events. Of the node's object, only the labels below [`labels::PREFIX`] and one condition are touched. No failure
//! stops the rest, and none is retried without a growing pause.

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

/// The pause before the API is looked for again.
const CONNECT_EVERY: Duration = Duration::from_secs(30);

/// What the reporter works with.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// The node's name.
    pub node: String,
    /// Who holds devices.
    pub pods: Arc<Pods>,
    /// What it counts.
    pub counters: Arc<Counters>,
}

impl Reporter {
    /// Reports until there will be no more views, beginning with the one that is there. Without an API server it waits for one.
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

/// A client of the API server, whether or not that answers now.
pub async fn connect() -> Client {
    loop {
        match Client::try_default().await {
            Ok(client) => return client,
            Err(error) => warn!(%error, "no Kubernetes API: larder-devices needs a service account, or KUBECONFIG"),
        }
        tokio::time::sleep(CONNECT_EVERY).await;
    }
}

#[cfg(test)]
mod tests;
