//! The `Dataset`: the spec that a user applies, and the status that the controller reports.
//!
//! Values are stored as text; [`crate::checked`] parses them. Each rule's message names its field by the full path,
//! since tools show messages without it. Rules for URLs are attached to the surrounding struct: the API server's error
//! repeats the value that a rule is attached to, and users put keys into URLs.

#![expect(unreachable_pub, reason = "the derive of schemas copies each public struct into a function")]

mod status;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::names::{ANONYMOUS_OWNER, SYSTEM_NAMESPACE};
use crate::schemas;
pub use status::{
    DatasetStatus, ImportedStatus, LAGGING_MAX, LagReason, LaggingNode, MirrorStatus, NodesStatus, SNAPSHOTS_MAX,
    Shown, SnapshotStatus, Users,
};

/// The desired state of a dataset.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "larder.dev",
    version = "v1alpha1",
    kind = "Dataset",
    plural = "datasets",
    shortname = "dset",
    namespaced,
    status = "DatasetStatus",
    derive = "PartialEq",
    doc = "A tree of files in an origin for pods to read: imported once, cached on nodes, mounted by a claim of its \
           name.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "A pod that starts now finds what the spec requests"
    ),
    printcolumn(name = "Files", type_ = "integer", json_path = ".status.files"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.shown.size"),
    printcolumn(
        name = "Nodes",
        type_ = "string",
        json_path = ".status.shown.nodes",
        description = "Nodes that hold the dataset, of the requested nodes"
    ),
    printcolumn(
        name = "Warm",
        type_ = "string",
        json_path = ".status.shown.warm",
        description = "The part that is cached on the requested nodes"
    ),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.users.count", description = "Pods that use it"),
    printcolumn(
        name = "Why",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Why the Dataset is ready or not"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    // A rule does not see the namespace, so the admission policy larder-datasets checks the length of both.
    validation = Rule::new("self.metadata.name.size() <= 61").message(
        "metadata.name is too long for the label dataset.larder.dev/NAMESPACE.NAME: namespace and name may have 62 \
         characters together"
    )
)]
#[x_kube(
    validation = Rule::new("!has(self.refresh) || !has(self.snapshot) || self.snapshot == 'latest'")
        .message("spec.refresh needs spec.snapshot to be latest: a fixed snapshot is never listed again"),
    validation = Rule::new("!has(self.manifest) || self.manifest.matches('^(s3|gs|az|file)://')")
        .message("spec.manifest must be a URL that begins with s3://, gs://, az:// or file://"),
    validation = Rule::new(
            "!has(self.manifest) || self.manifest.startsWith('file://') \
             || self.manifest.matches('^[a-z0-9]+://[A-Za-z0-9._$-]+(/|$)')"
        )
        .message("spec.manifest names no bucket: write s3://bucket/path, without keys or a server"),
    validation = Rule::new("!has(self.manifest) || !self.manifest.matches('/[.][.](/|$)')")
        .message("spec.manifest must not contain `..`"),
    validation = Rule::new("!has(self.mirrors) || self.mirrors.all(mirror, mirror.origin.source != self.origin.source)")
        .message("spec.mirrors must not name the dataset's own URL: name the copy"),
    validation = Rule::new("!has(self.mirrors) || !self.origin.source.startsWith('file://')")
        .message("spec.mirrors has no meaning for a folder (file://), which each node lists for itself"),
)]
#[serde(rename_all = "camelCase")]
pub struct DatasetSpec {
    /// Where the files are.
    pub origin: Origin,
    /// Copies in other origins, as `larder sync` makes them. A node reads the nearest of these and of `origin`, then
    /// the cheapest, and goes on at the next when one fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub mirrors: Vec<Mirror>,
    /// The snapshot that pods read: `latest` by default, or the 64 hex digits of one. An earlier snapshot of the status
    /// rolls back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self == 'latest' || self.matches('^[0-9a-f]{64}$')")
        .message("spec.snapshot must be latest or the 64 lower-case hex digits of a snapshot"))]
    pub snapshot: Option<String>,
    /// List the origin again after this time, such as 24h or 7d; at least 5m. Without it, the origin is listed once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new(
            // CEL durations have no unit for days.
            "self.matches('^[0-9]{1,6}(s|m|h|d)$') \
             && (self.endsWith('d') ? self.matches('[1-9]') : duration(self) >= duration('5m'))"
        )
        .message("spec.refresh must be a time in s, m, h or d of at least 5m, such as 24h or 7d"))]
    pub refresh: Option<String>,
    /// URL of the file that keeps the listing; `<origin.source>/.larder/manifest` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::url")]
    pub manifest: Option<String>,
    /// How each node caches the dataset.
    #[serde(default, skip_serializing_if = "Cache::is_empty")]
    pub cache: Cache,
    /// The nodes that hold the dataset before any pod uses it.
    #[serde(default, skip_serializing_if = "Nodes::is_empty")]
    pub nodes: Nodes,
    /// How long nodes keep the dataset.
    #[serde(default, skip_serializing_if = "Keep::is_empty")]
    pub keep: Keep,
    /// The other namespaces whose pods may read it; `*` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 63)))]
    #[x_kube(validation = Rule::new("self.all(name, name == '*' || name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))")
        .message("spec.namespaces must list names of namespaces, or \"*\" for all"))]
    pub namespaces: Vec<String>,
}

/// The rules for the location of a dataset and of its mirrors.
const SOURCE_NAMES_NO_PARENT: &str = "!self.source.matches('/[.][.](/|$)')";
const ENDPOINT_IS_A_URL: &str = "!has(self.endpoint) || self.endpoint.matches('^https?://[^/]')";
const ENDPOINT_IS_A_SERVER: &str = "!has(self.endpoint) \
    || (!self.endpoint.matches('[@?# \\\\\\\\]') && !self.endpoint.matches('/[.][.](/|$)'))";

/// The location of a dataset's files, and the credentials that read them.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("!has(self.secretRef) || !has(self.anonymous) || !self.anonymous")
        .message("spec.origin.secretRef cannot be combined with spec.origin.anonymous"),
    validation = Rule::new("!has(self.secretRef) || !self.source.startsWith('file://')")
        .message("spec.origin.secretRef has no meaning for a folder (file://)"),
    validation = Rule::new("self.source.matches('^(s3|gs|az|file)://')")
        .message("spec.origin.source must be a URL: s3://bucket/prefix, gs://, az:// or file:///folder"),
    validation = Rule::new(
            "!self.source.matches('^(s3|gs|az)://') || self.source.matches('^[a-z0-9]+://[A-Za-z0-9._$-]+(/|$)')"
        )
        .message("spec.origin.source names no bucket: write s3://bucket/prefix, without keys or a server"),
    validation = Rule::new("!self.source.startsWith('file://') || self.source.startsWith('file:///')")
        .message("spec.origin.source must name a folder by its whole path: file:///folder"),
    validation = Rule::new(SOURCE_NAMES_NO_PARENT)
        .message("spec.origin.source must not contain `..`"),
    validation = Rule::new(ENDPOINT_IS_A_URL)
        .message("spec.origin.endpoint must be a server's URL, such as https://s3.example.org:9000"),
    validation = Rule::new(ENDPOINT_IS_A_SERVER)
        .message("spec.origin.endpoint must consist of a scheme, a host and a port only, without keys"),
)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// URL of the bucket and prefix: `s3://bucket/prefix`, `gs://`, `az://`, or `file:///folder`.
    #[schemars(schema_with = "schemas::url")]
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("spec.origin.source cannot be changed; delete the Dataset and apply another"))]
    pub source: String,
    /// URL of the S3 server; not needed for AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::url")]
    pub endpoint: Option<String>,
    /// Region of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9_-]+$')")
        .message("spec.origin.region must be the name of a region"))]
    pub region: Option<String>,
    /// True to read without credentials.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anonymous: bool,
    /// The Secret with the credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

impl Origin {
    /// The owner of the cached bytes of the Dataset `uid`: itself if it is read with a tenant's credentials, and
    /// [`ANONYMOUS_OWNER`] if it is read without any. Empty for what administrators describe in the namespace of Larder,
    /// which is shared. On some servers the credentials decide which bucket a name means, so what is read without
    /// credentials is not shared with what is read with larderd's.
    pub fn cache_owner<'a>(&self, namespace: &str, uid: &'a str) -> &'a str {
        if self.anonymous {
            ANONYMOUS_OWNER
        } else if self.secret_ref.is_some() && namespace != SYSTEM_NAMESPACE {
            uid
        } else {
            ""
        }
    }
}

/// A copy of a dataset in another origin.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mirror {
    /// Its name. Keys of the dataset's Secret that begin with it and a dot, such as `eu.AWS_ACCESS_KEY_ID`, are the
    /// mirror's credentials; without such keys, they are those of `origin`.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.mirrors[].name must have lower-case letters, digits and `-` only"))]
    pub name: String,
    /// Where the copy is.
    pub origin: MirrorOrigin,
    /// Labels of the nodes to which it is near, such as `topology.kubernetes.io/region`. A node that has all of them
    /// reads it before all others.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub near: std::collections::BTreeMap<String, String>,
    /// True to have each new snapshot copied to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// The cost of reading from it; 0 by default, as that of `origin`, which is read before all others of its cost.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(max = 1_000_000))]
    pub cost: u32,
}

fn is_zero(cost: &u32) -> bool {
    *cost == 0
}

/// The location of a mirror.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("self.source.matches('^(s3|gs|az)://[A-Za-z0-9._$-]+(/|$)')")
        .message("spec.mirrors[].origin.source must be a URL without keys or a server: s3://bucket/prefix, gs:// or az://"),
    validation = Rule::new(SOURCE_NAMES_NO_PARENT)
        .message("spec.mirrors[].origin.source must not contain `..`"),
    validation = Rule::new(ENDPOINT_IS_A_URL)
        .message("spec.mirrors[].origin.endpoint must be a server's URL, such as https://s3.example.org:9000"),
    validation = Rule::new(ENDPOINT_IS_A_SERVER)
        .message("spec.mirrors[].origin.endpoint must consist of a scheme, a host and a port only, without keys"),
)]
#[serde(rename_all = "camelCase")]
pub struct MirrorOrigin {
    /// URL of the bucket and prefix: `s3://bucket/prefix`, `gs://` or `az://`.
    #[schemars(schema_with = "schemas::url")]
    pub source: String,
    /// URL of the S3 server; by default that of the dataset's own origin, if both are of one kind of store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::url")]
    pub endpoint: Option<String>,
    /// Region of the bucket; by default that of the dataset's own origin, if both are of one kind of store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9_-]+$')")
        .message("spec.mirrors[].origin.region must be the name of a region"))]
    pub region: Option<String>,
    /// True to read it without credentials.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anonymous: bool,
}

/// A Secret in the namespace of its Dataset.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// The name of the Secret.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')")
        .message("spec.origin.secretRef.name must be the name of a Secret"))]
    pub name: String,
}

/// How each node caches a dataset.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cache {
    /// Bytes on each node, such as 100GiB; by default all of it, or with a placement other than `local` the node's
    /// share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 24))]
    #[x_kube(
        validation = Rule::new("self.matches('^[0-9]{1,15}([.][0-9]{1,9})? ?([kKMgGtT][iI]?[bB]?|m[iI]?[bB]|[bB])?$')")
            .message("spec.cache.size must be a size such as 100GiB"),
        validation = Rule::new("self.matches('[1-9]')")
            .message("spec.cache.size must not be 0; leave it out to cache the whole dataset"),
    )]
    pub size: Option<String>,
    /// The policy once the cache is full; `nr` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::policy")]
    pub policy: Option<String>,
    /// Which nodes hold which blocks: `local` (default), `partitioned` or `replicated:N` (N copies).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 14))]
    #[x_kube(validation = Rule::new(
            "self == 'local' || self == 'partitioned' \
             || (self.matches('^replicated:[1-9][0-9]{0,2}$') && int(self.substring(11)) <= 255)"
        )
        .message("spec.cache.placement must be local, partitioned or replicated:N (N copies, 1 to 255)"))]
    pub placement: Option<String>,
}

impl Cache {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The nodes that hold a dataset before any pod uses it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nodes {
    /// Labels that these nodes have; all nodes by default.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub selector: std::collections::BTreeMap<String, String>,
    /// How many nodes, or `all`; 0 by default. With a placement other than `local`, any value but 0 means all nodes
    /// that match, each with its share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 0 && self <= 100000 : self == 'all'")
        .message("spec.nodes.count must be a number of nodes from 0 to 100000, or all"))]
    pub count: Option<NodeCount>,
}

impl Nodes {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A number of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeCount {
    /// This number of nodes.
    Number(u32),
    /// All matching nodes.
    All,
}

impl Default for NodeCount {
    fn default() -> Self {
        Self::Number(0)
    }
}

impl Serialize for NodeCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u32(*number),
            Self::All => serializer.serialize_str("all"),
        }
    }
}

impl<'de> Deserialize<'de> for NodeCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u32),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(Self::Number(number)),
            Written::Text(text) if text == "all" => Ok(Self::All),
            Written::Text(_) => Err(serde::de::Error::custom("a count of nodes is a number, or all")),
        }
    }
}

impl JsonSchema for NodeCount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NodeCount".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"x-kubernetes-int-or-string": true})
    }
}

/// How long nodes keep a dataset. If neither field is set, the nodes of `spec.nodes` keep it while the Dataset exists,
/// and other nodes keep it until they need the room.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    validation = Rule::new("!has(self.unusedFor) || !has(self.pinned) || !self.pinned")
        .message("spec.keep.pinned cannot be combined with spec.keep.unusedFor; set one of them"),
)]
#[serde(rename_all = "camelCase")]
pub struct Keep {
    /// True if every node that has the dataset keeps it while the Dataset exists.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// Nodes drop the dataset when no pod has used it for this time, such as 7d or 168h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{1,6}(s|m|h|d)$') && self.matches('[1-9]')")
        .message("spec.keep.unusedFor must be a time in s, m, h or d, such as 7d or 168h"))]
    pub unused_for: Option<String>,
}

impl Keep {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_bytes_belong_to_the_credentials_that_read_them() {
        let secret_ref = Some(SecretRef { name: "keys".into() });
        let with_secret = Origin { secret_ref, ..Origin::default() };
        let anonymous = Origin { anonymous: true, ..Origin::default() };
        let owners =
            |namespace| [&with_secret, &anonymous, &Origin::default()].map(|of| of.cache_owner(namespace, "u"));
        assert_eq!(owners("team-a"), ["u", ANONYMOUS_OWNER, ""]);
        assert_eq!(owners(SYSTEM_NAMESPACE), ["", ANONYMOUS_OWNER, ""]);
    }
}
