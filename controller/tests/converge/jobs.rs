//! Training jobs: from their objects to pods that run and end.

mod at_any_instant;
mod data;
pub(super) mod elsewhere;
mod gangs;
mod invalid;
mod killed;
mod kueue;
mod life;
mod losses;
mod metrics;
mod moved;
mod native;
mod queued_pods;
mod queues;
mod refusals;
mod rules;
mod shortages;
mod sweeps;

use std::time::Duration;

use serde_json::{Value, json};

use super::World;
use super::api::{Api, serve_jobs, serve_kueue};

/// Built-in types.
const TYPES: [&str; 5] = [
    include_str!("../../../deploy/components/jobs/types/single.yaml"),
    include_str!("../../../deploy/components/jobs/types/pytorch.yaml"),
    include_str!("../../../deploy/components/jobs/types/pytorch-elastic.yaml"),
    include_str!("../../../deploy/components/jobs/types/mpi.yaml"),
    include_str!("../../../deploy/components/jobs/types/notebook.yaml"),
];

/// Serves the kinds of training jobs, and installs the types.
pub(super) fn install(api: &Api) {
    serve_jobs(api, true);
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

/// A job whose workers have one GPU each.
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

fn condition(api: &Api, name: &str, kind: &str) -> (String, String) {
    let job = api.get("trainingjobs", "team-a", name).unwrap_or_default();
    let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

fn waiting_for(api: &Api, name: &str) -> String {
    let job = api.get("trainingjobs", "team-a", name).unwrap_or_default();
    job["status"]["waitingFor"].as_str().unwrap_or_default().to_owned()
}

fn nodes_of(api: &Api, name: &str) -> Vec<String> {
    let is_of = |pod: &&Value| pod["metadata"]["labels"]["larder.dev/job"] == name;
    let node = |pod: &Value| pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    api.list("pods").iter().filter(is_of).map(node).collect()
}

fn pods(api: &Api) -> Vec<String> {
    let is_of_job = |pod: &Value| !pod["metadata"]["labels"]["larder.dev/job"].is_null();
    api.list("pods")
        .iter()
        .filter(|pod| is_of_job(pod))
        .map(|pod| pod["metadata"]["name"].as_str().unwrap().into())
        .collect()
}

/// The queue against which a pod counts, according to its labels.
fn queue_of_pod(pod: &Value) -> Option<String> {
    let labels = &pod["metadata"]["labels"];
    let queue = labels["larder.dev/job-queue"].as_str().or(labels["larder.dev/queue"].as_str())?;
    Some(queue.to_owned())
}

/// Removes the owners of the objects in `team-a`, as the garbage collector does before an orphaning deletion.
fn disown(api: &Api, plurals: &[&str]) {
    for plural in plurals {
        for object in api.list(plural).iter().filter(|object| object["metadata"]["namespace"] == "team-a") {
            let name = object["metadata"]["name"].as_str().unwrap();
            api.change(plural, "team-a", name, |object| {
                object["metadata"].as_object_mut().unwrap().remove("ownerReferences");
            });
        }
    }
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
    assert_eq!(condition(&world.api, "train", "Complete"), ("True".into(), "Succeeded".into()));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.api.writes().len(), before + writes.len(), "nothing is written at rest");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_has_not_ended_has_no_condition_about_its_end() {
    let mut world = World::with_jobs(2);
    let mut idle = job("idle", "single", &[("worker", 1)]);
    idle["spec"]["suspend"] = true.into();
    world.api.put("trainingjobs", idle);
    world.start();
    world.until("it is suspended", |api| phase(api, "idle") == "Suspended").await;
    assert_eq!(condition(&world.api, "idle", "Placed").0, "False");
    for kind in ["Complete", "Failed"] {
        assert_eq!(condition(&world.api, "idle", kind), (String::new(), String::new()), "{kind}");
    }
}

// SEMANTICS: J10
#[tokio::test(start_paused = true)]
async fn without_definitions_or_rights_nothing_is_missed_and_both_may_come_later() {
    let mut world = World::new(2);
    let settings = json!({"metadata": {"name": "larder"}, "spec": {"endpoints": ["http://one:9000"]}});
    world.api.put("lardersettings", settings);
    world.start();
    world.rest().await;
    let writes = world.api.writes();
    assert!(!writes.iter().any(|write| write.contains("lardersettings")), "{writes:#?}");
    install(&world.api);
    world.api.put("trainingjobs", job("train", "single", &[("worker", 1)]));
    world.until("it succeeds", |api| phase(api, "train") == "Succeeded").await;
    world.rest().await;
    let settings = world.api.get("lardersettings", "", "larder").unwrap();
    let types = ["mpi", "notebook", "pytorch", "pytorch-elastic", "single"];
    assert_eq!(settings["status"]["jobTypes"], json!(types));
    assert_eq!(settings["spec"], json!({"endpoints": ["http://one:9000"]}), "the administrator's part is as it was");
    let single = world.api.get("jobtypes", "", "single").unwrap();
    assert_eq!(single["status"]["conditions"][0]["status"], "True");
}

// SEMANTICS: J10
#[tokio::test(start_paused = true)]
async fn a_job_of_another_controller_is_left_alone() {
    let mut world = World::with_jobs(2);
    serve_kueue(&world.api, true);
    let mut managed = job("managed", "single", &[("worker", 1)]);
    managed["spec"]["managedBy"] = "example.org/other".into();
    managed["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "team"});
    managed["status"] = json!({"phase": "Running", "waitingFor": "as the other controller says"});
    world.api.put("trainingjobs", managed);
    let before = world.api.list("trainingjobs");
    world.start();
    world.rest().await;
    assert_eq!(pods(&world.api), [""; 0]);
    assert!(world.api.list("workloads").is_empty());
    assert_eq!(world.api.list("trainingjobs"), before);
}
