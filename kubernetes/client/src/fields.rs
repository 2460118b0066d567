//! The fields that objects of all kinds have: metadata, a spec, and a status with conditions.
//!
//! A watch yields an object whose fields other than the metadata are plain JSON. They are read here with the types of
//! Kubernetes, in which a null field counts as absent. The caller then reduces the object to the fields that it keeps.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::api::DynamicObject;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::key::{Key, Meta};

/// Reads a whole object of one of Larder's types.
///
/// # Errors
/// The object does not match its definition.
pub fn whole<T: DeserializeOwned>(object: DynamicObject) -> Result<T, serde_json::Error> {
    serde_json::from_value(serde_json::to_value(object)?)
}

/// Reads the fields other than the metadata.
///
/// # Errors
/// A field has a different type.
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
    /// A field of the spec or the status has a different type.
    pub fn read(data: Value) -> Result<Self, serde_json::Error> {
        fields(data)
    }

    /// Reads both. A part that cannot be read counts as absent.
    pub fn read_leniently(mut data: Value) -> Self {
        Self { spec: part(&mut data, "spec"), status: part(&mut data, "status") }
    }
}

fn part<T: DeserializeOwned>(data: &mut Value, name: &str) -> Option<T> {
    data.get_mut(name).and_then(|part| serde_json::from_value(part.take()).ok())
}

/// Reads everything in a value that can be read. Fields and list items of another type are left out, and the error says
/// why.
pub fn readable<T: DeserializeOwned + Default>(value: &Value) -> (T, Option<serde_json::Error>) {
    match T::deserialize(value) {
        Ok(whole) => (whole, None),
        Err(error) => {
            let rest = readable_part(value, &|part| T::deserialize(part).is_ok());
            (rest.and_then(|rest| T::deserialize(rest).ok()).unwrap_or_default(), Some(error))
        }
    }
}

/// The largest part of a value that `reads` accepts.
fn readable_part(value: &Value, reads: &dyn Fn(&Value) -> bool) -> Option<Value> {
    let part = match value {
        _ if reads(value) => value.clone(),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                let value = readable_part(value, &|part| reads(&json!({ name: part })))?;
                Some((name.clone(), value))
            };
            fields.iter().filter_map(field).collect()
        }
        Value::Array(items) => {
            items.iter().filter_map(|item| readable_part(item, &|part| reads(&json!([part])))).collect()
        }
        _ => return None,
    };
    reads(&part).then_some(part)
}

/// The reference to the object of type `T` that controls an object; `None` if it is controlled by no object or by one
/// of another kind or API group. The version is not compared: all versions of an API serve the same objects.
pub fn controller<T: Resource<DynamicType = ()>>(object: &impl Resource) -> Option<&OwnerReference> {
    let owner = object.meta().owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    (group == T::group(&()) && owner.kind == T::kind(&())).then_some(owner)
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

/// The value of a label; `None` if the object does not have it.
pub fn label<'o>(object: &'o impl Resource, key: &str) -> Option<&'o str> {
    object.meta().labels.as_ref()?.get(key).map(String::as_str)
}

/// The value of an annotation; `None` if the object does not have it.
pub fn annotation<'o>(object: &'o impl Resource, key: &str) -> Option<&'o str> {
    object.meta().annotations.as_ref()?.get(key).map(String::as_str)
}

/// A condition of the status of an object that k8s-openapi does not define.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConditionFields {
    /// The condition's type, such as `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason, in one word.
    pub reason: String,
    /// The message for users.
    pub message: String,
    /// When the status last changed (RFC 3339); empty if it was never set. A writer may omit the field, and the API
    /// server then returns null.
    #[serde(deserialize_with = "null_is_empty")]
    pub last_transition_time: String,
}

fn null_is_empty<'de, D: Deserializer<'de>>(text: D) -> Result<String, D::Error> {
    Option::deserialize(text).map(Option::unwrap_or_default)
}

/// True if the condition `kind` is `True`.
pub fn has_condition(conditions: &[ConditionFields], kind: &str) -> bool {
    conditions.iter().any(|condition| condition.kind == kind && condition.status == "True")
}

/// Parses a time (RFC 3339) into seconds since 1970; 0 if it cannot be parsed.
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
    use k8s_openapi::api::core::v1::{NodeSpec, NodeStatus, Pod, PodSpec};
    use larder_api::TrainingJob;

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
    #[test]
    fn fields_and_items_that_cannot_be_read_are_left_out() {
        let spec = json!({
            "nodeName": "n1",
            "priority": "high",
            "containers": [
                {"name": "a", "livenessProbe": 7, "resources": {"requests": {"cpu": "2"}, "claims": "odd"}},
                "odd",
                {"name": "b"},
            ],
        });
        let (read, error) = readable::<Option<PodSpec>>(&spec);
        let read = read.unwrap();
        assert!(error.is_some());
        assert_eq!((read.node_name.as_deref(), read.priority), (Some("n1"), None));
        let names: Vec<&str> = read.containers.iter().map(|container| container.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let requests = read.containers[0].resources.as_ref().and_then(|resources| resources.requests.as_ref());
        assert_eq!(requests.unwrap()["cpu"].0, "2");
        assert!(readable::<Option<PodSpec>>(&Value::Null).1.is_none());
        assert!(readable::<Option<PodSpec>>(&json!(3)).0.is_none());
    }

    #[test]
    fn a_controller_is_of_its_kind_and_api_group() {
        let pod = |change: &dyn Fn(&mut OwnerReference)| {
            let mut owner = OwnerReference {
                api_version: "larder.dev/v9".into(),
                kind: "TrainingJob".into(),
                name: "train".into(),
                controller: Some(true),
                ..OwnerReference::default()
            };
            change(&mut owner);
            let mut pod = Pod::default();
            pod.metadata.owner_references = Some(vec![OwnerReference::default(), owner]);
            controller::<TrainingJob>(&pod).map(|owner| owner.name.clone())
        };
        assert_eq!(pod(&|_| {}).as_deref(), Some("train"));
        assert_eq!(pod(&|owner| owner.controller = None), None);
        assert_eq!(pod(&|owner| owner.kind = "Job".into()), None);
        assert_eq!(pod(&|owner| owner.api_version = "kubeflow.org/v1".into()), None);
        assert_eq!(pod(&|owner| owner.api_version = "larder.dev.example.org/v1".into()), None);
        assert_eq!(controller::<TrainingJob>(&Pod::default()), None);
    }
}
