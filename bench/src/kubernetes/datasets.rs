//! Removal of a benchmark's Datasets and of the objects that a controller creates for them.

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::PersistentVolume;
use larder_api::names::UID_LABEL;
use larder_api::{Dataset, NodeCache};
use larder_kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use larder_kube::{Api, Client};
use serde_json::json;

use super::objects::{NAMESPACE, each, gone, names};

/// Fails if the cluster has Datasets or NodeCaches that are not the benchmark's.
pub(crate) async fn refuse_others(client: &Client) -> anyhow::Result<()> {
    let all = ListParams::default();
    let datasets = Api::<Dataset>::all(client.clone())
        .list(&all)
        .await
        .context("list Datasets: if the CRDs are missing, run `kubectl apply -k deploy/crds` and try again")?;
    let other = |namespace: &Option<String>| namespace.as_deref() != Some(NAMESPACE);
    if let Some(dataset) = datasets.iter().find(|dataset| other(&dataset.metadata.namespace)) {
        let (namespace, name) = (dataset.metadata.namespace.as_deref(), dataset.metadata.name.as_deref());
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        bail!("the cluster has the Dataset {namespace}/{name}: use a dedicated cluster");
    }
    let caches = Api::<NodeCache>::all(client.clone()).list(&all).await.context("list NodeCaches")?;
    if let Some(cache) = caches.iter().find(|cache| cache.status.is_some() && !is_ours(&cache.metadata.name)) {
        let name = cache.metadata.name.as_deref().unwrap_or_default();
        bail!("a larderd reports the cache of the node {name}: use a dedicated cluster");
    }
    Ok(())
}

/// Deletes the Datasets. The controller must have ended.
pub(crate) async fn delete(client: &Client) -> anyhow::Result<()> {
    let all = ListParams::default();
    let datasets: Api<Dataset> = Api::namespaced(client.clone(), NAMESPACE);
    datasets.delete_collection(&DeleteParams::default(), &all).await.context("delete the Datasets")?;
    // No controller runs that would remove the finalizers.
    let left = names(datasets.list(&all).await.context("list the Datasets")?.items, |dataset| dataset.metadata.name);
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    each(left, async |name| gone(datasets.patch(&name, &PatchParams::default(), &free).await.map(drop))).await
}

/// Deletes the PersistentVolumes that a controller created.
pub(crate) async fn delete_volumes(client: &Client) -> anyhow::Result<()> {
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let made = volumes.list(&ListParams::default().labels(UID_LABEL)).await.context("list the volumes")?;
    let ours = |volume: &PersistentVolume| {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        claim.is_some_and(|claim| claim.namespace.as_deref() == Some(NAMESPACE))
    };
    let made = names(made.items.into_iter().filter(ours).collect(), |volume| volume.metadata.name);
    let delete = DeleteParams::default();
    each(made, async |name| gone(volumes.delete(&name, &delete).await.map(drop))).await
}

/// Deletes the NodeCaches of the benchmark's nodes.
pub(crate) async fn delete_caches(client: &Client) -> anyhow::Result<()> {
    let caches: Api<NodeCache> = Api::all(client.clone());
    let made = caches.list(&ListParams::default()).await.context("list the NodeCaches")?.items;
    // NodeCaches of other nodes can only come from the benchmark's own controller: a cluster with others was rejected.
    let made = made.into_iter().filter(|cache| cache.status.is_none() || is_ours(&cache.metadata.name)).collect();
    let made = names(made, |cache| cache.metadata.name);
    let delete = DeleteParams::default();
    each(made, async |name| gone(caches.delete(&name, &delete).await.map(drop))).await
}

fn is_ours(name: &Option<String>) -> bool {
    name.as_deref().is_some_and(|name| name.starts_with(&format!("{NAMESPACE}-")))
}
