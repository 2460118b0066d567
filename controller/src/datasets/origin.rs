//! The locations of a dataset's manifests, and the attributes of its volumes.

use std::collections::BTreeMap;

use larder_api::{CheckedSpec, DatasetStatus};
use larder_dataset::size::exact_bytes;

use larder_kube::short_hash::short_hash;

/// The URL of the permanent copy of a snapshot's manifest, next to the current manifest.
pub(super) fn kept_manifest(spec: &CheckedSpec, snapshot: &str) -> String {
    let folder = spec.manifest.rsplit_once('/').map_or(spec.manifest.as_str(), |(folder, _)| folder);
    format!("{folder}/{snapshot}.manifest")
}

/// Digests of the manifest's location and of the origin in a spec.
pub(super) fn digest(spec: &CheckedSpec) -> String {
    let dataset = &spec.dataset;
    let origin = [
        dataset.endpoint.as_deref().unwrap_or_default(),
        dataset.region.as_deref().unwrap_or_default(),
        spec.secret.as_deref().unwrap_or_default(),
        if dataset.anonymous { "anonymous" } else { "" },
    ];
    format!("{}-{}", short_hash(&[&spec.manifest]), short_hash(&origin))
}

/// True if the spec names another source than the imported one. No pod may read from the new source before it is
/// imported.
pub(super) fn has_moved(spec: &CheckedSpec, status: &DatasetStatus) -> bool {
    status.imported.as_ref().is_some_and(|imported| imported.from != digest(spec))
}

/// True for a directory, which only nodes can list.
pub(super) fn is_folder(spec: &CheckedSpec) -> bool {
    spec.dataset.source.starts_with("file://")
}

/// The attributes of a volume that reads the manifest at `source`.
pub(super) fn attributes(spec: &CheckedSpec, source: &str) -> BTreeMap<&'static str, String> {
    let dataset = &spec.dataset;
    let mut attributes = BTreeMap::from([("source", source.to_owned())]);
    let mut put = |name, value: Option<String>| {
        if let Some(value) = value {
            attributes.insert(name, value);
        }
    };
    put("endpoint", dataset.endpoint.clone());
    put("region", dataset.region.clone());
    put("anonymous", dataset.anonymous.then(|| "true".to_owned()));
    put("cacheSize", dataset.cache_bytes.map(exact_bytes));
    put("policy", dataset.policy.map(|policy| policy.to_string()));
    put("placement", dataset.placement.map(|placement| placement.to_string()));
    attributes
}

/// The source that pods read: the current manifest.
pub(super) fn current_source(spec: &CheckedSpec) -> String {
    let source = &spec.dataset.source;
    let beside = format!("{}/.larder/manifest", source.trim_end_matches('/'));
    if spec.manifest == beside { source.clone() } else { spec.manifest.clone() }
}
