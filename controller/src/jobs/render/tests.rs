mod environments;
mod pods;
mod restricted;
mod types;

use std::path::{Path, PathBuf};

use larder_api::TrainingJob;
use larder_api::job_type::JobType;
use larder_api::job_type::checked::CheckedType;
use larder_api::training_job::checked::CheckedJob;
use serde_json::{Value, json};

use super::*;

/// The types that Larder brings.
const BUILTIN: [&str; 13] = [
    "caffe2",
    "deepspeed",
    "horovod",
    "jax",
    "mpi",
    "notebook",
    "paddle",
    "parameter-server",
    "pytorch",
    "pytorch-elastic",
    "single",
    "tensorflow",
    "xgboost",
];

fn types_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/components/jobs/types")
}

fn builtin(name: &str) -> JobType {
    let text = std::fs::read_to_string(types_folder().join(format!("{name}.yaml"))).expect("a type");
    let value: Value = serde_yaml_ng::from_str(&text).expect("YAML");
    let kind: JobType = serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(kind.metadata.name.as_deref(), Some(name), "the file has the type's name");
    let again = serde_json::to_value(&kind.spec).expect("JSON");
    assert_eq!(known(&value["spec"], &again), None, "a field of {name} is unknown");
    kind
}

/// A path in `given` that `kept` lacks.
fn known(given: &Value, kept: &Value) -> Option<String> {
    match given {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| match kept.get(name) {
            Some(kept) => known(value, kept).map(|rest| format!("{name}.{rest}")),
            None => Some(name.clone()),
        }),
        Value::Array(items) => items.iter().zip(kept.as_array()?).find_map(|(given, kept)| known(given, kept)),
        _ => None,
    }
}

fn object(mut base: Value, fields: Value) -> Value {
    base.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    base
}

/// A pod template with these fields in its container.
fn template(container: Value) -> Value {
    json!({"spec": {"containers": [object(json!({"name": "main", "image": "image"}), container)]}})
}

/// A job of team-a named train, and its type.
struct Sample {
    job: CheckedJob,
    kind: CheckedType,
}

impl Sample {
    fn of(kind: &str, fields: Value) -> Self {
        Self::with(&builtin(kind).spec, kind, fields)
    }

    fn with(kind: &larder_api::JobTypeSpec, name: &str, fields: Value) -> Self {
        let job = json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "train", "namespace": "team-a"},
            "spec": object(json!({"type": name}), fields),
        });
        let job: TrainingJob = serde_json::from_value(job).expect("of the schema's form");
        let job = job.check().unwrap_or_else(|error| panic!("{name}: {error}"));
        let kind = validate_as(name, kind).unwrap_or_else(|error| panic!("{name}: {error}"));
        job.fit(&kind).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { job, kind }
    }

    fn rendered(&self) -> Rendered<'_> {
        Rendered { namespace: "team-a", name: "train", uid: "11ce-d00d", job: &self.job, kind: &self.kind }
    }
}

/// Roles that differ in counts alone: `name: [replicas, min, max]`.
fn roles(counts: &[(&str, u32, u32, u32)]) -> Value {
    let role = |(name, replicas, min, max): &(&str, u32, u32, u32)| json!({"name": name, "replicas": replicas, "min": min, "max": max, "template": template(json!({}))});
    json!({"roles": counts.iter().map(role).collect::<Vec<_>>()})
}

fn facts() -> Facts {
    Facts { agent_image: "larder.invalid/larder:0.1.0".to_owned(), ..Facts::default() }
}

/// Compares a text with the golden file of that name. With `LARDER_WRITE_GOLDEN=1` the file is written instead.
fn golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/jobs").join(name);
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        std::fs::write(&file, text).expect("written");
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(kept == text, "tests/golden/jobs/{name} differs: run this test with LARDER_WRITE_GOLDEN=1.\n{text}");
}
