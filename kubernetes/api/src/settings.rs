//! The `LarderSettings` of a cluster: the lists that admission policies compare objects with. A policy follows all
//! objects of the kind that its parameters have, so the lists are in a kind of their own and not in ConfigMaps.

#![expect(unreachable_pub, reason = "the derive of schemas copies each public struct into a function")]

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The administrator's settings.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "larder.dev",
    version = "v1alpha1",
    kind = "LarderSettings",
    plural = "lardersettings",
    status = "LarderSettingsStatus",
    derive = "PartialEq",
    doc = "The lists that Larder's admission policies compare objects with. A cluster has one, named `larder`.",
    printcolumn(name = "Endpoints", type_ = "string", json_path = ".spec.endpoints"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name == 'larder'")
        .message("metadata.name must be larder: a cluster has one LarderSettings")
)]
#[serde(rename_all = "camelCase")]
pub struct LarderSettingsSpec {
    /// The S3 servers other than AWS that any Dataset may name in `spec.origin.endpoint`, exactly as Datasets name
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 1024)))]
    pub endpoints: Vec<String>,
    /// The containers that larder-controller may run in Jobs. The field has this name because `images` of a
    /// kustomization replaces the images below it, like those of the Deployment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub containers: Vec<ImportContainer>,
    /// True if TrainingJobs may have no queue, so that no quota of Larder's limits them. They come after all queues,
    /// and jobs of queues preempt them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub jobs_without_queue: bool,
}

/// A container that imports and warms.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImportContainer {
    /// The image of larder-controller's own pod, or the one of its flag `--image`.
    #[schemars(length(max = 1024))]
    pub image: String,
}

/// The lists that larder-controller adds to the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LarderSettingsStatus {
    /// The names of the JobTypes. A user who applies a job of another type gets a warning.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub job_types: Vec<String>,
    /// The names of the Clusters. A job that names another one is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
}
