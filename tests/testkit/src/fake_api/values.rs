//! Objects as JSON values: their names, and the changes that patches make.

use serde_json::{Value, json};

/// Plural, namespace and name.
pub type Id = (String, String, String);

pub(super) fn finalizers(object: &Value) -> Vec<String> {
    let list = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

pub(super) fn id(plural: &str, namespace: &str, name: &str) -> Id {
    (plural.to_owned(), namespace.to_owned(), name.to_owned())
}

pub(super) fn name_of(object: &Value) -> (String, String) {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// Applies a merge patch.
pub fn merge(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut object[key.as_str()], value);
        }
    }
}

pub(super) fn replace_leaves(object: &mut Value, applied: &Value) {
    match applied.as_object() {
        Some(fields) => fields.iter().for_each(|(key, value)| replace_leaves(&mut object[key.as_str()], value)),
        None => *object = applied.clone(),
    }
}

/// Adds an item to a list, or replaces the item with the same name and type.
pub(super) fn put_item(list: &mut Value, item: &Value) {
    if list.is_null() {
        *list = json!([]);
    }
    let same = |there: &&mut Value| there["name"] == item["name"] && there["type"] == item["type"];
    let items = list.as_array_mut().unwrap();
    match items.iter_mut().find(same) {
        Some(there) => *there = item.clone(),
        None => items.push(item.clone()),
    }
}
