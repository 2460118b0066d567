//! The objects that the benchmark creates, and their removal.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Context;
use futures::stream::{StreamExt, TryStreamExt};
use larder_api::Dataset;
use larder_fake_platform::handover;
use larder_kube::api::{DeleteParams, PostParams};
use larder_kube::{Api, Client};
use serde_json::json;

use super::outcome::ControllerConfig;
use crate::kubernetes::datasets;
use crate::kubernetes::objects::{self, AT_ONCE, NAMESPACE};

pub(super) struct Objects {
    client: Client,
    config: ControllerConfig,
}

impl Objects {
    pub(super) fn new(client: &Client, config: &ControllerConfig) -> Self {
        Self { client: client.clone(), config: config.clone() }
    }

    /// Fails if the cluster has a controller or Datasets that are not the benchmark's.
    pub(super) async fn refuse_a_cluster_in_use(&self) -> anyhow::Result<()> {
        datasets::refuse_others(&self.client).await?;
        objects::refuse_another_controller(&self.client).await
    }

    /// Creates the Datasets. Returns when each request was sent.
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

    /// Deletes the first `count` Datasets. Returns when each was deleted.
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

    /// Removes the objects of the benchmark and the objects that its controller created for them. The controller must
    /// have ended.
    pub(super) async fn remove(&self) -> anyhow::Result<()> {
        datasets::delete(&self.client).await?;
        objects::delete_namespace(&self.client).await?;
        datasets::delete_volumes(&self.client).await?;
        objects::delete_nodes(&self.client).await?;
        datasets::delete_caches(&self.client).await?;
        // Last, so that Kubernetes' Job controller never starts the jobs of a namespace that is being deleted.
        objects::await_namespace_gone(&self.client).await?;
        handover::give_back(&self.client, NAMESPACE).await
    }
}

fn dataset(nth: u32) -> String {
    format!("dataset-{nth:05}")
}

fn note(sent: &Mutex<BTreeMap<String, Instant>>, name: &str) {
    sent.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(name.to_owned(), Instant::now());
}

fn taken(sent: Mutex<BTreeMap<String, Instant>>) -> BTreeMap<String, Instant> {
    sent.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
