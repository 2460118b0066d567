//! Translates the failure of a request into the user's terms.

use std::fmt;

use anyhow::anyhow;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use larder_api::{Cluster, Dataset, NodeCache, Queue, TrainingJob};
use larder_kube::Error;
use larder_kube::core::{ApiResource, GroupVersionKind};
use larder_kube::kinds::{Kind as KubeKind, KueueKind, KueueVersion};

/// A kind of object.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// The resource, for the client.
    pub(crate) resource: fn() -> ApiResource,
    /// The kind's name, such as `Dataset`.
    one: &'static str,
    /// The resource's name in permissions, such as `datasets.larder.dev`.
    rights: &'static str,
    /// The command that lists the objects.
    lists: &'static str,
    /// The components of Larder's manifests that serve the kind; empty for Kubernetes' own kinds.
    components: &'static str,
}

pub(crate) const DATASET: Kind = Kind {
    resource: || ApiResource::erase::<Dataset>(&()),
    one: "Dataset",
    rights: "datasets.larder.dev",
    lists: "kubectl get dset",
    components: "component `datasets`",
};

pub(crate) const JOB: Kind = Kind {
    resource: || ApiResource::erase::<TrainingJob>(&()),
    one: "TrainingJob",
    rights: "trainingjobs.larder.dev",
    lists: "larder job list",
    components: "components `datasets` and `jobs`",
};

pub(crate) const QUEUE: Kind = Kind {
    resource: || ApiResource::erase::<Queue>(&()),
    one: "Queue",
    rights: "queues.larder.dev",
    lists: "larder queue",
    components: "components `datasets` and `jobs`",
};

pub(crate) const CLUSTER: Kind = Kind {
    resource: || ApiResource::erase::<Cluster>(&()),
    one: "Cluster",
    rights: "clusters.larder.dev",
    lists: "larder cluster list",
    components: "components `datasets`, `jobs` and `clusters`",
};

pub(crate) const NODE_CACHE: Kind = Kind {
    resource: || ApiResource::erase::<NodeCache>(&()),
    one: "NodeCache",
    rights: "nodecaches.larder.dev",
    lists: "kubectl get nodecaches",
    components: "component `datasets`",
};

pub(crate) const NODE: Kind = Kind {
    resource: || ApiResource::erase::<Node>(&()),
    one: "Node",
    rights: "nodes",
    lists: "kubectl get nodes",
    components: "",
};

pub(crate) const POD: Kind = Kind {
    resource: || ApiResource::erase::<Pod>(&()),
    one: "Pod",
    rights: "pods",
    lists: "kubectl get pods",
    components: "",
};

pub(crate) const EVENT: Kind = Kind {
    resource: || ApiResource::erase::<Event>(&()),
    one: "Event",
    rights: "events",
    lists: "kubectl events",
    components: "",
};

/// The use of resources by the containers of a pod, which metrics-server reports.
pub(crate) const POD_METRICS: Kind = Kind {
    resource: || {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("metrics.k8s.io", "v1beta1", "PodMetrics"), "pods")
    },
    one: "PodMetric",
    rights: "pods.metrics.k8s.io",
    lists: "kubectl top pods",
    components: "metrics-server",
};

pub(crate) const DEFINITION: Kind = Kind {
    resource: || ApiResource::erase::<CustomResourceDefinition>(&()),
    one: "CustomResourceDefinition",
    rights: "customresourcedefinitions.apiextensions.k8s.io",
    lists: "kubectl get customresourcedefinitions",
    components: "",
};

/// The log of a pod.
pub(crate) const LOG: Kind = Kind { rights: "pods/log", ..POD };

/// A program that is run in a pod.
pub(crate) const EXEC: Kind = Kind { rights: "pods/exec", ..POD };

/// A port of a pod.
pub(crate) const PORT: Kind = Kind { rights: "pods/portforward", ..POD };

pub(crate) const PRIORITY_CLASS: Kind = Kind {
    resource: || ApiResource::erase::<PriorityClass>(&()),
    one: "PriorityClass",
    rights: "priorityclasses.scheduling.k8s.io",
    lists: "kubectl get priorityclasses",
    components: "",
};

/// Kueue's Workloads, in its newest version first.
pub(crate) const WORKLOADS: [Kind; 2] = {
    let v1beta2 = Kind {
        resource: || KubeKind::Kueue(KueueKind::Workload, KueueVersion::V1beta2).resource(),
        one: "Workload",
        rights: "workloads.kueue.x-k8s.io",
        lists: "kubectl get workloads.kueue.x-k8s.io",
        components: "",
    };
    [v1beta2, Kind { resource: || KubeKind::Kueue(KueueKind::Workload, KueueVersion::V1beta1).resource(), ..v1beta2 }]
};

/// A request to the cluster, for error messages.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// The verb that needs permission: `get`, `list`, `patch` ….
    pub(crate) right: &'static str,
    pub(crate) kind: Kind,
    /// The namespace; `None` for all namespaces, or for a cluster-scoped kind.
    pub(crate) namespace: Option<&'a str>,
    /// The object's name; empty for a list.
    pub(crate) name: &'a str,
}

impl<'a> Asked<'a> {
    /// A request for one object.
    pub(crate) fn one(right: &'static str, kind: Kind, namespace: &'a str, name: &'a str) -> Self {
        Self { right, kind, namespace: Some(namespace), name }
    }

    /// A list of all objects in a namespace, or in all namespaces.
    pub(crate) fn all(kind: Kind, namespace: Option<&'a str>) -> Self {
        Self { right: "list", kind, namespace, name: "" }
    }
}

/// `team-a/pets`, a name without a namespace, or `the list of …`.
impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name, self.namespace) {
            ("", _) => write!(f, "the list of {}s", self.kind.one),
            (name, Some(namespace)) => write!(f, "{namespace}/{name}"),
            (name, None) => f.write_str(name),
        }
    }
}

/// The server's message about an applied object with an unknown field.
const UNTYPED: &str = "failed to create typed patch object";

/// An error in the user's terms. `flags` are repeated in the commands that it suggests.
pub(super) fn in_words(error: Error, asked: &Asked<'_>, server: &str, flags: &str) -> anyhow::Error {
    let Kind { one, rights, lists, components, .. } = asked.kind;
    let flag = asked.namespace.map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
    match error {
        Error::Api(status) => match (status.code, status.reason.as_str()) {
            (404, "NotFound") if asked.right == "patch" && status.message.starts_with("namespaces ") => {
                let namespace = asked.namespace.unwrap_or_default();
                anyhow!("there is no namespace {namespace}: create it, or choose another with --namespace")
            }
            (404, "NotFound") if !asked.name.is_empty() => {
                let those = if asked.namespace.is_some() { "those of its namespace" } else { "all" };
                anyhow!("there is no {one} {asked}: `{lists}{flag}{flags}` lists {those}")
            }
            // The path is unknown rather than the object.
            (404, _) => anyhow!(
                "the cluster at {server} does not serve {one}s: an administrator enables them with the {components} \
                 (docs/kubernetes/README.md)"
            ),
            (401, _) => anyhow!("the cluster at {server} rejects the kubeconfig's credentials: log in again"),
            (403, _) => {
                let whose = asked.namespace.unwrap_or("all namespaces");
                let may = match asked.right {
                    "get" | "list" | "watch" => "read",
                    "delete" => "delete",
                    _ => "submit or change",
                };
                anyhow!(
                    "you may not {may} {one}s in {whose}: ask an administrator for permission to `{}` {rights} ({})",
                    asked.right,
                    status.message
                )
            }
            (409, _) if asked.right == "patch" => anyhow!(
                "{asked} has fields that another program manages: change them with that program ({})",
                status.message
            ),
            (400 | 422, _) if asked.right == "patch" => anyhow!("the cluster rejects {asked}: {}", status.message),
            // For an unknown field, the API server returns an internal error (500) instead of a 4xx.
            (500, _) if asked.right == "patch" && status.message.contains(UNTYPED) => {
                anyhow!("the cluster rejects {asked}: {}", status.message)
            }
            _ => anyhow!("the cluster at {server} returned an error: {} ({})", status.message, status.code),
        },
        Error::SerdeError(error) => anyhow!(error).context(format!(
            "{asked} cannot be decoded; if the cluster's Larder is newer than this program, update this program"
        )),
        Error::Auth(error) => anyhow!(error).context("the kubeconfig's credentials cannot be used; log in again"),
        error => anyhow!(error).context(format!(
            "the cluster at {server} cannot be reached; check the network, --context and --kubeconfig"
        )),
    }
}
