//! Converts the dataset of a request to a [`DatasetSpec`] and back. Credentials and limits stay with the request.

use std::fmt::Display;

use larder_dataset::ownership::parse_mode;
use larder_dataset::{DatasetSpec, Ownership};

use crate::v1;

/// A field of a dataset with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {what}")]
pub struct InvalidDataset {
    /// The name of the field.
    pub field: &'static str,
    /// The mistake and the accepted values.
    pub what: String,
}

impl From<&DatasetSpec> for v1::Dataset {
    fn from(spec: &DatasetSpec) -> Self {
        fn text(value: Option<impl Display>) -> String {
            value.map(|value| value.to_string()).unwrap_or_default()
        }
        Self {
            source: spec.source.clone(),
            endpoint: text(spec.endpoint.as_ref()),
            region: text(spec.region.as_ref()),
            anonymous: spec.anonymous,
            snapshot: text(spec.snapshot),
            cache_bytes: spec.cache_bytes,
            policy: text(spec.policy),
            placement: text(spec.placement),
            refresh: text(spec.refresh),
            uid: spec.ownership.uid,
            gid: spec.ownership.gid,
            file_mode: spec.ownership.file_mode.map(u32::from),
            dir_mode: spec.ownership.dir_mode.map(u32::from),
            ..Self::default()
        }
    }
}

impl TryFrom<&v1::Dataset> for DatasetSpec {
    type Error = InvalidDataset;

    fn try_from(dataset: &v1::Dataset) -> Result<Self, InvalidDataset> {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Ok(Self {
            source: dataset.source.clone(),
            endpoint: text(&dataset.endpoint),
            region: text(&dataset.region),
            anonymous: dataset.anonymous,
            snapshot: parsed("snapshot", &dataset.snapshot)?,
            cache_bytes: dataset.cache_bytes,
            policy: parsed("policy", &dataset.policy)?,
            placement: parsed("placement", &dataset.placement)?,
            refresh: parsed("refresh", &dataset.refresh)?,
            ownership: Ownership {
                uid: dataset.uid,
                gid: dataset.gid,
                file_mode: mode("file_mode", dataset.file_mode)?,
                dir_mode: mode("dir_mode", dataset.dir_mode)?,
            },
        })
    }
}

/// The permission bits of a field.
fn mode(field: &'static str, bits: Option<u32>) -> Result<Option<u16>, InvalidDataset> {
    let mode = bits.map(|bits| parse_mode(&format!("{bits:04o}"))).transpose();
    mode.map_err(|what| InvalidDataset { field, what })
}

/// Parses the value of a field. None if it is empty.
fn parsed<T>(field: &'static str, text: &str) -> Result<Option<T>, InvalidDataset>
where
    T: std::str::FromStr,
    T::Err: Display,
{
    let parsed = (!text.is_empty()).then(|| text.parse()).transpose();
    parsed.map_err(|error: T::Err| InvalidDataset { field, what: error.to_string() })
}

#[cfg(test)]
mod tests {
    use larder_dataset::{PolicyKind, SnapshotId};

    use super::*;

    #[test]
    fn a_spec_survives_the_wire() {
        let full = DatasetSpec {
            source: "s3://bucket/imagenet".to_owned(),
            endpoint: Some("http://ceph:7480".to_owned()),
            region: Some("eu".to_owned()),
            anonymous: true,
            snapshot: Some(SnapshotId([7; 32])),
            cache_bytes: Some(1),
            policy: Some(PolicyKind::Fifo),
            placement: "partitioned".parse().ok(),
            refresh: "90m".parse().ok(),
            ownership: Ownership { uid: Some(1), gid: Some(0), file_mode: Some(0o440), dir_mode: Some(0o550) },
        };
        for spec in [full, DatasetSpec::new("file:///data")] {
            assert_eq!(DatasetSpec::try_from(&v1::Dataset::from(&spec)), Ok(spec));
        }
    }

    #[test]
    fn a_value_that_cannot_be_read_is_refused_with_its_field() {
        let wrong = [
            ("policy", v1::Dataset { policy: "mru".to_owned(), ..v1::Dataset::default() }),
            ("placement", v1::Dataset { placement: "everywhere".to_owned(), ..v1::Dataset::default() }),
            ("refresh", v1::Dataset { refresh: "often".to_owned(), ..v1::Dataset::default() }),
            ("file_mode", v1::Dataset { file_mode: Some(0o644), ..v1::Dataset::default() }),
            ("dir_mode", v1::Dataset { dir_mode: Some(u32::MAX), ..v1::Dataset::default() }),
            ("snapshot", v1::Dataset { snapshot: "latest".to_owned(), ..v1::Dataset::default() }),
        ];
        for (field, dataset) in wrong {
            assert_eq!(DatasetSpec::try_from(&dataset).unwrap_err().field, field);
        }
    }
}
