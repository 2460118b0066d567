//! Shared code of the benchmarks in a Kubernetes cluster of fake nodes.
//!
//! The cast: `objects` creates and removes the namespace and the nodes; `datasets` removes Datasets and the objects
//! that the controller created for them; `running` is the controller's process; `wait` waits for a state of the
//! cluster.
//!
//! Invariant: each object of a benchmark is in the namespace [`NAMESPACE`](objects::NAMESPACE), or its name begins with
//! the namespace's name. The next run can therefore remove the objects of a killed run.

pub(crate) mod datasets;
pub(crate) mod objects;
pub(crate) mod running;
pub(crate) mod wait;

use anyhow::Context;
use larder_kube::Client;
use larder_kube::config::{KubeConfigOptions, Kubeconfig};
pub use running::Places;

/// A client of the cluster.
pub(crate) async fn connect(places: &Places) -> anyhow::Result<Client> {
    let Some(path) = &places.kubeconfig else {
        return Client::try_default().await.context("connect to the cluster: set KUBECONFIG, or give --kubeconfig");
    };
    let named = || format!("--kubeconfig {}", path.display());
    let kubeconfig = Kubeconfig::read_from(path).with_context(named)?;
    let options = KubeConfigOptions::default();
    let config = larder_kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.with_context(named)?;
    Client::try_from(config).with_context(named)
}
