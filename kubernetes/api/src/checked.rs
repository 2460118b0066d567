//! The spec of a Dataset as values, by the checks that the attributes of volumes pass.
//!
//! The schema refuses nearly all of this at apply. These checks hold for what was stored before a rule was added, and
//! for the few forms that a rule cannot express, such as numbers that are too large.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use larder_dataset::SnapshotId;
use larder_dataset::size::parse_duration;
use larder_dataset::written::{InvalidValue, Rules, WrittenSpec, check_source, namespace};

use crate::dataset::{DatasetSpec, NodeCount};

/// The shortest `refresh`.
pub const REFRESH_MIN: Duration = Duration::from_secs(300);

/// The spec of a Dataset as values.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedSpec {
    /// The origin and the cache. Its snapshot and refresh are `None`: which snapshot a mount is to have, the controller
    /// says.
    pub dataset: larder_dataset::DatasetSpec,
    /// The Secret with the credentials, in the Dataset's namespace.
    pub secret: Option<String>,
    /// The snapshot that pods are to read; `None`: the latest.
    pub snapshot: Option<SnapshotId>,
    /// List again after this time; `None`: once.
    pub refresh: Option<Duration>,
    /// URL of the file that keeps the listing.
    pub manifest: String,
    /// Labels of the nodes that hold it.
    pub selector: BTreeMap<String, String>,
    /// How many nodes hold it before any pod asks.
    pub count: NodeCount,
    /// How long nodes keep it.
    pub keep: Keeping,
    /// The other namespaces whose pods may read it; `*` for all.
    pub namespaces: Vec<String>,
}

/// How long nodes keep a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// Nodes that the spec asks for, as long as the Dataset exists; others until the room is needed.
    AsWanted,
    /// Every node that has it, as long as the Dataset exists.
    Pinned,
    /// Until no pod has used it for this time.
    UnusedFor(Duration),
}

/// A field that is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {what}")]
pub struct InvalidField {
    /// Its path.
    pub field: Cow<'static, str>,
    /// The mistake.
    pub what: String,
}

impl InvalidField {
    /// A mistake in `field`, in words that follow its name.
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
            name => name,
        };
        Self { field: field.into(), what }
    }
}

impl DatasetSpec {
    /// Checks every value. Errors: the first that is not accepted.
    pub fn check(&self) -> Result<CheckedSpec, InvalidField> {
        // Which folders there are, each node knows; who may name one, `rights` says.
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
        Ok(CheckedSpec {
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

    /// True if pods of `namespace` may read the Dataset of namespace `own`, whatever the rest of the spec is.
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
