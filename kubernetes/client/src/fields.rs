//! The fields that objects of all kinds have: metadata, a spec, a status, and conditions in it.
//!
//! A watch yields an object whose fields beside the metadata are plain JSON. They are read here with the types of
//! Kubernetes, in which a field that is null counts as absent; the caller then cuts the object to what it keeps.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::api::DynamicObject;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::key::{Key, Meta};

/// Reads a whole object of a type of Larder's.
///
/// # Errors
/// It is not what its definition says.
pub fn whole<T: DeserializeOwned>(object: DynamicObject) -> Result<T, serde_json::Error> {
    serde_json::from_value(serde_json::to_value(object)?)
}

/// Reads the fields beside the metadata.
///
/// # Errors
/// One of them has another type.
pub fn fields<T: DeserializeOwned>(data: Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(data)
}

/// The spec and the status of an object. A caller that needs only one of them names
/// [`IgnoredAny`](serde::de::IgnoredAny) for the other.
#[derive(Debug, Deserialize)]
#[serde(bound = "S: DeserializeOwned, T: DeserializeOwned")]
pub struct Parts<S, T> {
    /// The spec, if there is one.
    #[serde(default)]
    pub spec: Option<S>,
    /// The status, if there is one.
    #[serde(default)]
    pub status: Option<T>,
}

impl<S: DeserializeOwned, T: DeserializeOwned> Parts<S, T> {
    /// Reads both.
    ///
    /// # Errors
    /// A field of one of them has another type.
    pub fn read(data: Value) -> Result<Self, serde_json::Error> {
        fields(data)
    }

    /// Reads both. One that cannot be read counts as absent.
    pub fn read_leniently(mut data: Value) -> Self {
        Self { spec: part(&mut data, "spec"), status: part(&mut data, "status") }
    }
}

fn part<T: DeserializeOwned>(data: &mut Value, name: &str) -> Option<T> {
    data.get_mut(name).and_then(|part| serde_json::from_value(part.take()).ok())
}

/// The name and version of an object.
pub fn meta(object: &impl Resource) -> Meta {
    let metadata = object.meta();
    Meta {
        key: Key::of(object),
        uid: uid(object).to_owned(),
        version: version(object),
        deleting: metadata.deletion_timestamp.is_some(),
        created: metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
    }
}

/// The version of an object; 0 if it has none.
pub fn version(object: &impl Resource) -> u64 {
    // In all releases of Kubernetes, versions are numbers that grow.
    object.meta().resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The uid of an object; empty if it has none.
pub fn uid(object: &impl Resource) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

/// The value of a label.
pub fn label<'o>(object: &'o impl Resource, key: &str) -> Option<&'o str> {
    object.meta().labels.as_ref()?.get(key).map(String::as_str)
}

/// The value of an annotation.
pub fn annotation<'o>(object: &'o impl Resource, key: &str) -> Option<&'o str> {
    object.meta().annotations.as_ref()?.get(key).map(String::as_str)
}

/// A condition of the status of an object that k8s-openapi does not define.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConditionFields {
    /// The type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason, in one word.
    pub reason: String,
    /// The reason, for people.
    pub message: String,
    /// Empty if it was never set. A writer may omit the field, which the API server then serves as null.
    #[serde(deserialize_with = "null_is_empty")]
    pub last_transition_time: String,
}

fn null_is_empty<'de, D: Deserializer<'de>>(text: D) -> Result<String, D::Error> {
    Option::deserialize(text).map(Option::unwrap_or_default)
}

/// True if an object has the condition `kind`.
pub fn has_condition(conditions: &[ConditionFields], kind: &str) -> bool {
    conditions.iter().any(|condition| condition.kind == kind && condition.status == "True")
}

/// A time in seconds since 1970; 0 if it cannot be read.
pub fn seconds(time: &str) -> i64 {
    time.parse::<Timestamp>().map_or(0, Timestamp::as_second)
}

/// A time of the API in seconds since 1970; 0 if it was never set.
pub fn second_of(time: Option<&Time>) -> i64 {
    time.map_or(0, |time| time.0.as_second())
}

/// Hours and minutes of a time in seconds since 1970, as in `10:42 UTC`.
pub fn hour(seconds: i64) -> String {
    let text = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string();
    let clock = text.split_once('T').and_then(|(_, clock)| clock.get(..5)).unwrap_or_default();
    format!("{clock} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{NodeSpec, NodeStatus};
    use serde_json::json;

    #[test]
    fn a_condition_without_a_time_is_read() {
        let condition = json!({"type": "x", "status": "True", "lastHeartbeatTime": null, "lastTransitionTime": null});
        let conditions: Vec<ConditionFields> = fields(json!([condition])).unwrap();
        assert!(has_condition(&conditions, "x"));
        assert_eq!(conditions[0].last_transition_time, "");
    }

    #[test]
    fn a_part_that_is_null_or_missing_is_absent_and_others_are_read() {
        let parts = Parts::<NodeSpec, NodeStatus>::read(json!({"spec": null})).unwrap();
        assert!(parts.spec.is_none() && parts.status.is_none());
        let odd = json!({"spec": {"unschedulable": true, "taints": null}, "status": {"allocatable": 3}});
        assert!(Parts::<NodeSpec, NodeStatus>::read(odd.clone()).is_err());
        let parts = Parts::<NodeSpec, NodeStatus>::read_leniently(odd);
        assert_eq!(parts.spec.and_then(|spec| spec.unschedulable), Some(true));
        assert!(parts.status.is_none());
    }
}
