//! The fields that objects of several kinds have.

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::key::{Key, Meta};

/// Reads a whole object.
///
/// # Errors
/// It is not what its definition says.
pub fn whole<T: serde::de::DeserializeOwned>(object: DynamicObject) -> Result<T, serde_json::Error> {
    serde_json::from_value(serde_json::to_value(object)?)
}

/// Reads the fields beside the metadata.
///
/// # Errors
/// One of them has another type.
pub fn fields<T: serde::de::DeserializeOwned>(data: Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(data)
}

/// The name and version of an object.
pub fn meta(object: &DynamicObject) -> Meta {
    let metadata = &object.metadata;
    Meta {
        key: Key::of(object),
        uid: metadata.uid.clone().unwrap_or_default(),
        // Versions are numbers that grow, in all versions of Kubernetes that there are.
        version: metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        created: metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
    }
}

/// The value of a label.
pub fn label(object: &DynamicObject, key: &str) -> Option<String> {
    object.metadata.labels.as_ref()?.get(key).cloned()
}

/// The value of an annotation.
pub fn annotation(object: &DynamicObject, key: &str) -> Option<String> {
    object.metadata.annotations.as_ref()?.get(key).cloned()
}

/// A condition of an object's status.
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
    /// Empty if it was never set: whoever writes a Node's status may leave it out, and the API server then says null.
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

/// Hours and minutes of a time in seconds since 1970, as in `10:42 UTC`.
pub fn hour(seconds: i64) -> String {
    let text = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string();
    let clock = text.split_once('T').and_then(|(_, clock)| clock.get(..5)).unwrap_or_default();
    format!("{clock} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_condition_whose_time_was_never_set_is_one_all_the_same() {
        let condition = json!({"type": "x", "status": "True", "lastHeartbeatTime": null, "lastTransitionTime": null});
        let conditions: Vec<ConditionFields> = fields(json!([condition])).unwrap();
        assert!(has_condition(&conditions, "x"));
        assert_eq!(conditions[0].last_transition_time, "");
    }
}
