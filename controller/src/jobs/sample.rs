//! Sample jobs of built-in types, for tests.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use larder_api::training_job::checked::CheckedJob;
use larder_api::{JobType, TrainingJob, job_type::checked::CheckedType};
use serde_json::{Value, json};

use super::machine::{RoleTerms, Terms};
use super::render::{Facts, Place, Rendered, Renderer, validate_as};

/// The job `train` of `team-a`.
pub(super) struct Sample {
    pub(super) job: CheckedJob,
    pub(super) kind: CheckedType,
    /// One pod per role, without a place.
    pub(super) pods: Vec<Pod>,
    pub(super) uid: String,
}

impl Sample {
    /// A job of a built-in type. `fields` are fields of its spec.
    pub(super) fn of(kind: &str, mut fields: Value) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/components/jobs/types");
        let text = std::fs::read_to_string(folder.join(format!("{kind}.yaml"))).expect("a type");
        let checked: JobType = serde_yaml_ng::from_str(&text).expect("a JobType");
        let checked = validate_as(kind, &checked.spec).expect("valid");
        fields["type"] = kind.into();
        let job: TrainingJob = serde_json::from_value(json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "train", "namespace": "team-a"}, "spec": fields,
        }))
        .expect("of the schema's form");
        let job = job.check().expect("valid");
        job.fit(&checked).expect("of its type");
        let mut sample = Self { job, kind: checked, pods: Vec::new(), uid: "11ce-d00d".to_owned() };
        let facts = Facts::default();
        let renderer = Renderer::new(sample.rendered(), &facts);
        let pod = |role: &str| renderer.pod(role, 0, 0, &Place::default()).expect("a pod");
        let pods: Vec<Pod> = sample.job.roles.iter().map(|role| pod(&role.name)).collect();
        sample.pods = pods;
        sample
    }

    pub(super) fn rendered(&self) -> Rendered<'_> {
        Rendered { namespace: "team-a", name: "train", uid: &self.uid, job: &self.job, kind: &self.kind }
    }

    pub(super) fn terms(&self) -> Terms {
        let role = |role: &larder_api::training_job::checked::CheckedRole| RoleTerms {
            name: role.name.clone(),
            min: role.min,
            ..RoleTerms::default()
        };
        Terms { roles: self.job.roles.iter().map(role).collect(), ..Terms::default() }
    }
}

/// A role with its name, `replicas` and `min`.
pub(super) fn role(name: &str, replicas: u32, min: u32) -> Value {
    let limits = json!({"cpu": 8, "memory": "64Gi", "nvidia.com/gpu": 1});
    let container = json!({"name": "main", "image": "registry.example.org/train", "resources": {"limits": limits}});
    json!({"name": name, "replicas": replicas, "min": min, "template": {"spec": {"containers": [container]}}})
}

/// Compares a value with the golden file `name`. With `LARDER_WRITE_GOLDEN=1`, writes the file instead.
pub(super) fn golden(name: &str, value: &impl serde::Serialize) {
    let text = serde_yaml_ng::to_string(value).expect("YAML");
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/jobs").join(name);
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        std::fs::write(&file, &text).expect("written");
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(kept == text, "tests/golden/jobs/{name} differs: run this test with LARDER_WRITE_GOLDEN=1.\n{text}");
}
