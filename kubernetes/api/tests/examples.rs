//! Larder accepts the examples of `deploy/example`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::Deployment;
use larder_api::names::{DATASETS_ANNOTATION, DatasetKey, FOLLOW_ANNOTATION};
use larder_api::rights::{self, Endpoints};
use larder_api::{Dataset, JobType, Queue, TrainingJob, checked};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A folder of the repository.
fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)
}

fn read(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
        .collect()
}

fn of(objects: &[Value], kind: &str) -> Vec<Value> {
    objects.iter().filter(|object| object["kind"] == kind).cloned().collect()
}

/// Namespace and name; the namespace of a cluster-wide object is empty.
fn place(object: &Value) -> (String, String) {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// Parses the object as its type, and checks that the type has every field of the spec.
fn typed<T: DeserializeOwned + Serialize>(object: &Value) -> T {
    let name = place(object).1;
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let known = serde_json::to_value(&typed).expect("JSON");
    assert_eq!(fields(&known["spec"]), fields(&object["spec"]), "a field of {name} is unknown");
    typed
}

/// The paths of all fields. Amounts may be written as numbers or as strings.
fn fields(value: &Value) -> BTreeSet<String> {
    let below = |(at, value): (String, &Value)| -> BTreeSet<String> {
        let below = fields(value).into_iter().map(|field| format!("{at}.{field}"));
        below.chain([at.clone()]).collect()
    };
    match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), value)).flat_map(below).collect(),
        Value::Array(items) => {
            items.iter().enumerate().map(|(at, value)| (at.to_string(), value)).flat_map(below).collect()
        }
        _ => BTreeSet::new(),
    }
}

/// Returns the Datasets of an example. Checks that they are valid and read with the Secret that the documents create.
fn datasets(objects: &[Value]) -> BTreeSet<(String, String)> {
    let check = |object: &Value| {
        let (namespace, name) = place(object);
        let dataset: Dataset = typed(object);
        let checked: checked::CheckedSpec = dataset.spec.check().unwrap_or_else(|error| panic!("{name}: {error}"));
        let key = DatasetKey::new(&namespace, &name);
        rights::check(&key, &dataset.spec, &Endpoints::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(checked.secret.as_deref(), Some("bucket-reader"), "{name}");
        (namespace, name)
    };
    of(objects, "Dataset").iter().map(check).collect()
}

#[test]
fn the_examples_of_datasets_are_accepted_and_fit_together() {
    let objects = [read(&folder("example/notebook.yaml")), read(&folder("example/model-server.yaml"))].concat();
    let datasets = datasets(&objects);
    let (mut mounted, mut followed) = (BTreeSet::new(), BTreeSet::new());
    for object in of(&objects, "Deployment") {
        let (namespace, name) = place(&object);
        let deployment: Deployment = serde_json::from_value(object).expect("a Deployment");
        let follows = deployment.metadata.annotations.unwrap_or_default().get(FOLLOW_ANNOTATION).cloned();
        followed.extend(follows.map(|follows| (namespace.clone(), follows)));
        let template = deployment.spec.template;
        let steered = template.metadata.unwrap_or_default().annotations.unwrap_or_default();
        let volumes = template.spec.expect("a pod").volumes.unwrap_or_default();
        for claim in volumes.into_iter().filter_map(|volume| volume.persistent_volume_claim) {
            let claim = claim.claim_name;
            assert_eq!(steered.get(DATASETS_ANNOTATION), Some(&claim), "{name} is steered to its data");
            mounted.insert((namespace.clone(), claim));
        }
    }
    assert_eq!(mounted, datasets, "each Dataset has a pod, and each pod its Dataset");
    assert!(!followed.is_empty() && followed.is_subset(&datasets), "{followed:?}");
}

#[test]
fn the_example_of_a_job_is_accepted_and_fits_together() {
    let objects = read(&folder("example/job.yaml"));
    let datasets = datasets(&objects);
    let queues: Vec<Queue> = of(&objects, "Queue").iter().map(typed).collect();
    let jobs = of(&objects, "TrainingJob");
    let mut read = BTreeSet::new();
    for object in &jobs {
        let (namespace, name) = place(object);
        let job = typed::<TrainingJob>(object).check().unwrap_or_else(|error| panic!("{name}: {error}"));
        let of_type: JobType =
            serde_json::from_value(self::read(&folder(&format!("components/jobs/types/{}.yaml", job.kind))).remove(0))
                .expect("a JobType");
        let kind = of_type.spec.check().expect("a type that is valid");
        job.fit(&kind).unwrap_or_else(|error| panic!("{name}: {error}"));
        let queue = queues.iter().find(|queue| queue.metadata.name.as_deref() == job.queue()).expect("a queue of ours");
        assert!(queue.spec.check().expect("a queue that is valid").is_granted(&namespace), "{name} may use its queue");
        read.extend(job.datasets.iter().map(|mount| (mount.dataset.namespace.clone(), mount.dataset.name.clone())));
    }
    assert_eq!(read, datasets, "each Dataset is read, and each that is read is there");
    assert!(!jobs.is_empty());
}
