//! The `CacheQuota`: how much of the nodes' caches the Datasets of some namespaces may use together.
//!
//! The controller enforces the limits of the cluster (`promisedBytes`, `datasets`, and `imports` of its Jobs), and each
//! node the limits of a node, which the controller copies into the NodeCaches.

#![expect(unreachable_pub, reason = "the derive of schemas copies each public struct into a function")]
#![expect(clippy::duplicated_attributes, reason = "columns of one type are several columns")]

pub mod checked;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schemas;
use crate::vocabulary::{conditions, reasons};

conditions! {
    /// The type of a condition of a CacheQuota.
    pub enum QuotaConditionKind {
        /// The quota counts: its spec is valid, and no older quota names one of its namespaces.
        Valid,
        /// Its namespaces use no more than the limits.
        WithinLimits,
    }
}

reasons! {
    /// Why a condition of a CacheQuota has its status.
    pub enum QuotaReason of QuotaConditionKind {
        /// The quota counts.
        InForce of Valid,
        /// An older quota names one of its namespaces. The message names both. This quota limits nothing.
        NamespaceTaken of Valid,
        /// The spec has a value that the schema accepts and the controller rejects. The quota limits nothing.
        InvalidSpec of Valid,
        /// No limit is exceeded. The message has the numbers.
        BelowLimits of WithinLimits,
        /// More is used than the limits allow, because they were lowered. What is used stays, and nothing is added. The
        /// message has the numbers.
        AboveLimits of WithinLimits,
        /// The quota is not valid.
        NotCounted of WithinLimits,
    }
}

/// The limits that the Datasets of some namespaces share.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "larder.dev",
    version = "v1alpha1",
    kind = "CacheQuota",
    plural = "cachequotas",
    shortname = "cq",
    status = "CacheQuotaStatus",
    derive = "PartialEq",
    doc = "How much of the nodes' caches the Datasets of some namespaces may use together.",
    printcolumn(name = "Namespaces", type_ = "string", json_path = ".spec.namespaces"),
    printcolumn(
        name = "Used",
        type_ = "string",
        json_path = ".status.shown",
        description = "Usage and limits of its namespaces"
    ),
    printcolumn(
        name = "Valid",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Valid\")].status",
        description = "The quota counts"
    ),
    printcolumn(
        name = "Within",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"WithinLimits\")].status",
        description = "Its namespaces use no more than the limits"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct CacheQuotaSpec {
    /// The namespaces that share the limits. A namespace has at most one quota.
    #[schemars(length(min = 1, max = 64), inner(length(max = 63)))]
    #[x_kube(
        merge_strategy = ListMerge::Set,
        validation = Rule::new("self.all(name, name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))")
            .message("spec.namespaces must list names of namespaces"),
    )]
    pub namespaces: Vec<String>,
    /// The room that nodes promise to their Datasets, over all nodes, such as 2TiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,15}([.][0-9]{1,9})? ?([kKMgGtT][iI]?[bB]?|m[iI]?[bB]|[bB])?$')")
        .message("spec.promisedBytes must be a size such as 2TiB"))]
    pub promised_bytes: Option<String>,
    /// The room on each node's disk that their datasets have: because it is promised, or because pods have them open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,15}([.][0-9]{1,9})? ?([kKMgGtT][iI]?[bB]?|m[iI]?[bB]|[bB])?$')")
        .message("spec.reservedBytesPerNode must be a size such as 200GiB"))]
    pub reserved_bytes_per_node: Option<String>,
    /// The number of their Datasets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000000))]
    pub datasets: Option<u32>,
    /// The number of volumes that their pods mount on each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000000))]
    pub mounts_per_node: Option<u32>,
    /// The number of their imports at a time: of Jobs in the cluster, and of listings for mounts on each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000000))]
    pub imports: Option<u32>,
}

/// The state of a CacheQuota.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CacheQuotaStatus {
    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The usage of its namespaces. Admission compares new Datasets with it.
    #[serde(default)]
    pub used: QuotaUsage,
    /// The column USED, such as `1.5 TiB/2.0 TiB promised, 3/10 datasets`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
    /// `Valid` and `WithinLimits`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

/// The usage of a quota's namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaUsage {
    /// The room that nodes promise to their Datasets, over all nodes.
    #[serde(default)]
    #[schemars(schema_with = "schemas::count")]
    pub promised_bytes: u64,
    /// The number of Datasets.
    #[serde(default)]
    pub datasets: u32,
    /// The number of running Jobs that import.
    #[serde(default)]
    pub imports: u32,
}
