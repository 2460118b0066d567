//! The writes to a node: its promises with the bytes that it should drop and the quotas, its labels, and an Event about
//! a cache that lacks room. They combine all datasets, and are written at most once in ten seconds.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::names::{NODE_LABEL_PREFIX, NODE_LABELS_MAX, node_label_value};
use larder_api::{
    CacheConditionKind, CleanedSnapshot, NODE_CACHE_LABELS_MAX, NodeQuota, PromisedDataset, SnapshotCache,
};
use serde_json::{Value, json};

use crate::events::write_event;
use crate::objects::{CacheObject, Node};
use crate::time::Seconds;
use crate::write::{Change, Write};
use larder_kube::events::Severity;
use larder_kube::kinds::Kind;

/// The most promises of a NodeCache, as in its schema.
const PROMISES_MAX: usize = 1024;

/// The write that sets the promises of a node, the bytes that it should drop, and the quotas that it enforces; `None`
/// if they are up to date. A node without a NodeCache gets one. `near` are the keys of the labels by which mirrors of
/// datasets are near to nodes: the NodeCache has those of the node.
pub fn promises(
    node: &Node,
    cache: Option<&CacheObject>,
    decided: &[PromisedDataset],
    clean: &[CleanedSnapshot],
    quotas: &[NodeQuota],
    near: &BTreeSet<&str>,
) -> Option<Write> {
    if node.meta.deleting || cache.is_some_and(|cache| cache.meta.deleting) {
        return None;
    }
    let sorted = |promises: &[PromisedDataset]| {
        let mut promises = promises.to_vec();
        promises.sort_by(|a, b| (&a.uid, &a.snapshot).cmp(&(&b.uid, &b.snapshot)));
        promises
    };
    let decided = first_most(sorted(decided), cache);
    let is_asked = cache.is_some_and(|cache| cache.spec.clean == clean);
    let is_limited = cache.is_some_and(|cache| cache.spec.quotas == quotas);
    let labels = node.labels.iter().filter(|(key, _)| near.contains(key.as_str())).take(NODE_CACHE_LABELS_MAX);
    let labels: BTreeMap<String, String> = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
    let is_labelled = cache.is_some_and(|cache| cache.spec.labels == labels);
    let is_up_to_date = is_asked && is_limited && is_labelled;
    if is_up_to_date && cache.is_some_and(|cache| sorted(&cache.spec.datasets) == decided) {
        return None;
    }
    let name = &node.meta.key.name;
    if cache.is_some() {
        // A merge patch instead of an apply: with the last entry, an apply would remove the whole spec.
        let mut fields = json!({"spec": {"datasets": decided}});
        if !is_asked {
            fields["spec"]["clean"] = if clean.is_empty() { Value::Null } else { json!(clean) };
        }
        if !is_limited {
            fields["spec"]["quotas"] = if quotas.is_empty() { Value::Null } else { json!(quotas) };
        }
        if !is_labelled {
            let there = cache.into_iter().flat_map(|cache| cache.spec.labels.keys());
            // A merge patch keeps what it does not name.
            let gone = there.filter(|key| !labels.contains_key(*key)).map(|key| (key.clone(), Value::Null));
            let wanted = labels.iter().map(|(key, value)| (key.clone(), json!(value)));
            fields["spec"]["labels"] = Value::Object(wanted.chain(gone).collect());
        }
        return Some(Write::new(Kind::NodeCache, "", name, Change::Merge(fields)));
    }
    let mut fields = json!({
        "metadata": {"ownerReferences": [{
            "apiVersion": Kind::Node.api_version(),
            "kind": Kind::Node.name(),
            "name": name,
            "uid": node.meta.uid,
        }]},
        "spec": {"datasets": decided},
    });
    if !quotas.is_empty() {
        fields["spec"]["quotas"] = json!(quotas);
    }
    if !labels.is_empty() {
        fields["spec"]["labels"] = json!(labels);
    }
    Some(Write::new(Kind::NodeCache, "", name, Change::Create(fields)))
}

/// As many promises as a NodeCache can list. Existing promises come first, so that they can still be withdrawn; further
/// ones wait.
fn first_most(mut promises: Vec<PromisedDataset>, cache: Option<&CacheObject>) -> Vec<PromisedDataset> {
    if promises.len() > PROMISES_MAX {
        let stands = |promise: &PromisedDataset| {
            let mut written = cache.into_iter().flat_map(|cache| &cache.spec.datasets);
            written.any(|there| (&there.uid, &there.snapshot) == (&promise.uid, &promise.snapshot))
        };
        let (standing, new): (Vec<_>, Vec<_>) = promises.into_iter().partition(stands);
        promises = standing;
        promises.extend(new);
        promises.truncate(PROMISES_MAX);
        promises.sort_by(|a, b| (&a.uid, &a.snapshot).cmp(&(&b.uid, &b.snapshot)));
    }
    promises
}

/// An Event about a cache that lacks room; `None` if it does not.
pub fn not_ready_event(cache: &CacheObject, now: Seconds) -> Option<Write> {
    let ready = CacheConditionKind::Ready.find(&cache.status.as_ref()?.conditions)?;
    if ready.status != "False" {
        return None;
    }
    // Without the message: each of many datasets that lack room in turn would be another Event.
    let identity = [&*cache.meta.uid, &*ready.reason];
    let said = (Severity::Warning, &*ready.reason, &*ready.message);
    Some(write_event(now, Kind::NodeCache, &cache.meta, &identity, said))
}

/// A dataset that a node may be labelled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// The key of its label.
    pub label: String,
    /// Its size.
    pub bytes: u64,
    /// Each node holds a share of it.
    pub is_shared: bool,
}

/// The write that brings the labels of a node in line with its cache; `None` if they are up to date. `current` returns
/// the datasets whose pods read the given bytes. Labels for which `is_kept` is true stay as they are.
pub fn labels(
    node: &Node,
    cache: Option<&CacheObject>,
    current: impl Fn(&SnapshotCache) -> Vec<Labelled>,
    is_kept: impl Fn(&str) -> bool,
) -> Option<Write> {
    let mut wanted: Vec<(u8, String, &'static str)> = Vec::new();
    for cached in cache.and_then(|cache| cache.status.as_ref()).into_iter().flat_map(|status| &status.snapshots) {
        for dataset in current(cached) {
            let share = Some(cached.wanted_bytes).filter(|wanted| dataset.is_shared && *wanted > 0);
            if let Some(value) = node_label_value(cached.bytes, share.unwrap_or(dataset.bytes)) {
                wanted.push((value.parse().unwrap_or(0), dataset.label, value));
            }
        }
    }
    // If there are too many labels, the datasets with the most bytes keep theirs.
    wanted.sort_by(|a, b| (b.0, &a.1).cmp(&(a.0, &b.1)));
    wanted.truncate(NODE_LABELS_MAX);
    let wanted: BTreeMap<String, &str> = wanted.into_iter().map(|(_, label, value)| (label, value)).collect();
    let there = node.labels.iter().filter(|(key, _)| key.starts_with(NODE_LABEL_PREFIX));
    let mut changes = serde_json::Map::new();
    for (key, value) in there {
        if wanted.get(key) != Some(&value.as_str()) && !is_kept(key) {
            changes.insert(key.clone(), Value::Null);
        }
    }
    for (key, value) in wanted {
        if node.labels.get(&key).map(String::as_str) != Some(value) {
            changes.insert(key, value.into());
        }
    }
    if changes.is_empty() {
        return None;
    }
    Some(Write::new(Kind::Node, "", &node.meta.key.name, Change::Merge(json!({"metadata": {"labels": changes}}))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Key, Meta};

    #[test]
    fn a_node_cache_has_the_labels_by_which_mirrors_are_near() {
        let labels = [("site", "b"), ("zone", "z")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let meta = Meta { key: Key::cluster("n"), ..Meta::default() };
        let node = Node { meta, labels: labels.into_iter().collect(), ..Node::default() };
        let write = |cache: Option<&CacheObject>, near: &[&str]| {
            promises(&node, cache, &[], &[], &[], &near.iter().copied().collect()).map(|write| write.change)
        };
        let Some(Change::Create(created)) = write(None, &["site", "rack"]) else { panic!() };
        assert_eq!(created["spec"]["labels"], json!({"site": "b"}));
        let spec = serde_json::from_value(created["spec"].clone()).expect("a spec");
        let cache = CacheObject { meta: Meta::default(), generation: 1, spec, status: None };
        assert_eq!(write(Some(&cache), &["site"]), None);
        let Some(Change::Merge(changed)) = write(Some(&cache), &["zone"]) else { panic!() };
        assert_eq!(changed["spec"]["labels"], json!({"site": null, "zone": "z"}));
    }
}
