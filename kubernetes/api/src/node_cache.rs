//! The `NodeCache`: one for each node, with the node's name and owned by its Node.
//!
//! The controller writes the spec, and the node's larderd writes the status. The admission policy `larder-nodecaches`
//! restricts each larderd to the status of its own node; RBAC restricts all other users. The status is authoritative
//! for the data on a node; node labels are derived from it.

#![expect(unreachable_pub, reason = "the derive of schemas copies each public struct into a function")]
#![expect(clippy::duplicated_attributes, reason = "columns of one type are several columns")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::schemas;
use crate::vocabulary::{conditions, reasons};

conditions! {
    /// The type of a condition of a NodeCache.
    pub enum CacheConditionKind {
        /// The cache has room, and each dataset has the room that the cache promised to it.
        Ready,
    }
}

reasons! {
    /// Why a condition of a NodeCache has its status.
    pub enum CacheReason of CacheConditionKind {
        /// Each dataset has the room that the cache promised to it.
        PromisesKept of Ready,
        /// The cache has less room than it promised. The message names the datasets and says what limits the cache.
        PromiseUnkept of Ready,
        /// The cache has no room for a single block, so no dataset is placed on the node. The message says what limits
        /// it.
        NoRoom of Ready,
    }
}

/// The cache of a node: the room that it promises to datasets, and the data that it holds.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "larder.dev",
    version = "v1alpha1",
    kind = "NodeCache",
    plural = "nodecaches",
    status = "NodeCacheStatus",
    derive = "PartialEq",
    doc = "The cache of the node of the same name: the room that it promises to datasets, and the data that it holds.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "The cache has room, and each dataset has what was promised to it"
    ),
    printcolumn(name = "Capacity", type_ = "integer", json_path = ".status.capacityBytes"),
    printcolumn(name = "Promised", type_ = "integer", json_path = ".status.promisedBytes"),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.freeBytes"),
    printcolumn(
        name = "Why",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Why the cache is ready or not"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NodeCacheSpec {
    /// The promises: room that no other dataset gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["uid".to_owned(), "snapshot".to_owned()]))]
    pub datasets: Vec<PromisedDataset>,
    /// Snapshots whose bytes are dropped unless a pod of the node mounts them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["snapshot".to_owned(), "owner".to_owned()]))]
    pub clean: Vec<CleanedSnapshot>,
    /// The limits of namespaces on this node, from the CacheQuotas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub quotas: Vec<NodeQuota>,
    /// Labels of the node that `near` of a Dataset's mirrors names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub labels: BTreeMap<String, String>,
}

/// The most entries in [`NodeCacheSpec::labels`].
pub const NODE_CACHE_LABELS_MAX: usize = 64;

impl NodeCacheSpec {
    /// The total room of all promises. Datasets with the same snapshot and owner share the largest of their promises.
    pub fn promised_bytes(&self) -> u64 {
        let mut largest: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for promise in &self.datasets {
            let there = largest.entry((&promise.snapshot, &promise.owner)).or_default();
            *there = promise.bytes.max(*there);
        }
        largest.into_values().fold(0, u64::saturating_add)
    }
}

/// Room on a node that no other dataset gets. While a new snapshot is warmed beside the old one, a dataset has two.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromisedDataset {
    /// The uid of the Dataset.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// The Dataset as NAMESPACE/NAME, for people and messages.
    #[schemars(length(max = 320))]
    pub name: String,
    /// The snapshot: 64 hex digits.
    #[schemars(schema_with = "schemas::snapshot")]
    pub snapshot: String,
    /// The uid of the Dataset whose Secret reads the snapshot, if tenants describe it; `anonymous` for all datasets that
    /// are read without credentials; empty for administrators' other datasets. Datasets with different owners share no
    /// bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64), extend("default" = ""))]
    pub owner: String,
    /// The promised bytes of the node's disk.
    #[schemars(schema_with = "schemas::count")]
    pub bytes: u64,
}

/// A snapshot whose bytes are dropped. Bytes that were read after `before` stay, so that the entry acts only once.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CleanedSnapshot {
    /// The snapshot: 64 hex digits.
    #[schemars(schema_with = "schemas::snapshot")]
    pub snapshot: String,
    /// The uid of the Dataset whose Secret reads the snapshot, if tenants describe it; `anonymous` for all datasets that
    /// are read without credentials; empty for administrators' other datasets. Datasets with different owners share no
    /// bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64), extend("default" = ""))]
    pub owner: String,
    /// Bytes that were used after this time stay.
    pub before: Time,
}

/// The limits of a CacheQuota on one node. The namespaces share them.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeQuota {
    /// The name of the CacheQuota.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The namespaces that share the limits.
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub namespaces: Vec<String>,
    /// The room on the node's disk that their datasets have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::count")]
    pub reserved_bytes: Option<u64>,
    /// The number of volumes that their pods mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounts: Option<u32>,
    /// The number of their listings that run at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imports: Option<u32>,
}

/// The state of a node's cache, as the node reports it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCacheStatus {
    /// The generation of the spec whose promises are in the node's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Room on the disk for all datasets together.
    #[serde(default)]
    #[schemars(schema_with = "schemas::count")]
    pub capacity_bytes: u64,
    /// Room that is promised: by the spec, and to datasets that pods have open.
    #[serde(default)]
    #[schemars(schema_with = "schemas::count")]
    pub promised_bytes: u64,
    /// Room for further promises: the capacity minus the promised room.
    #[serde(default)]
    #[schemars(schema_with = "schemas::count")]
    pub free_bytes: u64,
    /// The cached snapshots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["snapshot".to_owned(), "owner".to_owned()]))]
    pub snapshots: Vec<SnapshotCache>,
    /// Promises of the spec that the node cannot keep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub unkept: Vec<UnkeptPromise>,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

impl NodeCacheStatus {
    /// Why the cache is not ready, for this reason, in the node's words.
    pub fn not_ready_because(&self, reason: CacheReason) -> Option<&str> {
        let ready = CacheConditionKind::Ready.find(&self.conditions)?;
        (ready.status == "False" && ready.reason == reason.as_str()).then_some(&ready.message)
    }

    /// Why the cache has no room for the promise to this Dataset, in the node's words.
    pub fn unkept_because(&self, uid: &str) -> Option<&str> {
        let no_room = self.not_ready_because(CacheReason::NoRoom);
        let is_unkept = || self.unkept.iter().any(|unkept| unkept.uid == uid);
        no_room.or_else(|| self.not_ready_because(CacheReason::PromiseUnkept).filter(|_| is_unkept()))
    }
}

/// A snapshot in a node's cache.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotCache {
    /// The snapshot: 64 hex digits.
    #[schemars(schema_with = "schemas::snapshot")]
    pub snapshot: String,
    /// The uid of the Dataset whose Secret reads the snapshot, if tenants describe it; `anonymous` for all datasets that
    /// are read without credentials; empty for administrators' other datasets. Datasets with different owners share no
    /// bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64), extend("default" = ""))]
    pub owner: String,
    /// The bytes of the snapshot in the cache.
    #[schemars(schema_with = "schemas::count")]
    pub bytes: u64,
    /// The bytes that this node should have: all, or with a placement other than `local` its share. 0 means unknown.
    #[serde(default)]
    #[schemars(schema_with = "schemas::count")]
    pub wanted_bytes: u64,
    /// The room on the disk that the snapshot has, because it is promised or a pod has it open.
    #[serde(default)]
    #[schemars(schema_with = "schemas::count")]
    pub reserved_bytes: u64,
    /// The number of mounts on the node. Pods with the same credentials share one.
    #[serde(default)]
    pub mounts: u32,
    /// When the last mount ended; absent while there is a mount, and if there never was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Time>,
}

impl SnapshotCache {
    /// True if these are the bytes that a Dataset with this owner reads.
    pub fn is_of(&self, snapshot: &str, owner: &str) -> bool {
        self.snapshot == snapshot && self.owner == owner
    }
}

/// A promise that a node cannot keep.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnkeptPromise {
    /// The uid of the Dataset.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// The snapshot.
    #[schemars(schema_with = "schemas::snapshot")]
    pub snapshot: String,
    /// The part of the promise for which the node has no room.
    #[schemars(schema_with = "schemas::count")]
    pub missing_bytes: u64,
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_owner_that_is_left_out_is_the_empty_one_as_a_key_of_a_list_too() {
        // Definitions without the field refuse an object that has it.
        let entry = serde_json::to_value(SnapshotCache::default()).unwrap();
        assert_eq!(entry.get("owner"), None);
        assert_eq!(serde_json::from_value::<SnapshotCache>(entry).unwrap().owner, "");
        let definition = serde_json::to_value(NodeCache::crd()).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        for (part, list) in [("spec", "datasets"), ("spec", "clean"), ("status", "snapshots")] {
            let owner: &Value = &schema[part]["properties"][list]["items"]["properties"]["owner"];
            assert_eq!(owner["default"], json!(""), "{part}.{list}");
        }
    }
}
