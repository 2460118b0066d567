//! The `LarderSettings` of a cluster: the lists that admission policies compare objects with, and the flavors of its
//! nodes. A policy follows all objects of the kind that its parameters have, so the lists are in a kind of their own
//! and not in ConfigMaps.

#![expect(unreachable_pub, reason = "the derive of schemas copies each public struct into a function")]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schemas;

/// The administrator's settings.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "larder.dev",
    version = "v1alpha1",
    kind = "LarderSettings",
    plural = "lardersettings",
    status = "LarderSettingsStatus",
    derive = "PartialEq",
    doc = "The lists that Larder's admission policies compare objects with, and the flavors of nodes. A cluster has one, \
           named `larder`.",
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
    /// Kinds of nodes, such as those with one model of GPU, or a pool of nodes. Queues have quotas of them. A node is
    /// of one flavor at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(
        merge_strategy = ListMerge::Map(vec!["name".to_owned()]),
        validation = Rule::new(
                "self.all(one, self.all(other, one.name == other.name || one.nodeLabels.exists(label, \
                 label in other.nodeLabels && one.nodeLabels[label] != other.nodeLabels[label])))"
            )
            .message(
                "spec.flavors[].nodeLabels: a node may be of one flavor only, so any two flavors need different values of \
                 one label"
            ),
    )]
    pub flavors: Vec<Flavor>,
}

/// A kind of nodes.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flavor {
    /// The name by which queues have quota of it.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.flavors[].name must consist of lower-case letters, digits and hyphens"))]
    pub name: String,
    /// The labels of its nodes, such as `nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3`. The pods of jobs of the flavor
    /// get them as node selector.
    #[schemars(schema_with = "schemas::node_labels")]
    pub node_labels: BTreeMap<String, String>,
}

/// The mistake in a list of flavors; `None` if any node is of one flavor at most.
pub fn check_flavors(flavors: &[Flavor]) -> Option<String> {
    for (at, one) in flavors.iter().enumerate() {
        if one.node_labels.is_empty() {
            return Some(format!("the flavor {} has no nodeLabels, and so would have all nodes", one.name));
        }
        let differs = |other: &Flavor| {
            one.node_labels.iter().any(|(key, value)| other.node_labels.get(key).is_some_and(|there| there != value))
        };
        if let Some(other) = flavors[at + 1..].iter().find(|other| !differs(other)) {
            return Some(format!(
                "a node may be of the flavors {} and {}: give both a label with different values",
                one.name, other.name
            ));
        }
    }
    None
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_two_flavors_have_different_values_of_a_label() {
        let flavor = |name: &str, labels: &[(&str, &str)]| Flavor {
            name: name.to_owned(),
            node_labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        };
        let h100 = flavor("h100", &[("gpu", "h100"), ("pool", "reserved")]);
        let a100 = flavor("a100", &[("gpu", "a100")]);
        assert_eq!(check_flavors(&[h100.clone(), a100.clone()]), None);
        let spot = flavor("spot", &[("pool", "spot")]);
        let why = check_flavors(&[h100.clone(), a100, spot.clone()]).unwrap();
        assert_eq!(why, "a node may be of the flavors a100 and spot: give both a label with different values");
        assert_eq!(check_flavors(&[h100, spot]), None);
        assert!(check_flavors(&[flavor("all", &[])]).unwrap().contains("the flavor all has no nodeLabels"));
    }
}
