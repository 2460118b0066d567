//! Datasets, caches and labels as the controller and larderds write them, and the pods that read.

use anyhow::Context;
use futures::stream::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use larder_api::names::{
    ANONYMOUS_OWNER, DATA_ANNOTATION, DATASETS_ANNOTATION, DatasetKey, READS_DATA_RESOURCE, node_label_value,
};
use larder_api::{Dataset, NodeCache};
use larder_kube::api::{Patch, PatchParams, PostParams};
use larder_kube::{Api, Client};
use serde_json::{Value, json};

use super::scheduler::SCHEDULER;
use crate::jobs::work::Work;
use crate::kubernetes::objects::{AT_ONCE, NAMESPACE};

/// The bytes of each dataset.
const BYTES: u64 = 100 << 30;
/// CPUs of a pod, of the 96 of a node.
pub(super) const CPUS: u32 = 2;
/// Number of pods that fit on a node.
pub(super) const ROOM: u32 = 96 / CPUS;

/// A dataset of the benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) name: String,
    number: u8,
}

impl Data {
    /// `number` must be unique among the datasets.
    pub(super) fn new(name: String, number: u8) -> Self {
        Self { name, number }
    }

    fn snapshot(&self) -> String {
        format!("{:02x}", self.number).repeat(32)
    }

    fn label(&self) -> anyhow::Result<String> {
        DatasetKey::new(NAMESPACE, &self.name).node_label().context("compute the label of a dataset")
    }

    /// Creates the Dataset as if it had been imported, so that a controller has nothing left to do for it.
    pub(super) async fn make(&self, client: &Client) -> anyhow::Result<()> {
        let api: Api<Dataset> = Api::namespaced(client.clone(), NAMESPACE);
        let object = json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
            "metadata": {"name": self.name},
            "spec": {"origin": {"source": format!("s3://{}/train", self.name), "anonymous": true}},
        });
        let made = || format!("make the Dataset {}", self.name);
        api.create(&PostParams::default(), &serde_json::from_value(object)?).await.with_context(made)?;
        let snapshot = json!({"id": self.snapshot(), "files": 1000, "bytes": BYTES});
        let status = json!({"snapshot": self.snapshot(), "files": 1000, "bytes": BYTES, "snapshots": [snapshot]});
        let patch = Patch::Merge(json!({"status": status}));
        api.patch_status(&self.name, &PatchParams::default(), &patch).await.map(drop).with_context(made)
    }

    /// Reports that a node holds this percentage of the dataset.
    pub(super) async fn hold(&self, client: &Client, node: &str, percent: u64) -> anyhow::Result<()> {
        let caches: Api<NodeCache> = Api::all(client.clone());
        let held = || format!("report the cache of {node}");
        let cache =
            json!({"apiVersion": "larder.dev/v1alpha1", "kind": "NodeCache", "metadata": {"name": node}, "spec": {}});
        let apply = PatchParams::apply(NAMESPACE).force();
        caches.patch(node, &apply, &Patch::Apply(&cache)).await.with_context(held)?;
        let bytes = BYTES / 100 * percent;
        let here = json!({"snapshot": self.snapshot(), "owner": ANONYMOUS_OWNER, "bytes": bytes, "wantedBytes": BYTES,
            "reservedBytes": BYTES});
        let status = json!({"capacityBytes": BYTES * 4, "freeBytes": BYTES * 3, "snapshots": [here]});
        let patch = Patch::Merge(json!({"status": status}));
        caches.patch_status(node, &PatchParams::default(), &patch).await.with_context(held)?;
        let Some(value) = node_label_value(bytes, BYTES) else { return Ok(()) };
        let key = self.label()?;
        let label = json!({"metadata": {"labels": {key: value}}});
        let nodes: Api<Node> = Api::all(client.clone());
        nodes.patch_metadata(node, &PatchParams::default(), &Patch::Merge(label)).await.map(drop).with_context(held)
    }

    /// Reports that each of these nodes holds the whole dataset.
    pub(super) async fn hold_on(&self, client: &Client, nodes: &[String]) -> anyhow::Result<()> {
        let held = futures::stream::iter(nodes).map(anyhow::Ok);
        held.try_for_each_concurrent(AT_ONCE, |node| self.hold(client, node, 100)).await
    }

    /// A pod that reads the dataset, for the benchmark's scheduler, with the limit of the component's policy.
    pub(super) fn pod(&self, name: String) -> Value {
        let mut pod = Self::foreign_pod(name);
        pod["metadata"]["annotations"][DATASETS_ANNOTATION] = self.name.clone().into();
        pod["spec"]["containers"][0]["resources"]["limits"][READS_DATA_RESOURCE] = "0".into();
        pod
    }

    /// A pod without a dataset, for the benchmark's scheduler.
    pub(super) fn foreign_pod(name: String) -> Value {
        let work = Work { cpus: CPUS, ..Work::new(name, 1, NAMESPACE) };
        let mut pod = work.bare_pods(None).pop().unwrap_or_default();
        pod["spec"]["schedulerName"] = SCHEDULER.into();
        pod
    }

    /// A pod that reads the dataset and may run only on nodes that have it.
    pub(super) fn waiting_pod(&self, name: String) -> Value {
        let mut pod = self.pod(name);
        pod["metadata"]["annotations"][DATA_ANNOTATION] = "required".into();
        pod
    }

    /// A pod that reads the dataset, with the node affinity of `deploy/components/datasets/base/affinity.yaml`.
    pub(super) fn steered_pod(&self, name: String) -> anyhow::Result<Value> {
        let label = self.label()?;
        let term = |(weight, more_than): (u32, &str)| {
            let expression = json!({"key": label, "operator": "Gt", "values": [more_than]});
            json!({"weight": weight, "preference": {"matchExpressions": [expression]}})
        };
        let terms = [(30, "9"), (30, "49"), (40, "89")].map(term);
        let mut pod = self.pod(name);
        pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = json!(terms);
        Ok(pod)
    }

    /// A TrainingJob of `pods` pods that read the dataset.
    pub(super) fn training_job(&self, name: String, pods: u32) -> Value {
        let work = Work { cpus: CPUS, ..Work::new(name, pods, NAMESPACE) };
        let mut job = work.training_job();
        job["spec"]["datasets"] = json!([{"name": self.name, "mountPath": "/data"}]);
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_differ_only_in_how_they_are_steered_to_their_data() {
        let data = Data::new("pets".to_owned(), 7);
        let (plain, steered) = (data.pod("p".to_owned()), data.steered_pod("p".to_owned()).unwrap());
        assert_eq!(plain["metadata"]["annotations"][DATASETS_ANNOTATION], "pets");
        assert_eq!([&plain["spec"]["schedulerName"], &plain["metadata"]["name"]], [SCHEDULER, "p-0"]);
        let mut without = steered.clone();
        without["spec"].as_object_mut().unwrap().remove("affinity");
        assert_eq!(without, plain);
        assert_eq!(data.waiting_pod("p".to_owned())["metadata"]["annotations"][DATA_ANNOTATION], "required");
        let job = data.training_job("j".to_owned(), 3);
        assert_eq!(
            (&job["spec"]["roles"][0]["replicas"], &job["spec"]["datasets"][0]["name"]),
            (&json!(3), &json!("pets"))
        );
    }

    #[test]
    fn the_node_affinity_matches_the_shipped_policy() {
        let policy = include_str!("../../../deploy/components/datasets/base/affinity.yaml");
        let steered = Data::new("pets".to_owned(), 7).steered_pod("p".to_owned()).unwrap();
        let terms = &steered["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
        for term in terms.as_array().unwrap() {
            let expression = &term["preference"]["matchExpressions"][0];
            assert_eq!(expression["key"], "dataset.larder.dev/larder-bench.pets");
            let value = expression["values"][0].as_str().unwrap();
            let (_, of_policy) = policy.split_once(&format!("weight: {},", term["weight"])).unwrap();
            assert!(of_policy.contains(&format!("values: ['{value}']")), "{term}");
        }
        assert_eq!(terms.as_array().unwrap().len(), policy.matches("weight: ").count());
    }
}
