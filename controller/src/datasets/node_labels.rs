//! The writes about a node: its promises with what it is to drop, and its labels. Both are made of all datasets
//! together, and at most once in ten seconds.

use std::collections::BTreeMap;

use larder_api::names::{NODE_LABEL_PREFIX, NODE_LABELS_MAX, node_label_value};
use larder_api::{CleanedSnapshot, PromisedDataset};
use serde_json::{Value, json};

use crate::objects::{CacheObject, Node};
use crate::write::{Change, Write};
use larder_kube::kinds::Kind;

/// Most promises of a NodeCache, as its schema has it.
const PROMISES_MAX: usize = 1024;

/// The write that makes the promises of a node, and what it is to drop, what was decided; `None` if they are. A node
/// without a NodeCache gets one.
pub fn promises(
    node: &Node,
    cache: Option<&CacheObject>,
    decided: &[PromisedDataset],
    clean: &[CleanedSnapshot],
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
    if is_asked && cache.is_some_and(|cache| sorted(&cache.spec.datasets) == decided) {
        return None;
    }
    let name = &node.meta.key.name;
    if cache.is_some() {
        // No apply: with its last entry the whole spec would go.
        let mut fields = json!({"spec": {"datasets": decided}});
        if !is_asked {
            fields["spec"]["clean"] = if clean.is_empty() { Value::Null } else { json!(clean) };
        }
        return Some(Write::new(Kind::NodeCache, "", name, Change::Merge(fields)));
    }
    let fields = json!({
        "metadata": {"ownerReferences": [{
            "apiVersion": Kind::Node.api_version(),
            "kind": Kind::Node.name(),
            "name": name,
            "uid": node.meta.uid,
        }]},
        "spec": {"datasets": decided},
    });
    Some(Write::new(Kind::NodeCache, "", name, Change::Create(fields)))
}

/// As many promises as a NodeCache lists, those that stand first: what is more waits, and what stands can be taken
/// back.
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

/// A dataset that a node may be labelled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// The key of its label.
    pub label: String,
    /// Its bytes.
    pub bytes: u64,
    /// Each node has a share of it.
    pub is_shared: bool,
}

/// The write that makes the labels of a node what its cache has; `None` if they are. `current` names the datasets whose
/// current snapshot this is, and labels that `is_kept` stay as they are.
pub fn labels(
    node: &Node,
    cache: Option<&CacheObject>,
    current: impl Fn(&str) -> Vec<Labelled>,
    is_kept: impl Fn(&str) -> bool,
) -> Option<Write> {
    let mut wanted: Vec<(u8, String, &'static str)> = Vec::new();
    for cached in cache.and_then(|cache| cache.status.as_ref()).into_iter().flat_map(|status| &status.snapshots) {
        for dataset in current(&cached.snapshot) {
            let share = Some(cached.wanted_bytes).filter(|wanted| dataset.is_shared && *wanted > 0);
            if let Some(value) = node_label_value(cached.bytes, share.unwrap_or(dataset.bytes)) {
                wanted.push((value.parse().unwrap_or(0), dataset.label, value));
            }
        }
    }
    // The fullest stay if there are too many.
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
