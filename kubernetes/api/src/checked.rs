//! The spec of a Dataset, validated and parsed with the same checks as volume attributes.
//!
//! The schema rejects nearly all mistakes at apply. These checks cover objects that were stored before a rule was
//! added, and the few mistakes that a rule cannot express, such as numbers that are too large.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use larder_dataset::SnapshotId;
use larder_dataset::mirrors::{MirrorSpec, check_mirrors};
use larder_dataset::size::parse_duration;
use larder_dataset::written::{InvalidValue, Rules, WrittenSpec, check_source, namespace};

use crate::dataset::{DatasetSpec, Mirror, NodeCount};

/// The shortest `refresh`.
pub const REFRESH_MIN: Duration = Duration::from_secs(300);

/// The spec of a Dataset, validated and parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedSpec {
    /// The origin and the cache. Its snapshot and refresh are `None`, since the controller chooses the snapshot of a
    /// mount.
    pub dataset: larder_dataset::DatasetSpec,
    /// The mirrors.
    pub mirrors: Vec<MirrorSpec>,
    /// The names of those to which each new snapshot is copied.
    pub kept_mirrors: Vec<String>,
    /// The Secret with the credentials, in the Dataset's namespace.
    pub secret: Option<String>,
    /// The snapshot that pods should read; `None` for the latest.
    pub snapshot: Option<SnapshotId>,
    /// The origin is listed again after this time; `None` to list it only once.
    pub refresh: Option<Duration>,
    /// URL of the file that keeps the listing.
    pub manifest: String,
    /// Labels of the nodes that hold the dataset.
    pub selector: BTreeMap<String, String>,
    /// How many nodes hold the dataset before any pod uses it.
    pub count: NodeCount,
    /// How long nodes keep the dataset.
    pub keep: Keeping,
    /// The other namespaces whose pods may read the dataset; `*` for all.
    pub namespaces: Vec<String>,
}

/// How long nodes keep a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// Nodes that the spec requests keep it while the Dataset exists; other nodes keep it until they need the room.
    AsWanted,
    /// Every node that has it keeps it while the Dataset exists.
    Pinned,
    /// Nodes keep it until no pod has used it for this time.
    UnusedFor(Duration),
}

/// An invalid field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {what}")]
pub struct InvalidField {
    /// The path of the field.
    pub field: Cow<'static, str>,
    /// The mistake.
    pub what: String,
}

impl InvalidField {
    /// A mistake in `field`. `what` follows the field's path in the message.
    pub fn new(field: impl Into<Cow<'static, str>>, what: impl Into<String>) -> Self {
        Self { field: field.into(), what: what.into() }
    }
}

impl From<InvalidValue> for InvalidField {
    fn from(InvalidValue { name, what }: InvalidValue) -> Self {
        let field = match name {
            "source" => "spec.origin.source",
            "endpoint" => "spec.origin.endpoint",
            "region" => "spec.origin.region",
            "anonymous" => "spec.origin.anonymous",
            "snapshot" => "spec.snapshot",
            "cacheSize" => "spec.cache.size",
            "policy" => "spec.cache.policy",
            "placement" => "spec.cache.placement",
            "namespaces" => "spec.namespaces",
            "mirrors" => "spec.mirrors",
            name => name,
        };
        Self { field: field.into(), what }
    }
}

impl From<&Mirror> for MirrorSpec {
    fn from(mirror: &Mirror) -> Self {
        let Mirror { name, origin, near, cost, .. } = mirror.clone();
        let crate::dataset::MirrorOrigin { source, endpoint, region, anonymous } = origin;
        Self { name, source, endpoint, region, anonymous, near, cost }
    }
}

impl DatasetSpec {
    /// Checks every value. Errors: the first invalid field.
    pub fn check(&self) -> Result<CheckedSpec, InvalidField> {
        // Every folder is accepted here: each node knows its folders, and `rights` decides which Datasets may name one.
        let rules = Rules { file_roots: vec![PathBuf::from("/")] };
        let origin = &self.origin;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let snapshot = self.snapshot.as_deref().filter(|snapshot| *snapshot != "latest");
        let mut dataset = WrittenSpec {
            source: &origin.source,
            endpoint: &text(&origin.endpoint),
            region: &text(&origin.region),
            anonymous: origin.anonymous,
            snapshot: snapshot.unwrap_or_default(),
            cache_size: self.cache.size.as_deref(),
            policy: &text(&self.cache.policy),
            placement: &text(&self.cache.placement),
            refresh: "",
        }
        .check(&rules)?;
        if origin.anonymous && origin.secret_ref.is_some() {
            return Err(InvalidField::new("spec.origin.secretRef", "cannot be combined with spec.origin.anonymous"));
        }
        let refresh = self.refresh.as_deref().map(|text| duration("spec.refresh", text)).transpose()?;
        if refresh.is_some_and(|refresh| refresh < REFRESH_MIN) {
            return Err(InvalidField::new(
                "spec.refresh",
                "must be a time in s, m, h or d of at least 5m, such as 24h or 7d",
            ));
        }
        if refresh.is_some() && snapshot.is_some() {
            return Err(InvalidField::new("spec.refresh", "needs spec.snapshot to be latest"));
        }
        if let Some(manifest) = &self.manifest {
            check_source("spec.manifest", manifest, &rules)?;
        }
        for name in &self.namespaces {
            namespace(name)?;
        }
        let mirrors: Vec<MirrorSpec> = self.mirrors.iter().map(MirrorSpec::from).collect();
        check_mirrors(&origin.source, &mirrors)?;
        Ok(CheckedSpec {
            kept_mirrors: self.mirrors.iter().filter(|mirror| mirror.kept).map(|mirror| mirror.name.clone()).collect(),
            mirrors,
            secret: origin.secret_ref.as_ref().map(|secret| secret.name.clone()),
            snapshot: dataset.snapshot.take(),
            refresh,
            manifest: self.manifest_url(),
            selector: self.nodes.selector.clone(),
            count: self.nodes.count.unwrap_or_default(),
            keep: self.keeping()?,
            namespaces: self.namespaces.clone(),
            dataset,
        })
    }

    /// URL of the file that keeps the listing.
    pub fn manifest_url(&self) -> String {
        self.manifest
            .clone()
            .unwrap_or_else(|| format!("{}/.larder/manifest", self.origin.source.trim_end_matches('/')))
    }

    /// True if pods of `namespace` may read the Dataset of namespace `own`. Works even if the rest of the spec is
    /// invalid.
    pub fn is_granted(&self, own: &str, namespace: &str) -> bool {
        is_granted(&self.namespaces, own, namespace)
    }

    fn keeping(&self) -> Result<Keeping, InvalidField> {
        match (self.keep.pinned, &self.keep.unused_for) {
            (false, None) => Ok(Keeping::AsWanted),
            (true, None) => Ok(Keeping::Pinned),
            (false, Some(text)) => duration("spec.keep.unusedFor", text).map(Keeping::UnusedFor),
            (true, Some(_)) => {
                Err(InvalidField::new("spec.keep.pinned", "cannot be combined with spec.keep.unusedFor"))
            }
        }
    }
}

impl CheckedSpec {
    /// True if pods of `namespace` may read the Dataset of namespace `own`.
    pub fn is_granted(&self, own: &str, namespace: &str) -> bool {
        is_granted(&self.namespaces, own, namespace)
    }
}

/// True if pods of `namespace` may read a Dataset of namespace `own` that lists these in `spec.namespaces`.
pub fn is_granted(namespaces: &[impl AsRef<str>], own: &str, namespace: &str) -> bool {
    own == namespace || namespaces.iter().map(AsRef::as_ref).any(|name| name == "*" || name == namespace)
}

fn duration(field: &'static str, text: &str) -> Result<Duration, InvalidField> {
    parse_duration(text).map_err(|_| InvalidField::new(field, "must be a time in s, m, h or d, such as 24h or 7d"))
}

#[cfg(test)]
mod tests;
