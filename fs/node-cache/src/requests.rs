//! The requests of a NodeCache's spec to its node.

use std::collections::BTreeMap;

use larder_api::NodeCacheSpec;
use larder_cachenode::node::{Promise, Quota};
use larder_dataset::SnapshotId;
use tracing::warn;

/// The requests in a spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The cache space to keep for datasets.
    pub promises: Vec<Promise>,
    /// The snapshots to drop, and for which owners, unless they were in use after this time, in seconds since 1970.
    pub clean: Vec<(SnapshotId, String, u64)>,
    /// The limits of namespaces.
    pub quotas: Vec<Quota>,
    /// The labels of the node that mirrors of datasets name.
    pub labels: BTreeMap<String, String>,
}

impl Requests {
    /// Parses the requests of a spec. Skips invalid entries: the API server validates entries, so an invalid one
    /// belongs to another version.
    pub fn of(spec: &NodeCacheSpec) -> Self {
        let snapshot = |text: &str| {
            let parsed = text.parse().ok();
            if parsed.is_none() {
                warn!(snapshot = text, "skip an entry of the NodeCache: its snapshot id is invalid");
            }
            parsed
        };
        let promise = |promised: &larder_api::PromisedDataset| {
            Some(Promise {
                snapshot: snapshot(&promised.snapshot)?,
                owner: promised.owner.clone(),
                holder: promised.uid.clone(),
                name: promised.name.clone(),
                wanted_disk_bytes: promised.bytes,
                disk_bytes: 0,
            })
        };
        let clean = |cleaned: &larder_api::CleanedSnapshot| {
            // A time before 1970 means never in use.
            let before = u64::try_from(cleaned.before.0.as_second()).unwrap_or(0);
            Some((snapshot(&cleaned.snapshot)?, cleaned.owner.clone(), before))
        };
        let quota = |quota: &larder_api::NodeQuota| Quota {
            name: quota.name.clone(),
            namespaces: quota.namespaces.clone(),
            reserved_bytes: quota.reserved_bytes,
            mounts: quota.mounts,
            imports: quota.imports,
        };
        Self {
            quotas: spec.quotas.iter().map(quota).collect(),
            promises: spec.datasets.iter().filter_map(promise).collect(),
            clean: spec.clean.iter().filter_map(clean).collect(),
            labels: spec.labels.clone(),
        }
    }
}
