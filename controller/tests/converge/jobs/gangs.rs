//! Jobs of several pods.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::World;
use super::super::api::Api;
use super::super::kubelet::set_fates;
use super::{condition, job, phase, pods, waiting_for};

#[tokio::test(start_paused = true)]
async fn a_gang_of_two_roles_has_a_service_and_is_done_with_its_master() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    world.api.put("trainingjobs", job("train", "pytorch", &[("master", 1), ("worker", 3)]));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    let names = ["train-master-0-1", "train-worker-0-1", "train-worker-1-1", "train-worker-2-1"];
    assert_eq!(pods(&world.api), names);
    let service = world.api.get("services", "team-a", "train").unwrap();
    let uid = world.api.get("trainingjobs", "team-a", "train").unwrap()["metadata"]["uid"].clone();
    assert_eq!(service["metadata"]["ownerReferences"][0]["uid"], uid);
    assert_eq!(condition(&world.api, "train", "Placed"), ("True".into(), "Bound".into()));
    let roles = world.api.get("trainingjobs", "team-a", "train").unwrap()["status"]["roles"].clone();
    assert_eq!(roles[1], json!({"name": "worker", "desired": 3, "active": 3, "ready": 3, "done": 0}));
    set_fates(&world.api, &[("train-master", "succeeded"), ("train-worker", "running")]);
    world.until("it is done", |api| phase(api, "train") == "Succeeded").await;
    world.rest().await;
    assert_eq!(pods(&world.api), ["train-master-0-1"], "its workers do not go on");
}

#[tokio::test(start_paused = true)]
async fn a_gang_that_no_cluster_of_this_size_has_room_for_waits_and_says_so() {
    let mut world = World::with_jobs(2);
    world.api.put("trainingjobs", job("large", "pytorch", &[("worker", 9)]));
    world.api.put("trainingjobs", job("small", "single", &[("worker", 1)]));
    world.start();
    world.until("the small one is done", |api| phase(api, "small") == "Succeeded").await;
    world.until("the large one says so", |api| condition(api, "large", "Placed").1 == "LargerThanTheCluster").await;
    assert!(waiting_for(&world.api, "large").contains("9 pods of role worker"), "{}", waiting_for(&world.api, "large"));
    assert!(!pods(&world.api).iter().any(|pod| pod.starts_with("large")));
}

/// The scheduler preempts pods on the node for it. A job's pod that was started in their place would have to be
/// preempted, too.
// SEMANTICS: X5
#[tokio::test(start_paused = true)]
async fn room_that_the_scheduler_makes_for_a_pod_is_not_taken() {
    let mut world = World::with_jobs(1);
    let urgent = |status: Value| {
        let container = json!({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "4"}}});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "b", "name": "urgent"},
            "spec": {"containers": [container]}, "status": status})
    };
    world.api.put("pods", urgent(json!({"phase": "Pending", "nominatedNodeName": "n1"})));
    world.api.put("trainingjobs", job("train", "single", &[("worker", 1)]));
    world.start();
    world.rest().await;
    assert_eq!((phase(&world.api, "train"), pods(&world.api)), ("Queued".into(), vec![]));
    world.api.put("pods", urgent(json!({"phase": "Pending"})));
    world.until("it has the room", |api| phase(api, "train") == "Succeeded").await;
}

#[tokio::test(start_paused = true)]
async fn a_gang_whose_pods_are_not_bound_is_planned_again_and_then_gives_its_room_back() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("stuck-worker-1", "pending"), ("stuck", "running")]);
    world.start();
    world.api.put("trainingjobs", job("stuck", "pytorch", &[("worker", 2)]));
    world.until("a pod is bound", |api| pods(api).len() == 2).await;
    world.until("it is planned again", |api| pods(api).contains(&"stuck-worker-1-2".to_owned())).await;
    world.until("it gives up for now", |api| phase(api, "stuck") == "Queued" && pods(api).is_empty()).await;
    set_fates(&world.api, &[("stuck", "succeeded")]);
    world.until("it is tried again", |api| phase(api, "stuck") == "Succeeded").await;
}

// SEMANTICS: J2
#[tokio::test(start_paused = true)]
async fn no_pod_is_made_before_the_one_that_it_replaces_was_told_to_end() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train-worker-1-1", "pending"), ("train", "running")]);
    world.api.deny("DELETE team-a/pods/train-worker-1-1", 500);
    world.start();
    world.api.put("trainingjobs", job("train", "single", &[("worker", 2)]));
    world.until("its pods are made", |api| pods(api).len() == 2).await;
    let deletions = |api: &Api| api.writes().iter().filter(|write| write.contains("DELETE pods")).count();
    world.until("one is late", |api| deletions(api) > 0).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(pods(&world.api), ["train-worker-0-1", "train-worker-1-1"], "it may run at this moment");
    world.api.allow();
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(pods(&world.api).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_gang_of_which_a_pod_is_refused_is_as_long_partly_bound_as_any_other_and_obeys() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("stuck", "running")]);
    world.api.deny("POST team-a/pods/stuck-worker-1", 403);
    world.start();
    let mut stuck = job("stuck", "pytorch", &[("worker", 3)]);
    stuck["spec"]["gang"] = json!({"timeout": "2m"});
    world.api.put("trainingjobs", stuck);
    world.until("the others are bound", |api| pods(api).len() == 2).await;
    tokio::time::sleep(Duration::from_secs(110)).await;
    assert_eq!(pods(&world.api), ["stuck-worker-0-1", "stuck-worker-2-1"], "it is not late yet");
    // The refused pod is planned a second time, and gets as much time again.
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(pods(&world.api), ["stuck-worker-0-1", "stuck-worker-2-1"], "it is not late a second time yet");
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(pods(&world.api).is_empty(), "{:?}", pods(&world.api));
    assert_eq!(phase(&world.api, "stuck"), "Queued");

    world.until("it is tried again", |api| pods(api).len() == 2).await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    world.api.change("trainingjobs", "team-a", "stuck", |job| job["spec"]["suspend"] = true.into());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(pods(&world.api).is_empty(), "although it was refused a moment ago");
    world.api.allow();
}

pub(super) fn files_of(api: &Api, job: &str) -> Vec<Value> {
    let is_of = |map: &Value| map["metadata"]["ownerReferences"][0]["name"] == job;
    api.list("configmaps").into_iter().filter(is_of).collect()
}

// SEMANTICS: J8
#[tokio::test(start_paused = true)]
async fn a_launcher_has_files_and_a_key_that_nothing_reads() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("mpi", "running")]);
    world.start();
    world.api.put("trainingjobs", job("mpi", "mpi", &[("launcher", 1), ("worker", 2)]));
    world.until("it runs", |api| phase(api, "mpi") == "Running").await;
    world.rest().await;
    let secret = world.api.list("secrets").remove(0);
    assert_eq!(secret["immutable"], true);
    let key = secret["data"]["key"].as_str().unwrap();
    assert!(key.len() > 64 && !world.api.list("trainingjobs")[0].to_string().contains(key));
    let made = world.api.writes().iter().filter(|write| write.contains("secrets")).count();
    let files = files_of(&world.api, "mpi").remove(0);
    assert!(files.to_string().contains("mpi-worker-1.mpi.team-a.svc"), "{files}");
    assert_eq!(made, 1);
    // The next controller does not need the key.
    world.kill();
    world.start();
    world.rest().await;
    assert_eq!(world.api.list("secrets"), [secret]);
    world.api.delete("trainingjobs", "team-a", "mpi");
    world.until("all of it goes", |api| pods(api).is_empty() && api.list("secrets").is_empty()).await;
    world.rest().await;
    assert!(world.api.list("services").is_empty() && files_of(&world.api, "mpi").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_config_map_of_somebody_else_is_not_touched() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("mpi", "running")]);
    world
        .api
        .put("configmaps", json!({"metadata": {"namespace": "team-a", "name": "mpi-files"}, "data": {"own": "1"}}));
    let before = world.api.get("configmaps", "team-a", "mpi-files");
    world.start();
    world.api.put("trainingjobs", job("mpi", "mpi", &[("launcher", 1), ("worker", 2)]));
    world.until("it runs", |api| phase(api, "mpi") == "Running").await;
    assert_eq!(world.api.get("configmaps", "team-a", "mpi-files"), before);
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_large_job_are_made_a_part_at_a_time() {
    let mut world = World::with_jobs(3);
    set_fates(&world.api, &[("large", "running")]);
    for node in ["n1", "n2", "n3"] {
        world.api.change("nodes", "", node, |node| node["status"]["allocatable"]["memory"] = "1Ti".into());
    }
    world.api.deny("POST team-a/pods/large-worker-0-1", 403);
    world.start();
    let mut large = job("large", "single", &[("worker", 260)]);
    large["spec"]["roles"][0]["template"]["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "10m"}});
    world.api.put("trainingjobs", large);
    world.until("most are made", |api| pods(api).len() >= 255).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(pods(&world.api).len(), 255);
    world.api.allow();
    world.until("it runs", |api| phase(api, "large") == "Running").await;
    assert_eq!(pods(&world.api).len(), 260);
}
