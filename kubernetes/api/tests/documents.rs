//! Larder accepts the manifests in `docs/kubernetes`.

use std::path::{Path, PathBuf};

use larder_api::{CacheQuota, Cluster, Dataset, Queue, TrainingJob};
use serde::Deserialize;
use serde_json::Value;

/// The pages whose manifests are checked.
fn pages() -> Vec<PathBuf> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pages = std::fs::read_dir(docs.join("kubernetes")).expect("a folder").map(|page| page.expect("a page").path());
    pages.chain([docs.join("DEVICES.md")]).collect()
}

/// The YAML blocks of a page: the text in code fences with the language `yaml`, which may be indented in a list.
fn blocks(text: &str) -> Vec<String> {
    let mut lines = text.lines();
    let mut blocks = Vec::new();
    while let Some(fence) = lines.find(|line| line.trim_start() == "```yaml") {
        let indent = fence.len() - fence.trim_start().len();
        let block = lines.by_ref().take_while(|line| line.trim_start() != "```");
        blocks.push(block.map(|line| line.get(indent..).unwrap_or("")).collect::<Vec<_>>().join("\n"));
    }
    blocks
}

#[test]
fn the_manifests_in_the_documents_are_accepted() {
    let (mut datasets, mut quotas, mut jobs, mut queues, mut all) = (0, 0, 0, 0, 0);
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        for block in blocks(&text) {
            for document in serde_yaml_ng::Deserializer::from_str(&block) {
                let object =
                    Value::deserialize(document).unwrap_or_else(|why| panic!("{}: {why}\n{block}", page.display()));
                all += 1;
                // A namespace moves all objects of an overlay, those of teams among them.
                let is_overlay = object["resources"].is_array();
                assert!(
                    !is_overlay || object["namespace"].is_null(),
                    "{}: an overlay with a namespace",
                    page.display()
                );
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
                    Some("CacheQuota") => {
                        let quota: CacheQuota = typed(&object, &place);
                        quota.spec.check().unwrap_or_else(|why| panic!("{place}: {why}"));
                        quotas += 1;
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
                    Some("Cluster") => {
                        let cluster: Cluster = typed(&object, &place);
                        let is_here = object["metadata"]["name"] == "here";
                        assert!(
                            cluster.spec.kubeconfig.is_none() == is_here,
                            "{place}: a kubeconfig, unless it is here"
                        );
                    }
                    other => panic!("{place}: {other:?} is not checked"),
                }
            }
        }
    }
    let found = format!("{datasets} {quotas} {jobs} {queues} {all}");
    assert!(datasets >= 1 && quotas >= 1 && jobs >= 1 && queues >= 2 && all > 20, "{found}");
}

/// Parses the object as its type, and checks that the type has every field of the spec.
fn typed<T: serde::de::DeserializeOwned + serde::Serialize>(object: &Value, place: &str) -> T {
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|why| panic!("{place}: {why}"));
    let known = serde_json::to_value(&typed).expect("JSON");
    let names = |object: &Value| object["spec"].as_object().expect("a spec").keys().cloned().collect::<Vec<_>>();
    for name in names(object) {
        assert!(names(&known).contains(&name), "{place}: the field {name} is unknown");
    }
    typed
}
