//! What a volume asks for: its attributes and capability, checked. Everything here comes from outside, some of it
//! from whoever may create a pod, so each key is on a list, each value is looked at, and each refusal names the key.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};

use larder_csi_api::csi;
use larder_csi_api::csi::volume_capability::AccessType;
use larder_csi_api::csi::volume_capability::access_mode::Mode;
use larder_dataset::Placement;
use larder_dataset::size::parse_bytes;

use crate::json_dir::hex_hash;

/// What an administrator may write into a PersistentVolume or StorageClass.
const KNOWN: [&str; 10] = [
    "source",
    "dataset",
    "endpoint",
    "region",
    "anonymous",
    "snapshot",
    "cacheSize",
    "policy",
    "placement",
    "namespaces",
];

/// What a pod author may write into an inline volume. Not how nodes share the dataset: that is the same on all of them.
const KNOWN_INLINE: [&str; 2] = ["dataset", "cacheSize"];

/// What the kubelet and the sidecars add.
const KUBERNETES_PREFIX: &str = "csi.storage.k8s.io/";
const PROVISIONER_IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

/// Longest value of an attribute.
const VALUE_BYTES: usize = 1024;

/// Longest id of a volume; CSI says 128, the kubelet makes up some of 68.
const ID_BYTES: usize = 256;

/// What is wrong with a request. The words never hold a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// A field of the request.
    #[error("{field} {what}")]
    Field {
        /// The field, as CSI names it.
        field: &'static str,
        /// What is wrong.
        what: String,
    },
    /// An attribute that is not on the list.
    #[error("unknown attribute `{name}`; known are {known}")]
    Unknown {
        /// Its name.
        name: String,
        /// The list.
        known: String,
    },
    /// A value that cannot be used.
    #[error("attribute `{name}` {what}")]
    Value {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A secret that is not on the list, or lacks its other half.
    #[error("secret key `{name}` {what}")]
    Secret {
        /// Its key.
        name: String,
        /// What is wrong.
        what: String,
    },
}

fn value_error<T>(name: &'static str, what: impl Into<String>) -> Result<T, AttributeError> {
    Err(AttributeError::Value { name, what: what.into() })
}

fn field_error<T>(field: &'static str, what: impl Into<String>) -> Result<T, AttributeError> {
    Err(AttributeError::Field { field, what: what.into() })
}

/// An origin, and how it is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// s3://, gs://, az:// or file://.
    pub source: String,
    /// The S3 server; empty: AWS.
    pub endpoint: String,
    /// The region; empty: larderd's.
    pub region: String,
    /// Send no credentials.
    pub anonymous: bool,
    /// The snapshot that must be served; empty: what is found.
    pub snapshot: String,
    /// nr, lru, fifo or random; empty: larderd's.
    pub policy: String,
    /// local, partitioned or replicated:N; empty: larderd's.
    pub placement: String,
}

/// What to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// An origin that the administrator named in the volume.
    Origin(Origin),
    /// An entry of the administrator's datasets file.
    Dataset(String),
}

/// The attributes of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What to mount.
    pub wanted: Wanted,
    /// Bytes of cache; `None`: as large as the dataset.
    pub cache_bytes: Option<u64>,
    /// Who may use it, `*` for all; `None`: whoever has the volume.
    pub namespaces: Option<Vec<String>>,
    /// The pod.
    pub pod: Pod,
    /// Written by a pod author.
    pub inline: bool,
}

/// The pod, as far as the kubelet told; empty otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its service account.
    pub service_account: String,
}

/// What the administrator set up.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The folders that `file://` may name.
    pub file_roots: Vec<PathBuf>,
}

impl Attributes {
    /// Reads a volume context, or the parameters of a StorageClass.
    pub fn parse(context: &HashMap<String, String>, rules: &Rules) -> Result<Self, AttributeError> {
        let kubernetes = |key: &str| {
            context.get(&format!("{KUBERNETES_PREFIX}{key}")).map(String::as_str).unwrap_or_default().to_owned()
        };
        let inline = match kubernetes("ephemeral").as_str() {
            "" | "false" => false,
            "true" => true,
            _ => return field_error("csi.storage.k8s.io/ephemeral", "must be true or false"),
        };
        let known: &[&str] = if inline { &KNOWN_INLINE } else { &KNOWN };
        for name in own_keys(context) {
            if !known.contains(&name.as_str()) {
                let known = known.join(", ");
                return Err(AttributeError::Unknown { name: printable(name), known });
            }
        }
        let get = |name: &str| context.get(name).map(String::as_str);
        let source_keys = ["endpoint", "region", "anonymous", "snapshot", "policy", "placement"];
        let wanted = match (get("source"), get("dataset")) {
            (Some(_), Some(_)) => return value_error("dataset", "cannot stand beside `source`; name one of them"),
            (None, None) if inline => return value_error("dataset", "is missing: name an entry of the datasets file"),
            (None, None) => return value_error("source", "is missing: name an origin, or a `dataset`"),
            (None, Some(name)) => {
                if let Some(key) = source_keys.into_iter().find(|key| context.contains_key(*key)) {
                    return value_error(key, "goes with `source`; a `dataset` brings its own");
                }
                Wanted::Dataset(dataset_name(name)?)
            }
            (Some(source), None) => Wanted::Origin(Origin::check(
                Unchecked {
                    source,
                    endpoint: get("endpoint").unwrap_or_default(),
                    region: get("region").unwrap_or_default(),
                    anonymous: match get("anonymous") {
                        None | Some("false") => false,
                        Some("true") => true,
                        Some(_) => return value_error("anonymous", "must be true or false"),
                    },
                    snapshot: get("snapshot").unwrap_or_default(),
                    policy: get("policy").unwrap_or_default(),
                    placement: get("placement").unwrap_or_default(),
                },
                rules,
            )?),
        };
        let namespaces = get("namespaces").map(|list| list.split(',').map(|name| namespace(name.trim())).collect());
        Ok(Self {
            wanted,
            cache_bytes: get("cacheSize").map(cache_size).transpose()?,
            namespaces: namespaces.transpose()?,
            pod: Pod {
                namespace: kubernetes("pod.namespace"),
                name: kubernetes("pod.name"),
                uid: kubernetes("pod.uid"),
                service_account: kubernetes("serviceAccount.name"),
            },
            inline,
        })
    }
}

/// The keys that are not Kubernetes' own.
pub(crate) fn own_keys(context: &HashMap<String, String>) -> impl Iterator<Item = &String> {
    context.keys().filter(|key| !key.starts_with(KUBERNETES_PREFIX) && *key != PROVISIONER_IDENTITY)
}

/// An origin as it was written.
#[derive(Clone, Copy, Debug)]
pub struct Unchecked<'a> {
    /// See [`Origin`].
    pub source: &'a str,
    /// See [`Origin`].
    pub endpoint: &'a str,
    /// See [`Origin`].
    pub region: &'a str,
    /// See [`Origin`].
    pub anonymous: bool,
    /// See [`Origin`].
    pub snapshot: &'a str,
    /// See [`Origin`].
    pub policy: &'a str,
    /// See [`Origin`].
    pub placement: &'a str,
}

impl Origin {
    /// Looks at every value.
    pub fn check(unchecked: Unchecked<'_>, rules: &Rules) -> Result<Self, AttributeError> {
        let Unchecked { source, endpoint, region, anonymous, snapshot, policy, placement } = unchecked;
        check_source(source, rules)?;
        check_endpoint(endpoint)?;
        let region_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if region.len() > 64 || !region.bytes().all(region_byte) {
            return value_error("region", "is not a region's name");
        }
        if !snapshot.is_empty()
            && (snapshot.len() != 64 || !snapshot.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
        {
            return value_error("snapshot", "must be 64 lower-case hex digits");
        }
        if !["", "nr", "lru", "fifo", "random"].contains(&policy) {
            return value_error("policy", "must be nr, lru, fifo or random");
        }
        if !placement.is_empty() && placement.parse::<Placement>().is_err() {
            return value_error("placement", "must be local, partitioned or replicated:N (N copies, 1 to 255)");
        }
        Ok(Self {
            source: source.to_owned(),
            endpoint: endpoint.to_owned(),
            region: region.to_owned(),
            anonymous,
            snapshot: snapshot.to_owned(),
            policy: policy.to_owned(),
            placement: placement.to_owned(),
        })
    }
}

fn text(name: &'static str, value: &str) -> Result<(), AttributeError> {
    if value.len() > VALUE_BYTES {
        return value_error(name, format!("is longer than {VALUE_BYTES} bytes"));
    }
    if value.chars().any(char::is_control) {
        return value_error(name, "holds a control character");
    }
    Ok(())
}

fn check_source(source: &str, rules: &Rules) -> Result<(), AttributeError> {
    text("source", source)?;
    let Some((scheme, rest)) = source.split_once("://") else {
        return value_error("source", "must be a URL: s3://bucket/prefix, gs://, az:// or file:///folder");
    };
    if rest.split('/').any(|part| part == "..") {
        return value_error("source", "must not hold a part `..`");
    }
    match scheme {
        "s3" | "gs" | "az" => {
            let bucket = rest.split('/').next().unwrap_or_default();
            let bucket_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._$".contains(&byte);
            // The value is not repeated: people have put keys before an `@`.
            if bucket.is_empty() || !bucket.bytes().all(bucket_byte) {
                return value_error("source", "names no bucket: write s3://bucket/prefix, without keys or a server");
            }
            Ok(())
        }
        "file" => {
            let folder = Path::new(rest);
            let plain = folder.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
            if plain && folder.is_absolute() && rules.file_roots.iter().any(|root| folder.starts_with(root)) {
                return Ok(());
            }
            value_error("source", "names a folder that is not below one that the administrator allows (--file-root)")
        }
        _ => value_error("source", "must begin with s3://, gs://, az:// or file://"),
    }
}

fn check_endpoint(endpoint: &str) -> Result<(), AttributeError> {
    if endpoint.is_empty() {
        return Ok(());
    }
    text("endpoint", endpoint)?;
    let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    match host {
        None | Some("") => value_error("endpoint", "must be a server's URL, such as https://s3.example.org:9000"),
        // The value is not repeated: it may hold a password.
        Some(host) if host.contains(['@', '?', '#', ' ', '\\']) || host.split('/').any(|part| part == "..") => {
            value_error("endpoint", "must be a scheme, a host and a port, no more")
        }
        Some(_) => Ok(()),
    }
}

/// A size with its unit.
pub(crate) fn cache_size(value: &str) -> Result<u64, AttributeError> {
    text("cacheSize", value)?;
    match parse_bytes(value) {
        Ok(0) => value_error("cacheSize", "is nothing; leave it out for as much as the dataset has"),
        size => size.or_else(|what| value_error("cacheSize", format!("is wrong: {what}"))),
    }
}

fn dataset_name(name: &str) -> Result<String, AttributeError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.is_empty() || name.len() > 128 || !name.bytes().all(good) || name.starts_with('.') {
        return value_error("dataset", "must be a name of letters, digits, `-`, `_` and `.`");
    }
    Ok(name.to_owned())
}

/// The name of a namespace, or `*`.
pub(crate) fn namespace(name: &str) -> Result<String, AttributeError> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name != "*" && (name.is_empty() || name.len() > 63 || !name.bytes().all(good)) {
        return value_error("namespaces", "must be namespaces with commas between them, or `*`");
    }
    Ok(name.to_owned())
}

/// Text from outside, fit for a message.
pub(crate) fn printable(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Mount flags that change nothing here: the mount has them anyway.
const HARMLESS_FLAGS: [&str; 5] = ["ro", "noatime", "nodiratime", "nodev", "nosuid"];

/// Checks how a volume shall be accessed: as a folder. Every access mode will do, and the mount is read-only in each.
pub fn check_capability(capability: Option<&csi::VolumeCapability>) -> Result<(), AttributeError> {
    const FIELD: &str = "volume_capability";
    let Some(capability) = capability else { return field_error(FIELD, "is missing") };
    let mount = match &capability.access_type {
        Some(AccessType::Mount(mount)) => mount,
        Some(AccessType::Block(_)) => return field_error(FIELD, "asks for a block device; Larder serves folders"),
        None => return field_error(FIELD, "has no access type"),
    };
    let mode = capability.access_mode.as_ref().map(|mode| Mode::try_from(mode.mode));
    match mode {
        Some(Ok(
            Mode::SingleNodeWriter
            | Mode::SingleNodeReaderOnly
            | Mode::MultiNodeReaderOnly
            | Mode::MultiNodeSingleWriter
            | Mode::MultiNodeMultiWriter
            | Mode::SingleNodeSingleWriter
            | Mode::SingleNodeMultiWriter,
        )) => {}
        Some(Ok(Mode::Unknown) | Err(_)) | None => return field_error(FIELD, "has no access mode that is known"),
    }
    if let Some(flag) = mount.mount_flags.iter().find(|flag| !HARMLESS_FLAGS.contains(&flag.as_str())) {
        let what = format!("asks for the mount flag `{}`; known are {}", printable(flag), HARMLESS_FLAGS.join(", "));
        return field_error(FIELD, what);
    }
    // Provisioners fill in `ext4` when nobody says anything: there is nothing to format, so it changes nothing.
    if mount.fs_type.len() > 64 {
        return field_error(FIELD, "has an overlong file system type");
    }
    Ok(())
}

/// A volume's id.
pub fn check_volume_id(id: &str) -> Result<(), AttributeError> {
    if id.is_empty() {
        return field_error("volume_id", "is missing");
    }
    if id.len() > ID_BYTES || id.chars().any(char::is_control) {
        return field_error("volume_id", "is too long or holds a control character");
    }
    Ok(())
}

/// A hash of all that makes two publish calls the same, without a secret: service account tokens change with time.
pub fn arguments_hash(request: &csi::NodePublishVolumeRequest) -> String {
    let context: BTreeMap<_, _> =
        request.volume_context.iter().filter(|(key, _)| !key.ends_with("serviceAccount.tokens")).collect();
    let capability = request.volume_capability.as_ref();
    let mode = capability.and_then(|capability| capability.access_mode.as_ref()).map(|mode| mode.mode);
    let mount = capability.and_then(|capability| match &capability.access_type {
        Some(AccessType::Mount(mount)) => Some((&mount.fs_type, &mount.mount_flags)),
        Some(AccessType::Block(_)) | None => None,
    });
    let all = serde_json::json!({ "context": context, "readonly": request.readonly, "mode": mode, "mount": mount });
    hex_hash(all.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn parse(pairs: &[(&str, &str)]) -> Result<Attributes, AttributeError> {
        Attributes::parse(&map(pairs), &Rules { file_roots: vec!["/data".into()] })
    }

    const INLINE: (&str, &str) = ("csi.storage.k8s.io/ephemeral", "true");

    #[test]
    fn a_full_volume_is_understood() {
        let snapshot = "ab".repeat(32);
        let got = parse(&[
            ("source", "s3://bucket/a/b"),
            ("endpoint", "https://s3.example.org:9000"),
            ("region", "eu-1"),
            ("anonymous", "true"),
            ("snapshot", &snapshot),
            ("cacheSize", "100GiB"),
            ("policy", "lru"),
            ("placement", "replicated:2"),
            ("namespaces", "team-a, team-b"),
            ("csi.storage.k8s.io/pod.namespace", "team-a"),
            ("csi.storage.k8s.io/serviceAccount.tokens", "{}"),
            ("storage.kubernetes.io/csiProvisionerIdentity", "x"),
        ])
        .expect("good");
        assert_eq!(got.cache_bytes, Some(100 << 30));
        assert_eq!(got.namespaces, Some(vec!["team-a".to_owned(), "team-b".to_owned()]));
        assert_eq!(got.pod.namespace, "team-a");
        let Wanted::Origin(origin) = got.wanted else { panic!("{:?}", got.wanted) };
        assert!(
            origin.anonymous
                && origin.policy == "lru"
                && origin.snapshot == snapshot
                && origin.placement == "replicated:2"
        );
    }

    #[test]
    fn every_bad_value_is_refused_by_its_name() {
        let long = format!("s3://b/{}", "a".repeat(2000));
        let bad: [(&str, &[(&str, &str)]); 29] = [
            ("source", &[]),
            ("sauce", &[("sauce", "s3://b")]),
            ("source", &[("source", "bucket/x")]),
            ("source", &[("source", "http://h/x")]),
            ("source", &[("source", "s3://")]),
            ("source", &[("source", "s3://key:hunter2@b/x")]),
            ("source", &[("source", "s3://b/a/../c")]),
            ("source", &[("source", "s3://b/a\nb")]),
            ("source", &[("source", &long)]),
            ("source", &[("source", "file:///etc")]),
            ("source", &[("source", "file:///data/../etc")]),
            ("source", &[("source", "file://data")]),
            ("endpoint", &[("source", "s3://b"), ("endpoint", "s3.example.org")]),
            ("endpoint", &[("source", "s3://b"), ("endpoint", "http://u:hunter2@h")]),
            ("region", &[("source", "s3://b"), ("region", "eu west")]),
            ("anonymous", &[("source", "s3://b"), ("anonymous", "yes")]),
            ("snapshot", &[("source", "s3://b"), ("snapshot", "abc")]),
            ("cacheSize", &[("source", "s3://b"), ("cacheSize", "lots")]),
            ("cacheSize", &[("source", "s3://b"), ("cacheSize", "-1")]),
            ("cacheSize", &[("source", "s3://b"), ("cacheSize", "0")]),
            ("policy", &[("source", "s3://b"), ("policy", "best")]),
            ("placement", &[("source", "s3://b"), ("placement", "everywhere")]),
            ("placement", &[("source", "s3://b"), ("placement", "replicated")]),
            ("placement", &[("source", "s3://b"), ("placement", "replicated:0")]),
            ("placement", &[("dataset", "d"), ("placement", "partitioned")]),
            ("namespaces", &[("source", "s3://b"), ("namespaces", "a,,b")]),
            ("dataset", &[("source", "s3://b"), ("dataset", "d")]),
            ("dataset", &[("dataset", "../d")]),
            ("endpoint", &[("dataset", "d"), ("endpoint", "http://h")]),
        ];
        for (name, pairs) in bad {
            let error = parse(pairs).expect_err(name).to_string();
            assert!(error.contains(&format!("`{name}`")) && !error.contains("hunter2"), "{pairs:?}: {error}");
        }
        parse(&[("source", "file:///data/set")]).expect("below the root");
    }

    #[test]
    fn a_pod_author_names_a_dataset_and_nothing_else() {
        let got = parse(&[INLINE, ("dataset", "imagenet"), ("cacheSize", "1GiB")]).expect("good");
        assert!(got.inline && got.wanted == Wanted::Dataset("imagenet".to_owned()));
        for name in KNOWN.iter().filter(|name| !KNOWN_INLINE.contains(name)) {
            let error = parse(&[INLINE, ("dataset", "d"), (name, "x")]).expect_err(name).to_string();
            assert!(error.contains(&format!("unknown attribute `{name}`")), "{error}");
        }
    }
}
