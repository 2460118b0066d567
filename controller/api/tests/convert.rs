//! Manifests of Kubeflow, and the TrainingJobs and warnings that they become. With `LARDER_WRITE_GOLDEN=1` those are written.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use larder_controller_api::InvalidField;
use larder_controller_api::convert::{Converted, convert};
use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/convert")
}

fn read(name: &str) -> Value {
    let text = std::fs::read_to_string(folder().join(name)).expect("a manifest");
    serde_yaml_ng::from_str(&text).expect("YAML")
}

/// The warnings as comments, and the job.
fn shown(converted: &Converted) -> String {
    let mut text = String::new();
    for warning in &converted.warnings {
        writeln!(text, "# {warning}").expect("a text");
    }
    text + &serde_yaml_ng::to_string(&converted.job).expect("YAML")
}

#[test]
fn every_manifest_becomes_the_job_of_its_golden_file() {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| !name.ends_with(".converted.yaml"))
        .collect();
    names.sort();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        let converted = convert(&read(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let text = shown(&converted);
        let golden = folder().join(name.replace(".yaml", ".converted.yaml"));
        if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
            std::fs::write(&golden, &text).expect("written");
        }
        let kept = std::fs::read_to_string(&golden).unwrap_or_default();
        assert!(kept == text, "{} differs: run this test with LARDER_WRITE_GOLDEN=1.\n{text}", golden.display());
    }
}

/// Puts an unknown field beside every field of a manifest, one at a time: each must be named.
#[test]
fn no_field_is_dropped_without_a_word() {
    fn objects(at: &str, value: &Value, found: &mut Vec<String>) {
        if let Value::Object(fields) = value {
            found.push(at.to_owned());
            fields.iter().for_each(|(name, value)| objects(&format!("{at}/{name}"), value, found));
        }
    }
    // Free forms: what is in them is kept as it is.
    let free = ["labels", "annotations", "limits", "requests"];
    for name in ["tfjob.yaml", "pytorchjob.yaml", "pytorchjob-elastic.yaml", "mpijob.yaml"] {
        let manifest = read(name);
        let mut found = Vec::new();
        objects("", &manifest, &mut found);
        assert!(found.len() > 5, "{found:?}");
        for path in found.iter().filter(|path| !free.iter().any(|name| path.ends_with(name))) {
            let mut changed = manifest.clone();
            changed.pointer_mut(path).expect("there")["brandNew"] = json!({"x": 1});
            let warnings = convert(&changed).unwrap_or_else(|error| panic!("{name} {path}: {error}")).warnings;
            let named = format!("{}.brandNew", path.trim_start_matches('/').replace('/', "."));
            let named = named.trim_start_matches('.');
            // Either the field itself is named, or all of what it is in.
            let names = |warning: &String| {
                let path = warning.split(": ").next().unwrap_or_default();
                named == path || named.starts_with(&format!("{path}."))
            };
            assert!(warnings.iter().any(names), "{name}: {named} in {warnings:#?}");
        }
    }
}

#[test]
fn what_cannot_be_converted_is_refused_by_its_field() {
    let refused = |manifest: Value| -> InvalidField { convert(&manifest).expect_err("refused") };
    let of = |kind: &str, spec: Value| json!({"apiVersion": "kubeflow.org/v1", "kind": kind, "spec": spec});
    assert_eq!(refused(json!({"apiVersion": "batch/v1", "kind": "Job"})).field, "kind");
    assert_eq!(refused(of("XGBoostJob", json!({}))).field, "kind");
    assert_eq!(refused(json!([])).what, "is no object");
    let bad = of("TFJob", json!({"tfReplicaSpecs": {"Worker": {"replicas": "many"}}}));
    assert_eq!(refused(bad).field, "spec.tfReplicaSpecs.Worker.replicas");
    let bad = of("TFJob", json!({"tfReplicaSpecs": {"Worker": {"template": {"spec": {"containers": 1}}}}}));
    assert_eq!(refused(bad).field, "spec.tfReplicaSpecs.Worker.template.spec");
    let bad = of("PyTorchJob", json!({"elasticPolicy": {}, "pytorchReplicaSpecs": {}}));
    assert_eq!(refused(bad).field, "spec.elasticPolicy");
}

#[test]
fn a_job_that_would_be_refused_says_so() {
    let manifest = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "n".repeat(50)},
        "spec": {"tfReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [{"name": "tensorflow"}]}}}}}
    });
    let warnings = convert(&manifest).expect("converted").warnings;
    assert!(warnings.iter().any(|warning| warning.contains("metadata.name")), "{warnings:?}");
}
