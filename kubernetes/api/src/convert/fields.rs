//! An object of a manifest. The known fields are taken out of it one after the other, and a warning is made for each
//! remaining field.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::checked::InvalidField;

/// The fields that were not taken yet.
pub(super) struct Fields {
    path: String,
    fields: Map<String, Value>,
}

impl Fields {
    /// The fields of a value. `path` is the value's path for messages.
    pub(super) fn of(path: &str, value: Value) -> Result<Self, InvalidField> {
        match value {
            Value::Object(fields) => Ok(Self { path: path.to_owned(), fields }),
            Value::Null => Ok(Self { path: path.to_owned(), fields: Map::new() }),
            _ => Err(InvalidField::new(path.to_owned(), "is not an object")),
        }
    }

    /// The path of a field.
    pub(super) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Takes a field. A null field counts as absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field and parses it.
    pub(super) fn read<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, InvalidField> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let read = serde_json::from_value(value);
        read.map(Some).map_err(|error| InvalidField::new(self.path(name), format!("cannot be read: {error}")))
    }

    /// Takes an object. If the field is absent, the object is empty.
    pub(super) fn object(&mut self, name: &str) -> Result<Self, InvalidField> {
        let value = self.take(name).unwrap_or_default();
        Self::of(&self.path(name), value)
    }

    /// The names of the remaining fields.
    pub(super) fn names(&self) -> Vec<String> {
        self.fields.keys().cloned().collect()
    }

    /// Adds a warning for every remaining field.
    pub(super) fn rest(self, warnings: &mut Vec<String>) {
        let left = self.fields.iter().filter(|(_, value)| !value.is_null());
        warnings.extend(left.map(|(name, _)| format!("{}: has no counterpart and is left out", self.path(name))));
    }
}
