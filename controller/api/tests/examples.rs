//! Larder accepts the examples of `deploy/example`.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::api::apps::v1::Deployment;
use larder_controller_api::names::{DATASETS_ANNOTATION, DatasetKey, FOLLOW_ANNOTATION};
use larder_controller_api::rights::{self, Endpoints};
use larder_controller_api::{Dataset, checked};
use serde::Deserialize;
use serde_json::Value;

fn objects(folder: &Path) -> Vec<Value> {
    let kustomization: Value = read(&folder.join("kustomization.yaml")).remove(0);
    let named = kustomization["resources"].as_array().expect("resources").clone();
    named.iter().flat_map(|file| read(&folder.join(file.as_str().expect("a file")))).collect()
}

fn read(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
        .collect()
}

#[test]
fn the_examples_of_datasets_are_accepted_and_fit_together() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/example/dataset");
    let objects = objects(&folder);
    let of = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).cloned().collect::<Vec<_>>();
    let place = |object: &Value| {
        let text =
            |key: &str| object["metadata"][key].as_str().unwrap_or_else(|| panic!("no {key}: {object}")).to_owned();
        (text("namespace"), text("name"))
    };
    let secrets: BTreeSet<_> = of("Secret").iter().map(place).collect();
    let mut datasets = BTreeSet::new();
    for object in of("Dataset") {
        let (namespace, name) = place(&object);
        let dataset = serde_json::from_value::<Dataset>(object.clone()).expect("a Dataset");
        assert_eq!(serde_json::to_value(&dataset.spec).expect("JSON"), object["spec"], "a field of {name} is unknown");
        let checked: checked::CheckedSpec = dataset.spec.check().unwrap_or_else(|error| panic!("{name}: {error}"));
        let key = DatasetKey::new(&namespace, &name);
        rights::check(&key, &dataset.spec, &Endpoints::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let secret = (namespace.clone(), checked.secret.expect("a Secret"));
        assert!(secrets.contains(&secret), "{name} names {secret:?}");
        datasets.insert((namespace, name));
    }
    let (mut mounted, mut followed) = (BTreeSet::new(), BTreeSet::new());
    for object in of("Deployment") {
        let (namespace, name) = place(&object);
        let deployment: Deployment = serde_json::from_value(object).expect("a Deployment");
        let follows = deployment.metadata.annotations.unwrap_or_default().get(FOLLOW_ANNOTATION).cloned();
        followed.extend(follows.map(|follows| (namespace.clone(), follows)));
        let template = deployment.spec.template;
        let steered = template.metadata.unwrap_or_default().annotations.unwrap_or_default();
        for volume in template.spec.expect("a pod").volumes.unwrap_or_default() {
            let claim = volume.persistent_volume_claim.expect("a claim").claim_name;
            assert_eq!(steered.get(DATASETS_ANNOTATION), Some(&claim), "{name} is steered to its data");
            mounted.insert((namespace.clone(), claim));
        }
    }
    assert_eq!(mounted, datasets, "each Dataset has a pod, and each pod its Dataset");
    assert!(!followed.is_empty() && followed.is_subset(&datasets), "{followed:?}");
}
