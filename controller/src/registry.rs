//! The ConfigMap that inline volumes are resolved by: the Datasets that larderd reads without a Secret of their own, in
//! the form of the administrator's file of datasets. Datasets are its only source.

use std::collections::BTreeMap;

use larder_controller_api::names::{DatasetKey, REGISTRY_CONFIG_MAP, REGISTRY_KEY};
use larder_controller_api::rights;
use larder_controller_api::rights::Endpoints;
use serde_json::{Value, json};

use crate::decide::inline_attributes;
use crate::kinds::Kind;
use crate::objects::{DatasetObject, Key};
use crate::write::{Change, Write};

/// The write that makes the ConfigMap what the datasets say; `None` if it is. Those that cannot be read keep their entries.
pub fn write<'a>(
    namespace: &str,
    there: Option<&str>,
    datasets: impl Iterator<Item = &'a DatasetObject>,
    unreadable: &BTreeMap<Key, String>,
    endpoints: &Endpoints,
) -> Option<Write> {
    let mut entries: BTreeMap<String, Value> = datasets.filter_map(|object| entry(object, endpoints)).collect();
    let written = there.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_default();
    for key in unreadable.keys() {
        let name = DatasetKey::new(&key.namespace, &key.name).inline_name();
        if let Some(entry) = written["datasets"].get(&name) {
            entries.entry(name).or_insert_with(|| entry.clone());
        }
    }
    let text = text(&entries);
    if there == Some(text.as_str()) {
        return None;
    }
    let fields = json!({"data": {REGISTRY_KEY: text}});
    Some(Write::new(Kind::ConfigMap, namespace, REGISTRY_CONFIG_MAP, Change::Apply(fields)))
}

/// A dataset's entry in the ConfigMap, with its name. `None` if it is not in it.
pub fn entry(object: &DatasetObject, endpoints: &Endpoints) -> Option<(String, Value)> {
    if object.meta.deleting {
        return None;
    }
    let key = DatasetKey::new(&object.meta.key.namespace, &object.meta.key.name);
    // Most have a Secret; their specs need not be read.
    if object.dataset.spec.origin.secret_ref.is_some() {
        return None;
    }
    let spec = object.dataset.spec.check().ok()?;
    rights::check(&key, &object.dataset.spec, endpoints).ok()?;
    let mut namespaces = vec![key.namespace.clone()];
    namespaces.extend(spec.namespaces.iter().filter(|name| **name != key.namespace).cloned());
    let mut entry = json!(inline_attributes(&spec, object.dataset.status.as_ref()));
    if spec.dataset.anonymous {
        entry["anonymous"] = true.into();
    }
    entry["namespaces"] = json!(namespaces);
    Some((key.inline_name(), entry))
}

/// JSON, which is YAML; one dataset a line, for people who read it.
fn text(entries: &BTreeMap<String, Value>) -> String {
    let mut text = String::from("{\"datasets\": {");
    for (index, (name, entry)) in entries.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        text += &format!("{comma}\n  {}: {entry}", json!(name));
    }
    text + "\n}}\n"
}
