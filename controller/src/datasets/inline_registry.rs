//! The ConfigMap that resolves inline volumes. It contains the Datasets that larderd reads without a Secret, in the
//! format of the administrator's dataset file. Datasets are its only source.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::names::{DatasetKey, REGISTRY_CONFIG_MAP, REGISTRY_KEY, SYSTEM_NAMESPACE};
use larder_api::rights;
use larder_api::rights::Endpoints;
use serde_json::{Value, json};

use crate::datasets::{has_moved, inline_attributes};
use crate::objects::{DatasetObject, Key};
use crate::time::Seconds;
use crate::write::{Change, Write};
use larder_kube::kinds::Kind;

/// The most bytes of the ConfigMap's text. The API server accepts 1 MiB for the whole object.
pub const BYTES_MAX: usize = 768 << 10;

/// The desired ConfigMap.
#[derive(Debug, Default)]
pub struct Registry {
    /// The write that updates it; `None` if it is up to date.
    pub write: Option<Write>,
    /// The Datasets that do not fit into it.
    pub left_out: BTreeSet<Key>,
}

/// An entry that requests space.
struct Asks {
    /// The key of its Dataset.
    key: Key,
    created: Seconds,
    name: String,
    entry: Value,
    bytes: usize,
}

/// Computes the ConfigMap from the Datasets. Entries of unreadable Datasets, and of Datasets whose current source has
/// not been imported yet, stay as they are.
pub fn registry<'a>(
    namespace: &str,
    there: Option<&str>,
    datasets: impl Iterator<Item = &'a DatasetObject>,
    unreadable: &BTreeMap<Key, String>,
    endpoints: &Endpoints,
) -> Registry {
    let written = there.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_default();
    let kept = |key: &Key| {
        let name = DatasetKey::new(&key.namespace, &key.name).inline_name();
        written["datasets"].get(&name).map(|entry| (name, entry.clone()))
    };
    let asks = |(key, created): (&Key, Seconds), (name, entry): (String, Value)| {
        let bytes = line(&name, &entry).len() + 1;
        Asks { key: key.clone(), created, name, entry, bytes }
    };
    let of_datasets = datasets.filter_map(|object| {
        let key = &object.meta.key;
        let entry = match entry(object, endpoints)? {
            Entry::Is(name, entry) => (name, entry),
            Entry::Stays(namespaces) => {
                let (name, mut entry) = kept(key)?;
                entry["namespaces"] = json!(namespaces);
                (name, entry)
            }
        };
        Some(asks((key, Seconds(object.meta.created)), entry))
    });
    let of_others = unreadable.keys().filter_map(|key| Some(asks((key, Seconds(0)), kept(key)?)));
    let (entries, left_out) = share_out(of_datasets.chain(of_others).collect(), BYTES_MAX);
    let text = text(&entries);
    if there == Some(text.as_str()) {
        return Registry { write: None, left_out };
    }
    let fields = json!({"data": {REGISTRY_KEY: text}});
    Registry {
        write: Some(Write::new(Kind::ConfigMap, namespace, REGISTRY_CONFIG_MAP, Change::Apply(fields))),
        left_out,
    }
}

/// Gives the administrator's Datasets the space that they request, and each other namespace an equal part of the rest.
/// Unused space goes to the other namespaces. Within a namespace the oldest Datasets come first, so a new one never
/// displaces another.
fn share_out(all: Vec<Asks>, most: usize) -> (BTreeMap<String, Value>, BTreeSet<Key>) {
    let mut namespaces: BTreeMap<String, Vec<Asks>> = BTreeMap::new();
    for asks in all {
        namespaces.entry(asks.key.namespace.clone()).or_default().push(asks);
    }
    let mut left = most;
    let (mut entries, mut left_out) = (BTreeMap::new(), BTreeSet::new());
    let mut grant = |mut asked: Vec<Asks>, share: usize| {
        asked.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        let mut used = 0;
        for asks in asked {
            if used + asks.bytes > share {
                left_out.insert(asks.key);
            } else {
                used += asks.bytes;
                entries.insert(asks.name, asks.entry);
            }
        }
        used
    };
    if let Some(ours) = namespaces.remove(SYSTEM_NAMESPACE) {
        left -= grant(ours, left);
    }
    let mut others: Vec<(usize, Vec<Asks>)> =
        namespaces.into_values().map(|asked| (asked.iter().map(|asks| asks.bytes).sum(), asked)).collect();
    others.sort_by_key(|(bytes, _)| *bytes);
    let mut waiting = others.len();
    for (_, asked) in others {
        left -= grant(asked, left / waiting);
        waiting -= 1;
    }
    (entries, left_out)
}

/// The entry of a Dataset.
#[derive(Debug, PartialEq)]
pub enum Entry {
    /// A name and its entry.
    Is(String, Value),
    /// Keep the existing entry, if any, for these namespaces: the Dataset names another source now, which may still be
    /// empty.
    Stays(Vec<String>),
}

/// A dataset's name and entry in the ConfigMap; `None` if it does not belong there.
pub fn entry(object: &DatasetObject, endpoints: &Endpoints) -> Option<Entry> {
    if object.meta.deleting {
        return None;
    }
    let key = DatasetKey::new(&object.meta.key.namespace, &object.meta.key.name);
    // Most Datasets have a Secret, and need no further parsing.
    if object.dataset.spec.origin.secret_ref.is_some() {
        return None;
    }
    let spec = object.dataset.spec.check().ok()?;
    rights::check(&key, &object.dataset.spec, endpoints).ok()?;
    let mut namespaces = vec![key.namespace.clone()];
    namespaces.extend(spec.namespaces.iter().filter(|name| **name != key.namespace).cloned());
    if has_moved(&spec, object.dataset.status.as_ref()) {
        return Some(Entry::Stays(namespaces));
    }
    let mut entry = json!(inline_attributes(&spec, object.dataset.status.as_ref()));
    if spec.dataset.anonymous {
        entry["anonymous"] = true.into();
    }
    entry["namespaces"] = json!(namespaces);
    Some(Entry::Is(key.inline_name(), entry))
}

/// JSON, which is also valid YAML, with one dataset per line for human readers.
fn text(entries: &BTreeMap<String, Value>) -> String {
    let mut text = String::from("{\"datasets\": {");
    for (index, (name, entry)) in entries.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        text += &format!("{comma}{}", line(name, entry));
    }
    text + "\n}}\n"
}

fn line(name: &str, entry: &Value) -> String {
    format!("\n  {}: {entry}", json!(name))
}
