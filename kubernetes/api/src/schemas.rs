//! Schemas that several fields share. Every text has a length limit, which keeps the estimated cost of CEL rules within
//! the API server's budget.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use larder_dataset::PolicyKind;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// A URL, with the same length limit as attributes of volumes.
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

/// A quantity of a resource. It is checked by a pattern: a CEL rule would need a length limit.
pub(crate) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 0,
        "pattern": "^[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)(n|u|m|k|Ki|[MGTPE]i?|[eE][+-]?[0-9]+)?$",
    })
}

/// A pod template, typed as in the API, but without descriptions, which are four fifths of its size. Its metadata has
/// only the fields that a job's pod can have, so that other fields are rejected and not ignored.
pub(crate) fn pod_template(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = PodTemplateSpec::json_schema(generator).to_value();
    slim(&mut schema);
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    schema["properties"]["metadata"] = json!({"type": "object", "properties": {"annotations": texts, "labels": texts}});
    schema["properties"]["spec"]["properties"]["containers"]["minItems"] = json!(1);
    schema["required"] = json!(["spec"]);
    Schema::try_from(schema).expect("an object is a schema")
}

fn slim(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    let about = fields.remove("description");
    if about.is_some_and(|about| about.as_str().is_some_and(|about| about.starts_with("Quantity is "))) {
        *schema = quantity(&mut SchemaGenerator::default()).to_value();
        return;
    }
    for (key, value) in fields.iter_mut() {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => properties.values_mut().for_each(slim),
            ("anyOf" | "oneOf" | "allOf", Value::Array(all)) => all.iter_mut().for_each(slim),
            ("items" | "additionalProperties", value) => slim(value),
            _ => {}
        }
    }
}

/// A closed list of names.
fn one_of(names: &[&str]) -> Schema {
    json_schema!({"type": "string", "enum": names})
}

/// The part of a job that restarts.
pub(crate) fn restart_scope(_: &mut SchemaGenerator) -> Schema {
    one_of(&["worker", "job"])
}

/// The action when a pod crashes.
pub(crate) fn restart_action(_: &mut SchemaGenerator) -> Schema {
    one_of(&["fail", "restartPod", "restartRole", "restartJob", "ignore"])
}

/// The awaited state of a role.
pub(crate) fn until(_: &mut SchemaGenerator) -> Schema {
    one_of(&["ready", "done"])
}

/// A number, as text.
pub(crate) fn number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 32, "pattern": "^[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?$"})
}

/// The distribution of numbers.
pub(crate) fn scale(_: &mut SchemaGenerator) -> Schema {
    one_of(&["linear", "log"])
}

/// The choice of the best number.
pub(crate) fn goal(_: &mut SchemaGenerator) -> Schema {
    one_of(&["minimize", "maximize"])
}

/// Sets of parameters, by name.
pub(crate) fn parameter_sets(_: &mut SchemaGenerator) -> Schema {
    let value = json!({"type": "string", "maxLength": 256});
    let set = json!({"type": "object", "minProperties": 1, "maxProperties": 16, "additionalProperties": value});
    json_schema!({"type": "array", "maxItems": 1000, "items": set})
}

/// The planner of a job's nodes.
pub(crate) fn gang_backend(_: &mut SchemaGenerator) -> Schema {
    one_of(&["auto", "builtin", "native"])
}

/// The pods that stay after a job has ended.
pub(crate) fn keep_pods(_: &mut SchemaGenerator) -> Schema {
    one_of(&["none", "ended", "all"])
}

/// The indexes of a role that decide about a job's success.
pub(crate) fn indexes(_: &mut SchemaGenerator) -> Schema {
    one_of(&["first", "all"])
}

/// The outcome of a successful job.
pub(crate) fn outcome(_: &mut SchemaGenerator) -> Schema {
    one_of(&["complete", "suspend"])
}

/// The ways to stop a queue.
pub(crate) fn stop(_: &mut SchemaGenerator) -> Schema {
    one_of(&["hold", "drain"])
}

/// The jobs that jobs of a queue preempt, of which some have a lower priority.
pub(crate) fn never_or_lower(_: &mut SchemaGenerator) -> Schema {
    one_of(&["never", "lowerPriority"])
}

/// The jobs of other queues that jobs of a queue preempt.
pub(crate) fn preempts(_: &mut SchemaGenerator) -> Schema {
    one_of(&["never", "lowerPriority", "any"])
}

/// Labels of nodes.
pub(crate) fn node_labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": 63},
        "minProperties": 1,
        "maxProperties": 8,
    })
}

/// A quantity whose sign a rule checks, so that the error says what is wrong.
pub(crate) fn amount(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "pattern": "^[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)(n|u|m|k|Ki|[MGTPE]i?|[eE][+-]?[0-9]+)?$",
    })
}
