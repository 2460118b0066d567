//! The namespace and the nodes of a benchmark.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::stream::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use larder_api::names::LEASE;
use larder_kube::api::{DeleteParams, ListParams, PostParams};
use larder_kube::{Api, Client, Error};
use serde_json::json;

/// The namespace of all namespaced objects, and the prefix of the names of all others.
pub(crate) const NAMESPACE: &str = "larder-bench";
/// The label of the benchmark's nodes.
pub(crate) const BENCH_LABEL: &str = "larder.dev/bench";
/// The label of a node's part: a number that [`PART`] consecutive nodes share.
pub(crate) const PART_LABEL: &str = "larder.dev/bench-part";
/// Number of nodes in a part.
pub(crate) const PART: u32 = 100;
/// Number of GPUs of a node.
pub(crate) const GPUS: u32 = 8;

/// Number of concurrent requests.
pub(crate) const AT_ONCE: usize = 32;

/// Number of nodes in a zone.
const ZONE: u32 = 256;

/// The timeout of the namespace's deletion.
const GOING: Duration = Duration::from_secs(600);

/// Fails if a controller that is not the benchmark's runs in the cluster.
pub(crate) async fn refuse_another_controller(client: &Client) -> anyhow::Result<()> {
    let leases = Api::<Lease>::all(client.clone());
    let leases = leases.list(&ListParams::default().fields(&format!("metadata.name={LEASE}"))).await;
    let leases = leases.context("list Leases")?;
    let other = |lease: &&Lease| lease.metadata.namespace.as_deref() != Some(NAMESPACE);
    if let Some(lease) = leases.iter().find(other) {
        let namespace = lease.metadata.namespace.as_deref().unwrap_or_default();
        bail!("a larder-controller runs in the namespace {namespace}: use a dedicated cluster");
    }
    Ok(())
}

pub(crate) async fn make_namespace(client: &Client) -> anyhow::Result<()> {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
    let created = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await;
    created.with_context(|| format!("create the namespace {NAMESPACE}"))?;
    // Pods need this account. Kubernetes also creates it, so an error AlreadyExists is success.
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE);
    match accounts.create(&PostParams::default(), &account).await {
        Err(Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop).context("make the ServiceAccount default"),
    }
}

/// The name of the `nth` node.
pub(crate) fn node(nth: u32) -> String {
    format!("{NAMESPACE}-{nth:05}")
}

/// Creates the nodes with these numbers.
pub(crate) async fn make_nodes(client: &Client, numbers: Range<u32>) -> anyhow::Result<()> {
    let api: &Api<Node> = &Api::all(client.clone());
    let made = futures::stream::iter(numbers).map(anyhow::Ok);
    let made = made.try_for_each_concurrent(AT_ONCE, |nth| async move {
        let resources = json!({"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": GPUS.to_string()});
        let object = json!({
            "metadata": {
                "name": node(nth),
                "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
                "labels": {
                    BENCH_LABEL: "true",
                    PART_LABEL: (nth / PART).to_string(),
                    "kubernetes.io/hostname": node(nth),
                    "topology.kubernetes.io/zone": format!("zone-{}", nth / ZONE),
                },
            },
            "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
            "status": {"allocatable": resources, "capacity": resources},
        });
        let created = api.create(&PostParams::default(), &serde_json::from_value(object)?).await;
        created.map(drop).with_context(|| format!("create the node {}", node(nth)))
    });
    made.await
}

pub(crate) async fn delete_nodes(client: &Client) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let labelled = ListParams::default().labels(BENCH_LABEL);
    nodes.delete_collection(&DeleteParams::default(), &labelled).await.map(drop).context("delete the nodes")
}

pub(crate) async fn delete_namespace(client: &Client) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let deleted = namespaces.delete(NAMESPACE, &DeleteParams::default()).await;
    gone(deleted.map(drop)).context("delete the namespace")
}

pub(crate) async fn await_namespace_gone(client: &Client) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let started = Instant::now();
    while namespaces.get_opt(NAMESPACE).await.context("get the namespace")?.is_some() {
        if started.elapsed() > GOING {
            bail!("the namespace {NAMESPACE} is not being deleted; see `kubectl get namespace {NAMESPACE} -o yaml`");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// The names of the objects.
pub(crate) fn names<T>(objects: Vec<T>, name: impl Fn(T) -> Option<String>) -> Vec<String> {
    objects.into_iter().filter_map(name).collect()
}

/// Does `work` for each name.
pub(crate) async fn each(names: Vec<String>, work: impl AsyncFn(String) -> Result<(), Error>) -> anyhow::Result<()> {
    let work = &work;
    let named = futures::stream::iter(names).map(anyhow::Ok);
    let done = named.try_for_each_concurrent(AT_ONCE, |name| async move {
        work(name.clone()).await.with_context(|| format!("remove {name}"))
    });
    done.await
}

/// Deleting an object that is already gone succeeds.
pub(crate) fn gone(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
        other => other,
    }
}
