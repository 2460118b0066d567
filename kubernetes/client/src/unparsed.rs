//! An object of the API as text. The tree of an object can be fifty times as large as its text: of many small fields,
//! as users may write them. So the objects of a list, and those that writes return, stay texts, which are parsed one by
//! one.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::{ApiResource, DynamicObject, TypeMeta};
use kube::core::DynamicResourceScope;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// An object of which only the name and the version are parsed.
#[derive(Clone, Debug)]
pub struct Unparsed {
    /// The name, the namespace, the uid and the version.
    metadata: ObjectMeta,
    text: Box<RawValue>,
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    metadata: Named,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Named {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl<'de> Deserialize<'de> for Unparsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Box::<RawValue>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Serialize for Unparsed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl Unparsed {
    fn new(text: Box<RawValue>) -> Result<Self, serde_json::Error> {
        let Head { metadata: Named { name, namespace, uid, resource_version } } = serde_json::from_str(text.get())?;
        let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
        Ok(Self { metadata, text })
    }

    /// An object to be written.
    ///
    /// # Errors
    /// The metadata are not those of an object.
    pub fn of(object: &Value) -> Result<Self, serde_json::Error> {
        Self::new(serde_json::value::to_raw_value(object)?)
    }

    /// Parses the object, without its managed fields, which are never used and often larger than the rest.
    ///
    /// # Errors
    /// The metadata are not those of an object.
    pub fn parse(&self) -> Result<DynamicObject, serde_json::Error> {
        let mut fields: Map<String, Value> = serde_json::from_str(self.text.get())?;
        let mut metadata = fields.remove("metadata").unwrap_or_else(|| Value::Object(Map::new()));
        if let Value::Object(metadata) = &mut metadata {
            metadata.remove("managedFields");
        }
        let metadata = serde_json::from_value(metadata)?;
        let mut text = |name: &str| fields.remove(name).and_then(|text| text.as_str().map(str::to_owned));
        // Items of a list have no types.
        let types = text("apiVersion").zip(text("kind")).map(|(api_version, kind)| TypeMeta { api_version, kind });
        Ok(DynamicObject { types, metadata, data: Value::Object(fields) })
    }
}

impl Resource for Unparsed {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn group(of: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(of)
    }

    fn version(of: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(of)
    }

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(of)
    }

    fn api_version(of: &ApiResource) -> Cow<'_, str> {
        DynamicObject::api_version(of)
    }

    fn plural(of: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    const POD: &str = r#"{
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
            "managedFields": [{"manager": "m"}]},
        "spec": {"containers": []}, "status": null
    }"#;

    #[test]
    fn an_object_is_known_by_name_and_version_before_it_is_parsed() {
        let unparsed: Unparsed = serde_json::from_str(POD).unwrap();
        assert_eq!((Key::of(&unparsed), crate::fields::version(&unparsed)), (Key::new("n", "p"), 7));
        let object = unparsed.parse().unwrap();
        let whole: DynamicObject = serde_json::from_str(POD).unwrap();
        assert_eq!((&object.types, &object.data), (&whole.types, &whole.data));
        assert_eq!((object.metadata.labels, object.metadata.managed_fields), (whole.metadata.labels, None));
    }

    #[test]
    fn an_item_of_a_list_has_no_types_and_odd_metadata_is_an_error_of_that_object_alone() {
        let items: Vec<Unparsed> =
            serde_json::from_str(r#"[{"metadata": {"name": "a", "labels": 3}}, {"metadata": {"name": "b"}}]"#).unwrap();
        let parsed: Vec<_> = items.iter().map(Unparsed::parse).collect();
        assert!(parsed[0].is_err());
        assert_eq!(parsed[1].as_ref().unwrap().types, None);
    }
}
