//! Schemas that several fields share. A limit on every text keeps the cost of its rules within what the API server
//! accepts.

use larder_dataset::PolicyKind;
use schemars::{Schema, SchemaGenerator, json_schema};

/// A URL, as attributes of volumes limit it.
pub(crate) fn url(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": larder_dataset::written::VALUE_BYTES})
}

/// The name of a policy.
pub(crate) fn policy(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": PolicyKind::ALL.map(PolicyKind::name)})
}

/// The id of a snapshot.
pub(crate) fn snapshot(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": "^[0-9a-f]{64}$", "maxLength": 64})
}

/// A number of bytes.
pub(crate) fn count(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 0})
}
