//! Kubeflow manifests, and the TrainingJobs and warnings that they are converted to. With `LARDER_WRITE_GOLDEN=1` the
//! converted files are written instead of compared.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use larder_api::InvalidField;
use larder_api::convert::{Converted, convert};
use larder_api::training_job::KeepPods;
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
    // Fields with free-form content, which is kept unchanged.
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
            // A warning names either the field itself, or an object that contains it.
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
    assert_eq!(refused(json!([])).what, "is not an object");
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
        "apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "n".repeat(70)},
        "spec": {"tfReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [{"name": "tensorflow"}]}}}}}
    });
    let warnings = convert(&manifest).expect("converted").warnings;
    assert!(warnings.iter().any(|warning| warning.contains("metadata.name")), "{warnings:?}");
}

/// The conversion of the restart policies of a kind's roles, and of its backoffLimit.
#[test]
fn what_started_pods_again_is_kept_or_named() {
    fn of(version: &str, kind: &str, roles: &[(&str, &str, Option<&str>)], limit: Option<u32>) -> Converted {
        let mut specs = json!({});
        for (name, container, policy) in roles {
            specs[name] = json!({"restartPolicy": policy, "template": {"spec": {"containers": [{"name": container}]}}});
        }
        let field = format!("{}ReplicaSpecs", kind.trim_end_matches("Job").to_lowercase());
        let manifest = json!({
            "apiVersion": format!("kubeflow.org/{version}"), "kind": kind, "metadata": {"name": "a"},
            "spec": {"runPolicy": {"backoffLimit": limit}, field: specs},
        });
        convert(&manifest).expect("converted")
    }
    let tf =
        |ps, worker, limit| of("v1", "TFJob", &[("PS", "tensorflow", ps), ("Worker", "tensorflow", worker)], limit);
    let torch = |worker, limit| of("v1", "PyTorchJob", &[("Worker", "pytorch", worker)], limit);
    let mpi =
        |version, launcher, limit| of(version, "MPIJob", &[("Launcher", "c", launcher), ("Worker", "c", None)], limit);
    let never = Some("Never");
    let on_failure = Some("OnFailure");
    let limit = "spec.runPolicy.backoffLimit: ";
    for (converted, crashes, warned) in [
        (tf(None, None, None), Some(0), None),
        (tf(never, None, None), Some(0), None),
        (tf(never, on_failure, Some(2)), Some(2), None),
        (tf(on_failure, None, Some(2)), Some(2), None),
        (tf(never, never, Some(2)), Some(0), Some(limit)),
        (tf(on_failure, on_failure, None), None, Some(limit)),
        (tf(on_failure, on_failure, Some(2)), Some(2), None),
        (torch(None, None), None, Some(limit)),
        (torch(None, Some(0)), Some(0), None),
        (torch(never, None), Some(0), None),
        (mpi("v1", None, None), Some(0), None),
        (mpi("v2beta1", never, None), Some(6), None),
        (mpi("v2beta1", None, Some(1)), Some(1), None),
    ] {
        let Converted { job, warnings } = converted;
        assert_eq!(job.spec.restart.max_crashes, crashes, "{warnings:?}");
        let found: Vec<_> = warnings.iter().map(String::as_str).collect();
        match (warned, &found[..]) {
            (None, []) => {}
            (Some(words), [warning]) => assert!(warning.starts_with(words), "{warning}"),
            _ => panic!("{warned:?}: {found:?}"),
        }
    }
    let rules = |converted: Converted| serde_json::to_value(converted.job.spec.restart.rules).expect("JSON");
    assert_eq!(rules(tf(on_failure, on_failure, Some(2))), json!([]));
    assert_eq!(rules(tf(never, on_failure, Some(2))), json!([{"roles": ["ps"], "action": "fail"}]));
    let of_worker = json!([{"roles": ["worker"], "exitCodes": "1-127", "action": "fail"}]);
    assert_eq!(rules(tf(on_failure, Some("ExitCode"), Some(2))), of_worker);
}

fn mpi_job(launcher: &Value, worker: &Value) -> Converted {
    let role = |container: &Value| json!({"template": {"spec": {"containers": [container]}}});
    let manifest = json!({
        "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "a"},
        "spec": {"mpiReplicaSpecs": {"Launcher": role(launcher), "Worker": role(worker)}},
    });
    convert(&manifest).expect("converted")
}

/// Such a command would replace the agent's command, and the launcher would wait forever.
#[test]
fn no_command_of_an_mpi_worker_stays_and_each_is_named() {
    for (fields, words) in [
        (json!({"command": ["/usr/sbin/sshd"], "args": ["-De"]}), "its command, sshd, is left out"),
        (json!({"command": ["sh", "-c", "exec /usr/sbin/sshd -De"]}), "its command, sshd, is left out"),
        (json!({"command": ["sh", "-c", "setup && /usr/sbin/sshd -De"]}), "`sh -c setup && /usr/sbin/sshd -De`"),
        (json!({"command": ["sleep", "infinity"]}), "`sleep infinity`"),
        (json!({"args": ["serve-me"]}), "`serve-me`"),
    ] {
        let mut worker = json!({"name": "c", "image": "i"});
        worker.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let Converted { job, warnings } = mpi_job(&json!({"name": "c"}), &worker);
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.starts_with("spec.mpiReplicaSpecs.Worker: ") && warning.contains(words), "{warning}");
        let container = &job.spec.roles[1].template.spec.as_ref().expect("a spec").containers[0];
        assert_eq!((&container.command, &container.args), (&None, &None));
    }
    assert_eq!(mpi_job(&json!({"name": "c"}), &json!({"name": "c"})).warnings, [""; 0]);
}

#[test]
fn horovodrun_is_told_where_its_ssh_is() {
    let of = |command: &str| mpi_job(&json!({"name": "c", "command": ["sh", "-c", command]}), &json!({"name": "c"}));
    let Converted { job, warnings } = of("horovodrun -np 2 python train.py");
    assert_eq!(job.spec.type_, "horovod");
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(
        warning.starts_with("spec.mpiReplicaSpecs.Launcher: ")
            && warning.contains("PATH=/larder:$PATH exec horovodrun"),
        "{warning}"
    );
    assert_eq!(of("PATH=/larder:$PATH exec horovodrun -np 2 python train.py").warnings, [""; 0]);
    assert_eq!(of("mpirun python train.py").warnings, [""; 0]);
}

#[test]
fn the_pods_that_stay_are_kept_or_named() {
    let of = |first: Option<&str>, policy: Option<&str>| {
        let role = json!({"template": {"spec": {"containers": [{"name": "c"}]}}});
        let manifest = json!({
            "apiVersion": "kubeflow.org/v1", "kind": "MPIJob", "metadata": {"name": "a"},
            "spec": {
                "cleanPodPolicy": first, "runPolicy": {"cleanPodPolicy": policy},
                "mpiReplicaSpecs": {"Launcher": role, "Worker": role},
            },
        });
        let Converted { job, warnings } = convert(&manifest).expect("converted");
        (
            job.spec.keep_pods,
            warnings.into_iter().map(|warning| warning.split(": ").next().unwrap().to_owned()).collect(),
        )
    };
    let named = |path: &str| vec![path.to_owned()];
    let (first, policy) = ("spec.cleanPodPolicy", "spec.runPolicy.cleanPodPolicy");
    assert_eq!(of(Some("All"), None), (Some(KeepPods::None), vec![]));
    assert_eq!(of(None, Some("None")), (Some(KeepPods::All), vec![]));
    assert_eq!(of(Some("Some"), None), (None, named(first)));
    assert_eq!(of(None, Some("Some")), (None, named(policy)));
    assert_eq!(of(Some("All"), Some("None")), (Some(KeepPods::All), named(first)));
    assert_eq!(of(Some("All"), Some("All")), (Some(KeepPods::None), vec![]));
}
