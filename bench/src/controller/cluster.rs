//! The objects that the bench makes, and their removal.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::stream::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use larder_controller_api::names::{LEASE, UID_LABEL};
use larder_controller_api::{Dataset, NodeCache};
use larder_stand_in::handover;
use serde_json::json;

use super::outcome::ControllerConfig;

/// The namespace of everything that is in one, and the start of the names of everything else.
pub(super) const NAMESPACE: &str = "larder-bench";
/// On the nodes.
pub(super) const BENCH_LABEL: &str = "larder.dev/bench";

/// Requests at the same time.
const AT_ONCE: usize = 32;

/// Nodes of a zone.
const ZONE: u32 = 256;

/// How long a namespace may take to go.
const GOING: Duration = Duration::from_secs(600);

pub(super) struct Objects {
    client: Client,
    config: ControllerConfig,
}

impl Objects {
    pub(super) fn new(client: &Client, config: &ControllerConfig) -> Self {
        Self { client: client.clone(), config: config.clone() }
    }

    /// The names of the nodes.
    pub(super) fn nodes(&self) -> impl Iterator<Item = String> {
        (0..self.config.nodes).map(node)
    }

    /// Fails if a controller or datasets that are not the bench's are in the cluster.
    pub(super) async fn refuse_a_cluster_in_use(&self) -> anyhow::Result<()> {
        let all = ListParams::default();
        let datasets = Api::<Dataset>::all(self.client.clone()).list(&all).await.context(
            "list Datasets: if the cluster does not know them, `kubectl apply -k deploy/crds` and repeat this",
        )?;
        let other = |namespace: &Option<String>| namespace.as_deref() != Some(NAMESPACE);
        if let Some(dataset) = datasets.iter().find(|dataset| other(&dataset.metadata.namespace)) {
            let (namespace, name) = (dataset.metadata.namespace.as_deref(), dataset.metadata.name.as_deref());
            let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
            bail!("the cluster has the Dataset {namespace}/{name}: use a cluster of the benchmark's own");
        }
        let leases = Api::<Lease>::all(self.client.clone());
        let leases = leases.list(&ListParams::default().fields(&format!("metadata.name={LEASE}"))).await;
        let leases = leases.context("list Leases")?;
        if let Some(lease) = leases.iter().find(|lease| other(&lease.metadata.namespace)) {
            let namespace = lease.metadata.namespace.as_deref().unwrap_or_default();
            bail!("a larder-controller runs in the namespace {namespace}: use a cluster of the benchmark's own");
        }
        let caches = Api::<NodeCache>::all(self.client.clone()).list(&all).await.context("list NodeCaches")?;
        if let Some(cache) = caches.iter().find(|cache| cache.status.is_some() && !is_ours(&cache.metadata.name)) {
            let name = cache.metadata.name.as_deref().unwrap_or_default();
            bail!("a larderd reports the cache of the node {name}: use a cluster of the benchmark's own");
        }
        Ok(())
    }

    pub(super) async fn make_namespace(&self) -> anyhow::Result<()> {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        let created = Api::<Namespace>::all(self.client.clone()).create(&PostParams::default(), &namespace).await;
        created.with_context(|| format!("make the namespace {NAMESPACE}"))?;
        // The pods need it; Kubernetes makes it soon, and then this is refused.
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), NAMESPACE);
        match accounts.create(&PostParams::default(), &account).await {
            Err(Error::Api(status)) if status.code == 409 => Ok(()),
            other => other.map(drop).context("make the ServiceAccount default"),
        }
    }

    pub(super) async fn make_nodes(&self) -> anyhow::Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        let api = &api;
        let made = futures::stream::iter(0..self.config.nodes).map(anyhow::Ok);
        let made = made.try_for_each_concurrent(AT_ONCE, |nth| async move {
            let resources = json!({"cpu": "96", "memory": "1Ti", "pods": "110"});
            let object = json!({
                "metadata": {
                    "name": node(nth),
                    "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
                    "labels": {
                        BENCH_LABEL: "true",
                        "kubernetes.io/hostname": node(nth),
                        "topology.kubernetes.io/zone": format!("zone-{}", nth / ZONE),
                    },
                },
                "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
                "status": {"allocatable": resources, "capacity": resources},
            });
            let created = api.create(&PostParams::default(), &serde_json::from_value(object)?).await;
            created.map(drop).with_context(|| format!("make the node {}", node(nth)))
        });
        made.await
    }

    /// Makes the Datasets. Returns when each was sent.
    pub(super) async fn make_datasets(&self) -> anyhow::Result<BTreeMap<String, Instant>> {
        let api: Api<Dataset> = Api::namespaced(self.client.clone(), NAMESPACE);
        let sent = Mutex::new(BTreeMap::new());
        let (api, noted) = (&api, &sent);
        let made = futures::stream::iter(0..self.config.datasets).map(anyhow::Ok);
        let made = made.try_for_each_concurrent(AT_ONCE, |nth| async move {
            let name = dataset(nth);
            let object = json!({
                "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
                "metadata": {"name": name},
                "spec": {
                    "origin": {"source": format!("s3://{name}/train"), "secretRef": {"name": "origin"}},
                    "nodes": {"count": self.config.count},
                },
            });
            note(noted, &name);
            let created = api.create(&PostParams::default(), &serde_json::from_value(object)?).await;
            created.map(drop).with_context(|| format!("make the Dataset {name}"))
        });
        made.await?;
        Ok(taken(sent))
    }

    /// Deletes the first of the Datasets. Returns when each was.
    pub(super) async fn delete_datasets(&self, count: u32) -> anyhow::Result<BTreeMap<String, Instant>> {
        let api: Api<Dataset> = Api::namespaced(self.client.clone(), NAMESPACE);
        let sent = Mutex::new(BTreeMap::new());
        let (api, noted) = (&api, &sent);
        let deleted = futures::stream::iter(0..count).map(anyhow::Ok);
        let deleted = deleted.try_for_each_concurrent(AT_ONCE, |nth| async move {
            let name = dataset(nth);
            note(noted, &name);
            let deleted = api.delete(&name, &DeleteParams::default()).await;
            deleted.map(drop).with_context(|| format!("delete the Dataset {name}"))
        });
        deleted.await?;
        Ok(taken(sent))
    }

    /// Removes everything that a bench makes, and what a controller makes for it. The controller must have ended.
    pub(super) async fn remove(&self) -> anyhow::Result<()> {
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        let datasets: Api<Dataset> = Api::namespaced(self.client.clone(), NAMESPACE);
        datasets.delete_collection(&delete, &all).await.context("delete the Datasets")?;
        // No controller does it any more.
        let left =
            names(datasets.list(&all).await.context("list the Datasets")?.items, |dataset| dataset.metadata.name);
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        each(left, async |name| gone(datasets.patch(&name, &PatchParams::default(), &free).await.map(drop))).await?;

        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        gone(namespaces.delete(NAMESPACE, &delete).await.map(drop)).context("delete the namespace")?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let made = volumes.list(&ListParams::default().labels(UID_LABEL)).await.context("list the volumes")?;
        let ours = |volume: &PersistentVolume| {
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            claim.is_some_and(|claim| claim.namespace.as_deref() == Some(NAMESPACE))
        };
        let made = names(made.items.into_iter().filter(ours).collect(), |volume| volume.metadata.name);
        each(made, async |name| gone(volumes.delete(&name, &delete).await.map(drop))).await?;

        let nodes: Api<Node> = Api::all(self.client.clone());
        let labelled = ListParams::default().labels(BENCH_LABEL);
        nodes.delete_collection(&delete, &labelled).await.context("delete the nodes")?;
        let caches: Api<NodeCache> = Api::all(self.client.clone());
        let made = caches.list(&all).await.context("list the NodeCaches")?.items;
        // Of other nodes only the controller of the bench has made any.
        let made = made.into_iter().filter(|cache| cache.status.is_none() || is_ours(&cache.metadata.name)).collect();
        let made = names(made, |cache| cache.metadata.name);
        each(made, async |name| gone(caches.delete(&name, &delete).await.map(drop))).await?;
        // Last: the jobs of a namespace that goes must not come to life.
        let started = Instant::now();
        while namespaces.get_opt(NAMESPACE).await.context("look at the namespace")?.is_some() {
            if started.elapsed() > GOING {
                bail!("the namespace {NAMESPACE} does not go; `kubectl get namespace {NAMESPACE} -o yaml` says why");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        handover::give_back(&self.client, NAMESPACE).await
    }
}

fn node(nth: u32) -> String {
    format!("{NAMESPACE}-{nth:05}")
}

fn dataset(nth: u32) -> String {
    format!("dataset-{nth:05}")
}

fn is_ours(name: &Option<String>) -> bool {
    name.as_deref().is_some_and(|name| name.starts_with(&format!("{NAMESPACE}-")))
}

fn names<T>(objects: Vec<T>, name: impl Fn(T) -> Option<String>) -> Vec<String> {
    objects.into_iter().filter_map(name).collect()
}

async fn each(names: Vec<String>, work: impl AsyncFn(String) -> Result<(), Error>) -> anyhow::Result<()> {
    let work = &work;
    let named = futures::stream::iter(names).map(anyhow::Ok);
    let done = named.try_for_each_concurrent(AT_ONCE, |name| async move {
        work(name.clone()).await.with_context(|| format!("remove {name}"))
    });
    done.await
}

/// Deleting an object that is already gone succeeds.
fn gone(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
        other => other,
    }
}

fn note(sent: &Mutex<BTreeMap<String, Instant>>, name: &str) {
    sent.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(name.to_owned(), Instant::now());
}

fn taken(sent: Mutex<BTreeMap<String, Instant>>) -> BTreeMap<String, Instant> {
    sent.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
