//! How much of a job's datasets its nodes hold.

use std::collections::BTreeSet;

use larder_api::training_job::checked::{CheckedJob, CheckedMount};
use larder_dataset::Placement;

use crate::jobs::cluster_view::{ClusterView, dataset_key};
use crate::jobs::machine::Data;
use crate::warm_request::{Progress, Requester, Warmth};
use larder_kube::key::Key;

/// The progress of each dataset of the job `by` on these nodes.
pub fn on_nodes(view: &ClusterView<'_>, by: &Key, job: &CheckedJob, nodes: &BTreeSet<String>) -> Vec<Data> {
    let data = |mount: &CheckedMount| Data {
        name: mount.dataset.to_string(),
        percent: percent(view, &dataset_key(&mount.dataset), nodes),
        enough: u64::from(mount.min_warm),
        timeout: i64::try_from(mount.warm_timeout.as_secs()).unwrap_or(i64::MAX),
        obstacle: over_quota(view, by, &dataset_key(&mount.dataset))
            .unwrap_or_else(|| full_node(view, &dataset_key(&mount.dataset), nodes)),
    };
    job.datasets.iter().map(data).collect()
}

/// Why the CacheQuota of the dataset's namespace keeps it off nodes of the job `by`; `None` if it does not.
fn over_quota(view: &ClusterView<'_>, by: &Key, dataset: &Key) -> Option<String> {
    match view.kueue.progress.get(dataset)?.get(&Requester::Job(by.clone()))? {
        Progress::Warms(warmth) if warmth.is_over_quota => Some(warmth.why.clone()),
        _ => None,
    }
}

/// The first of the nodes whose cache has no room for the dataset, and why.
fn full_node(view: &ClusterView<'_>, key: &Key, nodes: &BTreeSet<String>) -> String {
    let uid = view.datasets.get(key).map_or("", |object| &*object.meta.uid);
    let full = nodes.iter().find_map(|node| {
        let status = view.caches.get(&Key::cluster(node))?.status.as_ref()?;
        status.unkept_because(uid).map(|message| format!("{node}: {message}"))
    });
    full.unwrap_or_default()
}

fn percent(view: &ClusterView<'_>, key: &Key, nodes: &BTreeSet<String>) -> u64 {
    let Some(object) = view.datasets.get(key) else { return 0 };
    let spec = &object.dataset.spec;
    // A directory is read in place and never cached.
    if spec.origin.source.starts_with("file://") {
        return 100;
    }
    let placement = spec.cache.placement.as_deref().and_then(|text| text.parse().ok());
    if !matches!(placement, None | Some(Placement::Local)) {
        // Pods read the shares of all nodes, so the dataset's overall percentage counts, wherever the pods run.
        let percent = object.dataset.status.as_ref().and_then(|status| status.percent);
        return percent.map_or(0, u64::from);
    }
    let (Some(snapshot), bytes) = (view.snapshot(key), view.bytes(key)) else { return 0 };
    let mut warmth = Warmth { wanted: nodes.len() as u64, ..Warmth::default() };
    for node in nodes {
        let status = view.caches.get(&Key::cluster(node)).and_then(|cache| cache.status.as_ref());
        let here =
            status.and_then(|status| status.snapshots.iter().find(|here| here.is_of(snapshot, object.cache_owner())));
        warmth.wanted_bytes = warmth.wanted_bytes.saturating_add(bytes);
        warmth.cached_bytes = warmth.cached_bytes.saturating_add(here.map_or(0, |here| here.bytes.min(bytes)));
    }
    warmth.percent()
}
