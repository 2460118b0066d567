//! A request to open a dataset: the dataset, the credentials to read it with, and the limits on its origin.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use larder_dataset::DatasetSpec;
use larder_dataset::environment::{ANONYMOUS, OWNER};
use larder_origin::OriginConfig;

/// The most concurrent requests to an origin that a dataset may request.
const CONCURRENCY_MOST: u32 = 4096;

/// The variables that grant access to an origin, as in the environment of a process. Only their names are ever printed.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Credentials(BTreeMap<String, String>);

impl Credentials {
    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All variables by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl FromIterator<(String, String)> for Credentials {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self(variables.into_iter().collect())
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Limits on the requests to an origin. For those that are `None`, the node's own apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginLimits {
    /// An attempt without progress for this long is retried.
    pub attempt_timeout: Option<Duration>,
    /// The longest a read may wait for the origin.
    pub read_deadline: Option<Duration>,
    /// Concurrent requests to the origin.
    pub concurrency: Option<u32>,
}

/// A mirror of a dataset: copies of its snapshots in another origin, as `larder sync` makes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MirrorRequest {
    /// Its name, for messages and counters. Variables of the dataset whose names begin with this and a dot are its
    /// credentials.
    pub name: String,
    /// The URL.
    pub source: String,
    /// The server; `None` for that of the dataset, if both are of one kind of store.
    pub endpoint: Option<String>,
    /// The region; `None` as for the server.
    pub region: Option<String>,
    /// True to send no credentials.
    pub anonymous: bool,
    /// It is near to nodes that have all of these labels. Empty: to none.
    pub near: BTreeMap<String, String>,
    /// The cost of reading from it. That of the dataset's own origin is 0.
    pub cost: u32,
    /// True if it is near whatever labels the node has.
    pub always_near: bool,
}

impl MirrorRequest {
    /// The settings for the mirror of a dataset whose own settings are `dataset`. Server and region are its own, unless
    /// the mirror names others or is in another kind of store.
    pub fn origin_config(&self, dataset: OriginConfig, is_same_kind: bool) -> OriginConfig {
        let shared = |value: &Option<String>| value.clone().filter(|_| is_same_kind);
        OriginConfig {
            endpoint: self.endpoint.clone().or_else(|| shared(&dataset.endpoint)),
            region: self.region.clone().or_else(|| shared(&dataset.region)),
            anonymous: self.anonymous,
            env: dataset.env.of_mirror(&self.name),
            ..dataset
        }
    }
}

/// A dataset that a node is to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetRequest {
    /// The dataset.
    pub spec: DatasetSpec,
    /// The credentials to read it with; `None`: the node's own.
    pub credentials: Option<Credentials>,
    /// Limits on the requests to its origin.
    pub limits: OriginLimits,
    /// The namespace whose quota counts its room and its import; empty if none does.
    pub payer: String,
    /// Its mirrors.
    pub mirrors: Vec<MirrorRequest>,
}

/// The pod that a volume is for, and the other volumes of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodVolume {
    /// The namespace of the pod; empty if it is not known.
    pub namespace: String,
    /// The volumes of pods on the node, without this one, by their namespaces.
    pub volumes: BTreeMap<String, u32>,
}

impl From<DatasetSpec> for DatasetRequest {
    fn from(spec: DatasetSpec) -> Self {
        Self { spec, ..Self::default() }
    }
}

impl DatasetRequest {
    /// Whose credentials it has, if these are a tenant's; all requests without any have one owner. Empty otherwise.
    pub fn owner(&self) -> &str {
        let tenant = self.credentials.as_ref().and_then(|given| given.get(OWNER));
        tenant.unwrap_or(if self.spec.anonymous { ANONYMOUS } else { "" })
    }

    /// The properties by which its mount on a node differs from the mounts of other requests for the same snapshot: the
    /// owner, and the owner and modes of its files. Empty if all are the defaults.
    pub fn apart(&self) -> String {
        let ownership = &self.spec.ownership;
        if ownership.is_default() { self.owner().to_owned() } else { format!("{} {ownership}", self.owner()) }
    }

    /// The settings for the origin on a node whose own settings are `node`.
    pub fn origin_config(&self, node: &OriginConfig) -> OriginConfig {
        OriginConfig {
            endpoint: self.spec.endpoint.clone().or_else(|| node.endpoint.clone()),
            region: self.spec.region.clone().or_else(|| node.region.clone()),
            anonymous: self.spec.anonymous,
            attempt_timeout: self.limits.attempt_timeout.unwrap_or(node.attempt_timeout),
            deadline: self.limits.read_deadline.unwrap_or(node.deadline),
            concurrency: self.limits.concurrency.map_or(node.concurrency, |n| n.min(CONCURRENCY_MOST) as usize),
            // A request with credentials uses those variables alone and none of the node's. For a kind of store that
            // they have no keys for, the store's client looks for an identity of the machine, unless they forbid it, as
            // those of a volume's Secret do (`AWS_SKIP_SIGNATURE` and its like).
            env: match &self.credentials {
                Some(given) => given.iter().collect(),
                None => node.env.clone(),
            },
            ..node.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_dataset::Ownership;

    use super::*;

    #[test]
    fn debug_of_a_request_shows_no_values_of_variables() {
        let credentials = Credentials::from_iter([("AWS_SECRET_ACCESS_KEY".to_owned(), "hunter2".to_owned())]);
        let shown = format!("{:?}", DatasetRequest { credentials: Some(credentials), ..DatasetRequest::default() });
        assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn requests_with_other_owners_of_files_have_mounts_of_their_own() {
        let plain = DatasetRequest::from(DatasetSpec::new("s3://b"));
        let shown = |uid| {
            let ownership = Ownership { uid: Some(uid), ..Ownership::default() };
            DatasetRequest::from(DatasetSpec { ownership, ..DatasetSpec::new("s3://b") })
        };
        let owned = |request: DatasetRequest| {
            let credentials = Credentials::from_iter([(OWNER.to_owned(), "a".to_owned())]);
            DatasetRequest { credentials: Some(credentials), ..request }
        };
        assert_eq!((plain.apart(), owned(plain).apart()), (String::new(), "a".to_owned()));
        let apart = [shown(0).apart(), shown(1).apart(), owned(shown(1)).apart()];
        assert_eq!(apart, [" uid=0", " uid=1", "a uid=1"]);
    }

    #[test]
    fn requests_without_credentials_have_one_owner_which_is_not_that_of_the_nodes_own_keys() {
        let own = DatasetRequest::from(DatasetSpec::new("s3://b"));
        let anonymous = DatasetRequest::from(DatasetSpec { anonymous: true, ..DatasetSpec::new("s3://b") });
        // A token for peers is no credential of the origin.
        let token = Credentials::from_iter([("LARDER_PEER_TOKEN".to_owned(), "t".to_owned())]);
        let with_token = DatasetRequest { credentials: Some(token), ..anonymous.clone() };
        let tenants = Credentials::from_iter([(OWNER.to_owned(), "uid".to_owned())]);
        let tenants = DatasetRequest { credentials: Some(tenants), ..anonymous.clone() };
        let owners = [&own, &anonymous, &with_token, &tenants].map(|request| request.owner());
        assert_eq!(owners, ["", "anonymous", "anonymous", "uid"]);
        assert_eq!(anonymous.apart(), "anonymous");
    }

    #[test]
    fn credentials_of_a_request_stand_alone_and_other_settings_fall_back_to_the_nodes() {
        let node = OriginConfig {
            endpoint: Some("http://node".to_owned()),
            concurrency: 7,
            env: [("AWS_ACCESS_KEY_ID", "node")].into_iter().collect(),
            ..OriginConfig::default()
        };
        let given = Credentials::from_iter([("HOME".to_owned(), "/h".to_owned())]);
        let mut request = DatasetRequest { credentials: Some(given), ..DatasetSpec::new("s3://b").into() };
        let config = request.origin_config(&node);
        assert_eq!((config.env.get("AWS_ACCESS_KEY_ID"), config.env.get("HOME")), (None, Some("/h")));
        assert_eq!((config.endpoint.as_deref(), config.concurrency), (Some("http://node"), 7));
        request.credentials = None;
        request.limits.concurrency = Some(u32::MAX);
        let config = request.origin_config(&node);
        assert_eq!((config.env.get("AWS_ACCESS_KEY_ID"), config.concurrency), (Some("node"), 4096));
    }
}
