//! An object of a manifest, of which fields are taken until none that is known is left.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::checked::InvalidField;

/// The fields that are left.
pub(super) struct Fields {
    path: String,
    fields: Map<String, Value>,
}

impl Fields {
    /// The fields of a value; `path` is for messages.
    pub(super) fn of(path: &str, value: Value) -> Result<Self, InvalidField> {
        match value {
            Value::Object(fields) => Ok(Self { path: path.to_owned(), fields }),
            Value::Null => Ok(Self { path: path.to_owned(), fields: Map::new() }),
            _ => Err(InvalidField::new(path.to_owned(), "is no object")),
        }
    }

    /// The path of a field.
    pub(super) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Takes a field; null is as if it were not there.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field and reads it.
    pub(super) fn read<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, InvalidField> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let read = serde_json::from_value(value);
        read.map(Some).map_err(|error| InvalidField::new(self.path(name), format!("cannot be read: {error}")))
    }

    /// Takes an object; without the field, it is empty.
    pub(super) fn object(&mut self, name: &str) -> Result<Self, InvalidField> {
        let value = self.take(name).unwrap_or_default();
        Self::of(&self.path(name), value)
    }

    /// The names of the fields that are left.
    pub(super) fn names(&self) -> Vec<String> {
        self.fields.keys().cloned().collect()
    }

    /// Warns of every field that is left.
    pub(super) fn rest(self, warnings: &mut Vec<String>) {
        let left = self.fields.iter().filter(|(_, value)| !value.is_null());
        warnings.extend(left.map(|(name, _)| format!("{}: has no counterpart and is left out", self.path(name))));
    }
}
