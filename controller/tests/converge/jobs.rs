//! Training jobs: from their objects to pods that run and end.

use serde_json::{Value, json};

use super::World;
use super::api::Api;
use super::kubelet::set_fates;

/// Types that come with Larder.
const TYPES: [&str; 3] = [
    include_str!("../../../deploy/components/jobs/types/single.yaml"),
    include_str!("../../../deploy/components/jobs/types/pytorch.yaml"),
    include_str!("../../../deploy/components/jobs/types/pytorch-elastic.yaml"),
];

/// Serves the kinds of training jobs, with types.
pub(super) fn install(api: &Api) {
    api.serve_jobs(true);
    for text in TYPES {
        let value: Value = serde_yaml_ng::from_str(text).unwrap();
        api.put("jobtypes", value);
    }
}

impl World {
    fn with_jobs(nodes: usize) -> Self {
        let world = Self::new(nodes);
        install(&world.api);
        world
    }
}

/// A job of workers with one GPU each.
fn job(name: &str, kind: &str, roles: &[(&str, u32)]) -> Value {
    let role = |(role, replicas): &(&str, u32)| {
        json!({"name": role, "replicas": replicas, "template": {"spec": {"containers": [
            {"name": "main", "image": "image", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}}]}}})
    };
    let roles: Vec<Value> = roles.iter().map(role).collect();
    json!({
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"namespace": "team-a", "name": name},
        "spec": {"type": kind, "roles": roles},
    })
}

fn phase(api: &Api, name: &str) -> String {
    let job = api.get("trainingjobs", "team-a", name).unwrap_or_default();
    job["status"]["phase"].as_str().unwrap_or_default().to_owned()
}

fn pods(api: &Api) -> Vec<String> {
    let is_of_job = |pod: &Value| !pod["metadata"]["labels"]["larder.dev/job"].is_null();
    api.list("pods")
        .iter()
        .filter(|pod| is_of_job(pod))
        .map(|pod| pod["metadata"]["name"].as_str().unwrap().into())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_job_of_one_pod_takes_four_writes_and_one_for_the_pod() {
    let mut world = World::with_jobs(2);
    world.start();
    world.rest().await;
    let before = world.api.writes().len();
    world.api.put("trainingjobs", job("train", "single", &[("worker", 1)]));
    world.until("it succeeds", |api| phase(api, "train") == "Succeeded").await;
    world.rest().await;
    let writes = world.api.writes().split_off(before);
    assert!(writes.len() <= 5, "{writes:#?}");
    assert_eq!(pods(&world.api), ["train-worker-0-1"], "kept for its log");
    let _ = set_fates;
}
