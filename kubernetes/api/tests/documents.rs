//! Larder accepts the manifests in `docs/kubernetes`.

use std::path::{Path, PathBuf};

use larder_api::{Dataset, Queue, TrainingJob};
use serde::Deserialize;
use serde_json::Value;

/// The pages whose manifests are checked.
fn pages() -> Vec<PathBuf> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pages = std::fs::read_dir(docs.join("kubernetes")).expect("a folder").map(|page| page.expect("a page").path());
    pages.chain([docs.join("DEVICES.md")]).collect()
}

/// The YAML of a page: what stands between lines that begin with three backticks, of which the first says `yaml`.
fn blocks(text: &str) -> Vec<&str> {
    text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

#[test]
fn the_manifests_in_the_documents_are_accepted() {
    let (mut datasets, mut jobs, mut queues, mut all) = (0, 0, 0, 0);
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for block in blocks(&text) {
            for document in serde_yaml_ng::Deserializer::from_str(block) {
                let object =
                    Value::deserialize(document).unwrap_or_else(|why| panic!("{}: {why}\n{block}", page.display()));
                all += 1;
                if object["apiVersion"] != "larder.dev/v1alpha1" {
                    continue;
                }
                let place = format!("{}: {}", page.display(), object["metadata"]["name"]);
                match object["kind"].as_str() {
                    Some("Dataset") => {
                        let dataset: Dataset = typed(&object, &place);
                        dataset.spec.check().unwrap_or_else(|why| panic!("{place}: {why}"));
                        datasets += 1;
                    }
                    Some("TrainingJob") => {
                        let job: TrainingJob = typed(&object, &place);
                        job.check().unwrap_or_else(|why| panic!("{place}: {why}"));
                        jobs += 1;
                    }
                    Some("Queue") => {
                        let queue: Queue = typed(&object, &place);
                        queue.spec.check().unwrap_or_else(|why| panic!("{place}: {why}"));
                        queues += 1;
                    }
                    other => panic!("{place}: {other:?} is not checked"),
                }
            }
        }
    }
    assert!(datasets >= 1 && jobs >= 1 && queues >= 2 && all > 20, "{datasets} {jobs} {queues} {all}");
}

/// The object as its type, which knows every field of its spec.
fn typed<T: serde::de::DeserializeOwned + serde::Serialize>(object: &Value, place: &str) -> T {
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|why| panic!("{place}: {why}"));
    let known = serde_json::to_value(&typed).expect("JSON");
    let names = |object: &Value| object["spec"].as_object().expect("a spec").keys().cloned().collect::<Vec<_>>();
    for name in names(object) {
        assert!(names(&known).contains(&name), "{place}: the field {name} is unknown");
    }
    typed
}
