//! Namespaces whose ResourceQuota has room for only some of a job's pods.

use serde_json::Value;

use super::super::World;
use super::super::api::Api;
use super::super::kubelet::set_fates;
use super::queues::{classes, priority, queue, queued};
use super::{condition, phase, pods, waiting_for};

const SAID: &str = "pods \"first-worker-2-1\" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, \
                    used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4";

/// Two pods of the job `first` are created, and the others are rejected.
async fn short() -> World {
    let mut world = World::with_jobs(2);
    world.api.put("queues", queue("red", 8));
    classes(&world.api);
    set_fates(&world.api, &[("", "running")]);
    for refused in ["POST team-a/pods/first-worker-2", "POST team-a/pods/first-worker-3"] {
        world.api.deny_saying(refused, 403, SAID);
    }
    world.start();
    world.api.put("trainingjobs", priority(queued("first", "red", 4), "production"));
    world.until("it says so", |api| is_short(api, "first")).await;
    world
}

fn is_short(api: &Api, name: &str) -> bool {
    condition(api, name, "QuotaReserved").1 == "ResourceQuotaUsed"
}

fn has_pods(api: &Api, name: &str) -> bool {
    pods(api).iter().any(|pod| pod.starts_with(name))
}

// SEMANTICS: J7
#[tokio::test(start_paused = true)]
async fn a_job_of_which_the_namespaces_quota_has_room_for_some_pods_keeps_none_of_them() {
    let mut world = short().await;
    let why = "a ResourceQuota of its namespace is used up: gpus, requested: requests.nvidia.com/gpu=1, used";
    assert!(waiting_for(&world.api, "first").starts_with(why), "{}", waiting_for(&world.api, "first"));
    assert_eq!(condition(&world.api, "first", "Valid"), ("True".into(), "Accepted".into()));
    world.until("its pods are gone", |api| !has_pods(api, "first")).await;
    // While it waits, a job with the same pods gets no dry run of its own, and a job with other pods overtakes both.
    world.api.put("trainingjobs", priority(queued("alike", "red", 4), "production"));
    world.until("it waits, too", |api| is_short(api, "alike")).await;
    world.api.put("trainingjobs", queued("other", "red", 3));
    world.until("another one runs", |api| phase(api, "other") == "Running").await;
    assert!(is_short(&world.api, "alike") && !has_pods(&world.api, "alike"));
    for controller in 1..3 {
        world.rest().await;
        assert_eq!(phase(&world.api, "first"), "Queued", "controller {controller}");
        assert_eq!(phase(&world.api, "other"), "Running", "controller {controller}");
        world.kill();
        world.start();
    }
    world.api.allow();
    world.until("there is quota", |api| phase(api, "first") == "Running").await;
}

// SEMANTICS: J4
#[tokio::test(start_paused = true)]
async fn nobody_ends_for_a_job_of_which_the_namespaces_quota_has_no_room_for_all_pods() {
    let world = short().await;
    world.api.put("trainingjobs", priority(queued("low", "red", 8), "experiment"));
    world.until("another one runs", |api| phase(api, "low") == "Running").await;
    world.api.put("trainingjobs", priority(queued("alike", "red", 4), "production"));
    world.until("it waits for quota", |api| is_short(api, "alike")).await;
    assert_eq!(phase(&world.api, "low"), "Running");
    let low = world.api.get("trainingjobs", "team-a", "low").unwrap();
    assert!([Value::Null, 0.into()].contains(&low["status"]["restarts"]["preempted"]), "{low}");
}
