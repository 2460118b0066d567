//! The connection of a program to its cluster.

use anyhow::Context;
use kube::Client;

/// Connects as the pod's service account, or as KUBECONFIG says.
///
/// # Errors
/// There is neither.
pub async fn connect() -> anyhow::Result<Client> {
    let client = Client::try_default().await;
    client.context("connect to the Kubernetes API: run in a pod with a service account, or set KUBECONFIG")
}
