//! The specification of a dataset: its source and how it is cached.
//!
//! [`DatasetSpec`] is the only type for it. The command line, the CSI driver's attributes, the administrator's file and
//! the daemon's gRPC interface each have a syntax of their own; each converts it to this type at its boundary.
//!
//! The specification never contains credentials. They are passed beside it and never written to disk.

use serde::{Deserialize, Serialize};

use crate::ownership::Ownership;
use crate::placement::Placement;
use crate::policy::PolicyKind;
use crate::refresh::Refresh;
use crate::size;
use crate::snapshot::SnapshotId;

/// A dataset as users describe it. A field that is `None` uses the node's default.
///
/// ```
/// use larder_dataset::{DatasetSpec, Placement};
///
/// let spec: DatasetSpec = serde_json::from_str(
///     r#"{"source": "s3://bucket/imagenet", "cacheSize": "100GiB", "placement": "partitioned"}"#,
/// )?;
/// assert_eq!(spec.cache_bytes, Some(100 << 30));
/// assert_eq!(spec.placement, Some(Placement::Partitioned));
/// assert_eq!(spec.policy, None);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatasetSpec {
    /// The URL of the origin (`s3://`, `gs://`, `az://`, `file://`) or of a manifest, or the path of a manifest file.
    pub source: String,
    /// The URL of the S3 server. Not needed for AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The region of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// True to send requests without credentials.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anonymous: bool,
    /// The only snapshot that is accepted. `None` accepts any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// The size of the cache on each node, in bytes. `None` means the size of the dataset.
    #[serde(default, rename = "cacheSize", with = "size::optional", skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
    /// What happens when the cache is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyKind>,
    /// Which nodes cache which blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// When the origin is listed again. `None` means never. A published manifest is never replaced by a listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<Refresh>,
    /// The owner and the modes that its mount shows.
    #[serde(default, skip_serializing_if = "Ownership::is_default")]
    pub ownership: Ownership,
}

impl DatasetSpec {
    /// A dataset with a source and defaults for everything else.
    pub fn new(source: impl Into<String>) -> Self {
        Self { source: source.into(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_is_read_as_it_was_written() {
        let full = DatasetSpec {
            source: "s3://bucket/imagenet".to_owned(),
            endpoint: Some("http://ceph:7480".to_owned()),
            region: Some("eu".to_owned()),
            anonymous: true,
            snapshot: Some(SnapshotId([0xab; 32])),
            cache_bytes: Some(100 << 30),
            policy: Some(PolicyKind::Lru),
            placement: "replicated:2".parse().ok(),
            refresh: "24h".parse().ok(),
            ownership: Ownership { uid: Some(7), file_mode: Some(0o400), ..Ownership::default() },
        };
        let text = serde_json::to_string(&full).unwrap();
        assert_eq!(serde_json::from_str::<DatasetSpec>(&text).unwrap(), full);
        assert!(text.contains("\"cacheSize\":\"100GiB\"") && text.contains("\"placement\":\"replicated:2\""), "{text}");
        let least: DatasetSpec = serde_json::from_str(r#"{"source":"file:///data"}"#).unwrap();
        assert_eq!(least, DatasetSpec::new("file:///data"));
        assert_eq!(serde_json::to_string(&least).unwrap(), r#"{"source":"file:///data"}"#);
    }

    #[test]
    fn a_wrong_field_is_refused_by_its_name_or_with_what_is_accepted() {
        for (text, said) in [
            (r#"{"source":"s3://b","cachesize":"1GiB"}"#, "cachesize"),
            (r#"{"source":"s3://b","cacheSize":"much"}"#, "is not a size"),
            (r#"{"source":"s3://b","policy":"mru"}"#, "random"),
            (r#"{"source":"s3://b","placement":"everywhere"}"#, "partitioned"),
            (r#"{"source":"s3://b","refresh":"often"}"#, "24h"),
            (r#"{"source":"s3://b","snapshot":"abc"}"#, "64 hex digits"),
            (r#"{"endpoint":"http://h"}"#, "source"),
        ] {
            let error = serde_json::from_str::<DatasetSpec>(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
