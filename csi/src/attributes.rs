//! The checked attributes of a volume.
//!
//! Attributes are untrusted: some come from any user who can create a pod. So each key must be known, each value is
//! checked, and each error names the key.

mod error;
mod identity;
#[cfg(test)]
mod tests;
mod values;

use std::collections::HashMap;

use larder_dataset::mirrors::MirrorSpec;
use larder_dataset::written::{Rules, WrittenSpec, cache_size, namespace, ownership};
use larder_dataset::{DatasetSpec, Ownership};

pub use error::AttributeError;
pub(crate) use error::printable;
pub use identity::{Identity, PodIdentity, Principal};
use values::{checked_owner, dataset_namespace, entry_name, mirrors};

/// The attributes that an administrator may set in a PersistentVolume or StorageClass.
const KNOWN: [&str; 26] = [
    "source",
    "dataset",
    "identity",
    "roleArn",
    "workloadIdentityProvider",
    "serviceAccount",
    "clientID",
    "tenantID",
    "stsEndpoint",
    "audience",
    "owner",
    "datasetNamespace",
    "endpoint",
    "region",
    "anonymous",
    "snapshot",
    "cacheSize",
    "policy",
    "placement",
    "refresh",
    "mirrors",
    "namespaces",
    "uid",
    "gid",
    "fileMode",
    "dirMode",
];

/// The attributes that a pod author may set in an inline volume. Placement is not one of them, since it must be the
/// same on all nodes. Nor is the STS: no pod author chooses a server.
const KNOWN_INLINE: [&str; 13] = [
    "dataset",
    "identity",
    "roleArn",
    "workloadIdentityProvider",
    "serviceAccount",
    "clientID",
    "tenantID",
    "audience",
    "cacheSize",
    "uid",
    "gid",
    "fileMode",
    "dirMode",
];

/// The attributes that describe an origin, and so cannot accompany `dataset`.
const WITH_SOURCE: [&str; 8] =
    ["endpoint", "region", "anonymous", "snapshot", "policy", "placement", "refresh", "mirrors"];

/// The namespace of the administrator's datasets.
const SYSTEM_NAMESPACE: &str = "larder-system";

/// The keys that the kubelet and the sidecars add.
const KUBERNETES_PREFIX: &str = "csi.storage.k8s.io/";

/// True for the volume of a pod author.
pub(crate) const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
const PROVISIONER_IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

/// Which dataset to mount.
#[derive(Clone, Debug, PartialEq)]
pub enum Selection {
    /// A dataset that the administrator described in the volume.
    Spec(DatasetSpec),
    /// An entry of the administrator's datasets file.
    Entry {
        name: String,
        /// The cache size; `None` for the size in the entry.
        cache_bytes: Option<u64>,
    },
}

/// The attributes of a volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Attributes {
    /// Which dataset to mount.
    pub selection: Selection,
    /// The namespaces that may use the volume, `*` for all; `None` for no restriction.
    pub namespaces: Option<Vec<String>>,
    /// The identity that reads the dataset.
    pub identity: Identity,
    /// The owner of the volume, if a tenant describes the dataset. A mount that is read with the keys of the owner's
    /// Secret is used only for volumes of that owner.
    pub owner: Option<String>,
    /// The namespace whose CacheQuota counts the dataset, if the volume names one.
    pub dataset_namespace: Option<String>,
    /// The owner and the modes of the files.
    pub ownership: Ownership,
    /// The dataset's mirrors.
    pub mirrors: Vec<MirrorSpec>,
    /// The pod.
    pub pod: Pod,
    /// True if a pod author wrote the attributes.
    pub inline: bool,
}

/// The pod. Fields that the kubelet did not report are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub service_account: String,
}

impl Attributes {
    /// Parses a volume context, or the parameters of a StorageClass.
    pub fn parse(context: &HashMap<String, String>, rules: &Rules) -> Result<Self, AttributeError> {
        let kubernetes = |key: &str| {
            context.get(&format!("{KUBERNETES_PREFIX}{key}")).map(String::as_str).unwrap_or_default().to_owned()
        };
        let inline = match kubernetes("ephemeral").as_str() {
            "" | "false" => false,
            "true" => true,
            _ => return Err(AttributeError::field(EPHEMERAL, "must be true or false")),
        };
        let known: &[&str] = if inline { &KNOWN_INLINE } else { &KNOWN };
        for name in own_keys(context) {
            if !known.contains(&name.as_str()) {
                let known = known.join(", ");
                return Err(AttributeError::Unknown { name: printable(name), known });
            }
        }
        let get = |name: &str| context.get(name).map(String::as_str);
        let identity = Identity::parse(context, inline)?;
        let owner = get("owner").map(checked_owner).transpose()?;
        let namespaces = get("namespaces").map(|list| list.split(',').map(|name| namespace(name.trim())).collect());
        Ok(Self {
            selection: select(context, inline, rules)?,
            namespaces: namespaces.transpose()?,
            identity,
            owner,
            dataset_namespace: get("datasetNamespace").map(dataset_namespace).transpose()?,
            ownership: ownership(get("uid"), get("gid"), get("fileMode"), get("dirMode"))?,
            mirrors: get("mirrors").map(|text| mirrors(text, get("source"))).transpose()?.unwrap_or_default(),
            pod: Pod {
                namespace: kubernetes("pod.namespace"),
                name: kubernetes("pod.name"),
                uid: kubernetes("pod.uid"),
                service_account: kubernetes("serviceAccount.name"),
            },
            inline,
        })
    }

    /// The namespace that pays for the dataset's room on the node, and for its import: the Dataset's, so that all its
    /// volumes agree, or else the pod's. The administrator's entries belong to the administrator's namespace, but pod
    /// authors choose the roles that read them, and each role has a cache of its own.
    pub fn payer(&self) -> &str {
        match (&self.dataset_namespace, &self.selection) {
            (Some(namespace), _) => namespace,
            (None, Selection::Entry { .. }) if matches!(self.identity, Identity::Pod(_)) => &self.pod.namespace,
            (None, Selection::Entry { name, .. }) => {
                name.split_once('/').map_or(SYSTEM_NAMESPACE, |(namespace, _)| namespace)
            }
            (None, Selection::Spec(_)) => &self.pod.namespace,
        }
    }
}

fn select(context: &HashMap<String, String>, inline: bool, rules: &Rules) -> Result<Selection, AttributeError> {
    let get = |name: &str| context.get(name).map(String::as_str);
    let invalid = |name, what: &str| Err(AttributeError::value(name, what));
    let spec = match (get("source"), get("dataset")) {
        (Some(_), Some(_)) => return invalid("dataset", "cannot be combined with `source`; set one of them"),
        (None, None) if inline => return invalid("dataset", "is missing: name an entry of the datasets file"),
        (None, None) => return invalid("source", "is missing: name an origin, or a `dataset`"),
        (None, Some(name)) => {
            if let Some(key) = WITH_SOURCE.into_iter().find(|key| context.contains_key(*key)) {
                return invalid(key, "belongs to `source`; the entry of a `dataset` has its own");
            }
            let cache_bytes = get("cacheSize").map(cache_size).transpose()?;
            return Ok(Selection::Entry { name: entry_name(name)?, cache_bytes });
        }
        (Some(source), None) => WrittenSpec {
            source,
            endpoint: get("endpoint").unwrap_or_default(),
            region: get("region").unwrap_or_default(),
            anonymous: match get("anonymous") {
                None | Some("false") => false,
                Some("true") => true,
                Some(_) => return invalid("anonymous", "must be true or false"),
            },
            snapshot: get("snapshot").unwrap_or_default(),
            cache_size: get("cacheSize"),
            policy: get("policy").unwrap_or_default(),
            placement: get("placement").unwrap_or_default(),
            refresh: get("refresh").unwrap_or_default(),
        },
    };
    Ok(Selection::Spec(spec.check(rules)?))
}

/// The keys that Kubernetes did not add.
pub(crate) fn own_keys(context: &HashMap<String, String>) -> impl Iterator<Item = &String> {
    context.keys().filter(|key| !key.starts_with(KUBERNETES_PREFIX) && *key != PROVISIONER_IDENTITY)
}
