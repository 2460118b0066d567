//! The status of a Dataset, which the controller reports.

#![expect(unreachable_pub, reason = "the derive of schemas copies each public struct into a function")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// The state of a Dataset, as the controller reports it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatasetStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The snapshot that new pods read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The snapshot that is being warmed, which new pods read next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The number of files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
    /// The size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The last 5 snapshots, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub snapshots: Vec<SnapshotStatus>,
    /// The origin that the dataset was imported from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<ImportedStatus>,
    /// How many nodes have the dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodesStatus>,
    /// The percentage of the bytes that is cached on the nodes that should hold the dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// The estimated time at which all of it will be cached on these nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta: Option<Time>,
    /// The pods that use the dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<Users>,
    /// When a pod was last seen using the dataset; absent while a pod uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Time>,
    /// Nodes that do not hold the dataset yet, at most 20.
    #[serde(default, deserialize_with = "known_ones", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub lagging: Vec<LaggingNode>,
    /// The mirrors that are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub mirrors: Vec<MirrorStatus>,
    /// The value of the annotation `larder.dev/clean` that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleaned: Option<String>,
    /// Texts for the columns of `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<Shown>,
    /// `Imported`, `Placed`, `Warm`, `Degraded` and `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

/// Skips entries that another version of the controller wrote and this version cannot read. They will be rewritten
/// anyway.
fn known_ones<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<LaggingNode>, D::Error> {
    let entries = Vec::<serde_json::Value>::deserialize(from)?;
    Ok(entries.into_iter().filter_map(|entry| serde_json::from_value(entry).ok()).collect())
}

/// The most entries in [`DatasetStatus::snapshots`].
pub const SNAPSHOTS_MAX: usize = 5;

/// The most entries in [`DatasetStatus::lagging`] and in [`Users::pods`].
pub const LAGGING_MAX: usize = 20;

/// A known snapshot of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// The id of the snapshot.
    pub id: String,
    /// The number of files.
    pub files: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// When the origin was listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed: Option<Time>,
}

/// The origin that a dataset was imported from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportedStatus {
    /// A digest of the origin and the manifest in the spec at that time. If the spec has changed since, the dataset is
    /// imported again before pods use the change.
    pub from: String,
    /// True if the manifest already existed at the origin, and was not written by the Dataset's import.
    #[serde(default)]
    pub found: bool,
    /// True if the credentials may not write the manifest, so that each node lists the origin itself.
    #[serde(default)]
    pub by_nodes: bool,
}

/// A mirror that is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirrorStatus {
    /// The name of the mirror.
    pub name: String,
    /// The snapshot that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// When that was copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<Time>,
    /// How much of the current snapshot it has, as of the last report: when a copy ends, or fails and is retried.
    #[serde(default)]
    pub percent: u32,
    /// The bytes of the current snapshot that it lacks.
    #[serde(default)]
    pub behind_bytes: u64,
    /// Why the last copy failed, while the next one is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// A digest of the mirror's location. If it has changed since, the snapshot is copied again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}

/// How many nodes have a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodesStatus {
    /// Nodes that should have the dataset.
    pub wanted: u32,
    /// Nodes that promised room to the dataset.
    pub holding: u32,
    /// Nodes that have all that they promised.
    pub warm: u32,
}

/// The pods that use a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Users {
    /// The number of pods.
    pub count: u32,
    /// The pods as NAMESPACE/NAME, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub pods: Vec<String>,
}

/// A node that does not hold the dataset yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LaggingNode {
    /// The name of the node.
    pub node: String,
    /// The reason.
    pub reason: LagReason,
    /// The reason in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Why a node does not hold the dataset yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LagReason {
    /// The node's warming pod is queued: the number of warming pods is limited.
    Queued,
    /// The node is fetching the dataset.
    Warming,
    /// The node's warming pod does not start.
    PodPending,
    /// The node's last attempt failed.
    WarmingFailed,
    /// The node is not ready, or its larderd does not report.
    NotReporting,
    /// The node's cache has become smaller than its promises.
    PromiseUnkept,
}

/// Texts for the columns of `kubectl get`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
    /// The column SIZE, such as `1.1 TiB`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub size: String,
    /// The column NODES: holding of wanted, such as `2/4`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nodes: String,
    /// The column WARM, such as `62%`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub warm: String,
}
