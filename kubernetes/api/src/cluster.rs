//! The `Cluster`: another cluster that runs jobs of this one, or, under the name `here`, the cluster itself.
//!
//! The controller of each cluster describes it in the status of its own `here`. A home reads that object and copies it
//! into the status of its Cluster, so the form is the same in both.

#![expect(unreachable_pub, reason = "the derive of schemas copies each public struct into a function")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schemas;
use crate::vocabulary::{conditions, reasons};

/// The most groups of nodes in [`ClusterStatus::shapes`].
pub const SHAPES_MAX: usize = 64;
/// The most queues in [`ClusterStatus::queues`].
pub const QUEUES_MAX: usize = 256;
/// The most datasets in [`ClusterStatus::datasets`].
pub const DATASETS_MAX: usize = 1000;

conditions! {
    /// The type of a condition of a Cluster.
    pub enum ClusterConditionKind {
        /// The cluster answers, and its controller keeps its description up to date.
        Reachable,
    }
}

reasons! {
    /// Why a condition of a Cluster has its status.
    pub enum ClusterReason of ClusterConditionKind {
        /// The cluster answers.
        Answers of Reachable,
        /// The Cluster is `here`: the cluster itself.
        IsHere of Reachable,
        /// The cluster has not answered, or its controller has not written, for half a minute. The message has the last
        /// error. Its jobs run on.
        NoAnswer of Reachable,
        /// The Secret does not exist, or has no key `kubeconfig`.
        SecretMissing of Reachable,
        /// The kubeconfig cannot be used. It must have its certificates and its token in itself: one that names a
        /// command or a file is never followed. Its account must be that of a home, as `larder cluster join` makes one.
        KubeconfigRefused of Reachable,
        /// The cluster has no Cluster `here`, so its controller describes nothing.
        NotJoined of Reachable,
    }
}

/// Another cluster, or the cluster itself.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "larder.dev",
    version = "v1alpha1",
    kind = "Cluster",
    plural = "clusters",
    status = "ClusterStatus",
    derive = "PartialEq",
    doc = "Another cluster that runs TrainingJobs of this one; `here` is the cluster itself.",
    printcolumn(
        name = "Reachable",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Reachable\")].status",
        description = "The cluster answers"
    ),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(
        name = "Free",
        type_ = "string",
        json_path = ".status.shown",
        description = "Free GPUs of all GPUs, or free CPUs of all CPUs"
    ),
    printcolumn(
        name = "Latency",
        type_ = "integer",
        json_path = ".status.latencyMillis",
        description = "Milliseconds until the cluster answered last",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new(
        "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$') && self.metadata.name != 'any'"
    )
    .message(
        "metadata.name must consist of at most 63 lower-case letters, digits and hyphens, and not be `any`: spec.clusters \
         of TrainingJobs names it"
    ),
    validation = Rule::new("(self.metadata.name == 'here') != has(self.spec.kubeconfig)").message(
        "spec.kubeconfig is missing, or the Cluster is `here`, which is this cluster and has none"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSpec {
    /// How to reach the cluster. Only `here` has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<KubeconfigRef>,
    /// The cost of a byte that must be brought to the cluster, relative to other clusters; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000000))]
    pub cost: Option<u32>,
    /// How much the cluster is preferred: twice the weight is worth twice the bytes; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub weight: Option<u32>,
}

/// The Secret with a kubeconfig.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeconfigRef {
    /// A Secret in larder-system whose key `kubeconfig` has a kubeconfig with its certificates and its token in itself.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')")
        .message("spec.kubeconfig.secret must be the name of a Secret in larder-system"))]
    pub secret: String,
}

/// The state of a cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Only of `here`: when the status was written, by the clock of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Time>,
    /// The version of Larder in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub version: Option<String>,
    /// Milliseconds until the cluster answered last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_millis: Option<u32>,
    /// The nodes that are ready and not cordoned.
    #[serde(default)]
    pub nodes: u32,
    /// The room on these nodes, by resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub resources: BTreeMap<String, Room>,
    /// The GPUs of these nodes, by model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub gpus: Vec<GpuRoom>,
    /// The free room of single nodes: how many nodes have how much. Amounts are rounded down so that nodes are alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub shapes: Vec<Shape>,
    /// The quota of its queues that is not in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub queues: Vec<QueueRoom>,
    /// The datasets that its nodes hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub datasets: Vec<HeldDataset>,
    /// The column FREE, such as `12/16 GPUs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub shown: Option<String>,
    /// `Reachable`. It says since when.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

/// The room of a resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Room {
    /// The amount that pods may request.
    #[schemars(schema_with = "schemas::quantity")]
    pub allocatable: Quantity,
    /// The amount that no pod has requested.
    #[schemars(schema_with = "schemas::quantity")]
    pub free: Quantity,
}

/// The GPUs of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuRoom {
    /// The node label nvidia.com/gpu.product, or the resource where nodes have no such label.
    pub model: String,
    /// The GPUs that pods may request.
    #[schemars(schema_with = "schemas::count")]
    pub allocatable: u64,
    /// The GPUs that no pod has requested.
    #[schemars(schema_with = "schemas::count")]
    pub free: u64,
}

/// Nodes with the same free room.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// The number of nodes.
    pub nodes: u32,
    /// The free amounts of each of them.
    #[schemars(extend("maxProperties" = 64))]
    pub free: BTreeMap<String, Quantity>,
}

/// The quota of a queue that is not in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueRoom {
    /// The queue.
    pub name: String,
    /// The part of its nominal quota that no job uses, by resource.
    #[schemars(extend("maxProperties" = 32))]
    pub free: BTreeMap<String, Quantity>,
}

/// A dataset that nodes hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldDataset {
    /// NAMESPACE/NAME.
    pub name: String,
    /// Its size.
    #[schemars(schema_with = "schemas::count")]
    pub bytes: u64,
    /// The bytes that are cached.
    #[schemars(schema_with = "schemas::count")]
    pub held_bytes: u64,
    /// The percentage that is cached.
    pub percent: u32,
}

impl ClusterStatus {
    /// The status within its limits. Another cluster may have written anything.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let is_short = |name: &str| name.len() <= 320;
        let are_short = |amounts: &BTreeMap<String, Quantity>| {
            amounts.iter().all(|(name, amount)| is_short(name) && is_short(&amount.0))
        };
        self.shapes.truncate(SHAPES_MAX);
        self.queues.truncate(QUEUES_MAX);
        self.datasets.truncate(DATASETS_MAX);
        self.gpus.truncate(64);
        let is_room =
            |(name, room): &(String, Room)| is_short(name) && is_short(&room.allocatable.0) && is_short(&room.free.0);
        self.resources = self.resources.into_iter().filter(is_room).take(64).collect();
        self.gpus.retain(|gpus| is_short(&gpus.model));
        self.queues.retain(|queue| is_short(&queue.name) && queue.free.len() <= 32 && are_short(&queue.free));
        self.shapes.retain(|shape| shape.free.len() <= 64 && are_short(&shape.free));
        self.datasets.retain(|dataset| is_short(&dataset.name));
        let cut = |text: String| text.chars().take(64).collect::<String>();
        self.shown = self.shown.map(cut);
        self.version = self.version.map(cut);
        self.conditions.clear();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_another_cluster_is_cut_to_its_limits() {
        let dataset = |at: usize| HeldDataset { name: format!("team-a/{at}"), ..HeldDataset::default() };
        let lie = ClusterStatus {
            datasets: (0..5_000).map(dataset).chain([HeldDataset { name: "x".repeat(9_000), ..dataset(0) }]).collect(),
            shapes: vec![Shape::default(); 5_000],
            queues: vec![QueueRoom { name: "y".repeat(9_000), ..QueueRoom::default() }; 5],
            shown: Some("z".repeat(9_000)),
            ..ClusterStatus::default()
        };
        let bounded = lie.bounded();
        assert_eq!((bounded.datasets.len(), bounded.shapes.len(), bounded.queues.len()), (DATASETS_MAX, SHAPES_MAX, 0));
        assert_eq!(bounded.shown.map(|shown| shown.len()), Some(64));
        let long = BTreeMap::from([("cpu".to_owned(), Quantity("1".repeat(9_000)))]);
        let lie = ClusterStatus { shapes: vec![Shape { nodes: 1, free: long }], ..ClusterStatus::default() };
        assert_eq!(lie.bounded().shapes, []);
    }
}
