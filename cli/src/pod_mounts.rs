//! The mounts of a pod, explained by the `larder` in the larder-csi pod of its node, which sees all mounts of the node.

use anyhow::{Context, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use larder_api::names::SYSTEM_NAMESPACE;
use larder_dataset::size::show_bytes;
use larder_kube::Error;
use larder_kube::api::AttachParams;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::cluster::{ANSWER, Asked, Cluster, EXEC, POD, typed};

/// The label selector of larder-csi's pods, and its container in them.
const SELECTOR: &str = "app.kubernetes.io/name=larder-csi";
const CONTAINER: &str = "larder-csi";
const COMMAND: [&str; 3] = ["larder", "explain", "--json"];
/// The largest output in bytes. A mount takes 60 KB.
const MOST: u64 = 64 << 20;

/// A mount, as `larder explain --json` prints it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PodMount {
    pub(crate) mount: String,
    pub(crate) sentence: String,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

/// The mounts of the pod with this uid. Errors: the user may not run a program in larder-csi's pods, or it fails.
pub(crate) async fn of(cluster: &Cluster, node: &str, uid: &str) -> anyhow::Result<Vec<PodMount>> {
    let asked = Asked::all(POD, Some(SYSTEM_NAMESPACE));
    let mut name = None;
    let take = |object| {
        let Ok(pod) = typed::<Pod>(object) else { return };
        // While the DaemonSet is rolled or after an eviction, a node has a pod that has ended, too.
        let is_running = pod.status.is_some_and(|status| status.phase.as_deref() == Some("Running"));
        if is_running && pod.spec.is_some_and(|spec| spec.node_name.as_deref() == Some(node)) {
            name = pod.metadata.name;
        }
    };
    let listed = cluster.list(&asked, Some(SELECTOR.to_owned()), take).await;
    listed.map_err(|error| cluster.in_words(error, &asked))?;
    let Some(name) = name else { bail!("no larder-csi runs on {node}") };
    let output = timeout(ANSWER, run(cluster, &name)).await;
    let output =
        output.map_err(|_| anyhow!("no answer within {} s: a mount of {node} may hang", ANSWER.as_secs()))??;
    let mounts: Vec<PodMount> =
        serde_json::from_slice(&output).with_context(|| format!("the `larder` in {name} is of another release"))?;
    // The kubelet's folder for the pod.
    let folder = format!("/pods/{uid}/");
    Ok(mounts.into_iter().filter(|mount| mount.mount.contains(&folder)).collect())
}

/// Runs the command in a pod of larder-csi.
async fn run(cluster: &Cluster, name: &str) -> anyhow::Result<Vec<u8>> {
    let parameters = AttachParams::default().container(CONTAINER).stderr(false);
    let started = cluster.pods(SYSTEM_NAMESPACE).exec(name, COMMAND, &parameters).await;
    let mut process = started.map_err(|error| match error {
        Error::Api(status) if status.code == 403 => anyhow!(
            "needs `get` and `create` on pods/exec in {SYSTEM_NAMESPACE}, which administrators have ({})",
            status.message
        ),
        error => cluster.in_words(error, &Asked::one("create", EXEC, SYSTEM_NAMESPACE, name)),
    })?;
    let mut output = Vec::new();
    let stdout = process.stdout().context("the API server opens no output")?;
    stdout.take(MOST + 1).read_to_end(&mut output).await.context("read the output")?;
    process.abort();
    if output.len() as u64 > MOST {
        bail!("its node has so many mounts that {name} says more than {}", show_bytes(MOST));
    }
    Ok(output)
}
