//! The objects that the bench makes, and their removal.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, bail};
use futures::stream::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use larder_controller_api::names::UID_LABEL;
use larder_controller_api::{Dataset, NodeCache};
use larder_stand_in::handover;
use serde_json::json;

use super::outcome::ControllerConfig;
use crate::kubernetes::objects::{self, AT_ONCE, NAMESPACE, each, gone, names};

pub(super) struct Objects {
    client: Client,
    config: ControllerConfig,
}

impl Objects {
    pub(super) fn new(client: &Client, config: &ControllerConfig) -> Self {
        Self { client: client.clone(), config: config.clone() }
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
        objects::refuse_another_controller(&self.client).await?;
        let caches = Api::<NodeCache>::all(self.client.clone()).list(&all).await.context("list NodeCaches")?;
        if let Some(cache) = caches.iter().find(|cache| cache.status.is_some() && !is_ours(&cache.metadata.name)) {
            let name = cache.metadata.name.as_deref().unwrap_or_default();
            bail!("a larderd reports the cache of the node {name}: use a cluster of the benchmark's own");
        }
        Ok(())
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

        objects::delete_namespace(&self.client).await?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let made = volumes.list(&ListParams::default().labels(UID_LABEL)).await.context("list the volumes")?;
        let ours = |volume: &PersistentVolume| {
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            claim.is_some_and(|claim| claim.namespace.as_deref() == Some(NAMESPACE))
        };
        let made = names(made.items.into_iter().filter(ours).collect(), |volume| volume.metadata.name);
        each(made, async |name| gone(volumes.delete(&name, &delete).await.map(drop))).await?;

        objects::delete_nodes(&self.client).await?;
        let caches: Api<NodeCache> = Api::all(self.client.clone());
        let made = caches.list(&all).await.context("list the NodeCaches")?.items;
        // Of other nodes only the controller of the bench has made any.
        let made = made.into_iter().filter(|cache| cache.status.is_none() || is_ours(&cache.metadata.name)).collect();
        let made = names(made, |cache| cache.metadata.name);
        each(made, async |name| gone(caches.delete(&name, &delete).await.map(drop))).await?;
        // Last: the jobs of a namespace that goes must not come to life.
        objects::await_namespace_gone(&self.client).await?;
        handover::give_back(&self.client, NAMESPACE).await
    }
}

fn dataset(nth: u32) -> String {
    format!("dataset-{nth:05}")
}

fn is_ours(name: &Option<String>) -> bool {
    name.as_deref().is_some_and(|name| name.starts_with(&format!("{NAMESPACE}-")))
}

fn note(sent: &Mutex<BTreeMap<String, Instant>>, name: &str) {
    sent.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(name.to_owned(), Instant::now());
}

fn taken(sent: Mutex<BTreeMap<String, Instant>>) -> BTreeMap<String, Instant> {
    sent.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
