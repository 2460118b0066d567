//! Jobs in queues.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::World;
use super::super::api::Api;
use super::super::kubelet::set_fates;
use super::{condition, disown, job, phase, pods, waiting_for};

pub(super) fn queue(name: &str, gpus: u32) -> Value {
    json!({
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"namespaces": ["team-a"], "cohort": "all", "quota": {"nvidia.com/gpu": {"nominal": gpus}}},
    })
}

pub(super) fn queued(name: &str, queue: &str, workers: u32) -> Value {
    let mut job = job(name, "pytorch-elastic", &[("worker", workers)]);
    job["spec"]["queue"] = queue.into();
    job
}

pub(super) fn priority(mut job: Value, class: &str) -> Value {
    job["spec"]["roles"][0]["template"]["spec"]["priorityClassName"] = class.into();
    job
}

pub(super) fn classes(api: &Api) {
    let class = |name: &str, value: u32| json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value});
    api.put("priorityclasses", class("production", 1000));
    api.put("priorityclasses", class("experiment", 10));
}

// SEMANTICS: J13
#[tokio::test(start_paused = true)]
async fn a_job_of_a_queue_takes_the_room_of_one_without_a_queue_whatever_their_priorities() {
    let mut world = World::with_jobs(1);
    classes(&world.api);
    world.api.put("queues", queue("red", 4));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    world.api.put("trainingjobs", priority(job("free", "single", &[("worker", 4)]), "production"));
    world.until("it runs", |api| phase(api, "free") == "Running").await;
    world.api.put("trainingjobs", priority(queued("train", "red", 4), "experiment"));
    world.until("the job of the queue runs", |api| phase(api, "train") == "Running").await;
    world.rest().await;
    assert_eq!((phase(&world.api, "free"), pods(&world.api).len()), ("Queued".into(), 4));
}

#[tokio::test(start_paused = true)]
async fn a_job_says_why_it_waits_although_the_controllers_clock_is_behind() {
    let mut world = World::with_jobs(1);
    world.api.put("queues", queue("red", 1));
    // Only the API server's clock counts the simulated time before the controller's start.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    world.start();
    world.api.put("trainingjobs", queued("train", "red", 2));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let waits = waiting_for(&world.api, "train");
    assert!(waits.contains("queue red can never use more than 1"), "{waits}");
}

#[tokio::test(start_paused = true)]
async fn two_queues_lend_each_other_quota_and_say_what_is_used() {
    let mut world = World::with_jobs(2);
    world.api.put("queues", queue("red", 4));
    world.api.put("queues", queue("blue", 4));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    world.api.put("trainingjobs", queued("first", "red", 6));
    world.until("it borrows", |api| phase(api, "first") == "Running").await;
    world.api.put("trainingjobs", queued("second", "red", 4));
    world.until("there is no more", |api| condition(api, "second", "QuotaReserved").1 == "QuotaUsed").await;
    assert!(
        waiting_for(&world.api, "second").contains("queue red uses 6 GPUs, 2 of them borrowed"),
        "{}",
        waiting_for(&world.api, "second")
    );
    world.rest().await;
    let status = world.api.get("queues", "", "red").unwrap()["status"].clone();
    assert_eq!((&status["running"], &status["waiting"]), (&1.into(), &1.into()));
    assert_eq!(status["usage"]["nvidia.com/gpu"], json!({"used": "6", "borrowed": "2"}));
    assert_eq!(status["shown"], "nvidia.com/gpu 6/4");
    set_fates(&world.api, &[("first", "succeeded"), ("second", "running")]);
    world.until("the next one starts", |api| phase(api, "second") == "Running").await;
}

// SEMANTICS: J4
#[tokio::test(start_paused = true)]
async fn a_production_job_takes_the_surplus_of_an_experiment_which_grows_back() {
    let mut world = World::with_jobs(2);
    classes(&world.api);
    world.api.put("queues", queue("all", 8));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    let mut experiment = priority(queued("experiment", "all", 8), "experiment");
    experiment["spec"]["roles"][0]["min"] = 2.into();
    world.api.put("trainingjobs", experiment);
    world.until("it runs", |api| phase(api, "experiment") == "Running").await;
    world.api.put("trainingjobs", priority(queued("production", "all", 4), "production"));
    world.until("both run", |api| phase(api, "production") == "Running" && phase(api, "experiment") == "Running").await;
    let left: Vec<String> = pods(&world.api).into_iter().filter(|pod| pod.starts_with("experiment")).collect();
    let expected: Vec<String> = (0..4).map(|index| format!("experiment-worker-{index}-1")).collect();
    assert_eq!(left, expected, "the highest indexes went");
    set_fates(&world.api, &[("production", "succeeded"), ("experiment", "running")]);
    world
        .until("it has all again", |api| {
            pods(api).iter().filter(|pod| pod.starts_with("experiment")).count() == 8
                && phase(api, "experiment") == "Running"
        })
        .await;
}

// SEMANTICS: J4
#[tokio::test(start_paused = true)]
async fn a_job_that_is_preempted_as_a_whole_waits_and_starts_again() {
    let mut world = World::with_jobs(2);
    classes(&world.api);
    world.api.put("queues", queue("all", 8));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    world.api.put("trainingjobs", priority(queued("experiment", "all", 6), "experiment"));
    world.until("it runs", |api| phase(api, "experiment") == "Running").await;
    world.api.put("trainingjobs", priority(queued("production", "all", 4), "production"));
    world.until("the other runs", |api| phase(api, "production") == "Running").await;
    assert_eq!(phase(&world.api, "experiment"), "Queued");
    let status = world.api.get("trainingjobs", "team-a", "experiment").unwrap()["status"].clone();
    assert_eq!(status["restarts"]["preempted"], 1);
    assert!(world.api.list("events").iter().any(|event| event["reason"] == "PodPreempted"));
    world.kill();
    world.start();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(phase(&world.api, "experiment"), "Queued");
    set_fates(&world.api, &[("production", "succeeded"), ("experiment", "running")]);
    world.until("it runs again", |api| phase(api, "experiment") == "Running").await;
    assert!(pods(&world.api).contains(&"experiment-worker-0-2".to_owned()));
}

// SEMANTICS: J15
#[tokio::test(start_paused = true)]
async fn room_that_a_stranger_takes_costs_the_next_job_only_after_a_pause() {
    let mut world = World::with_jobs(2);
    classes(&world.api);
    world.api.put("queues", queue("all", 64));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    for name in ["first", "second"] {
        world.api.put("trainingjobs", priority(queued(name, "all", 4), "experiment"));
        world.until("it runs", |api| phase(api, name) == "Running").await;
    }
    let keep = |finalizers: &[&str]| {
        for name in pods(&world.api).iter().filter(|name| name.starts_with("second")) {
            world.api.change("pods", "team-a", name, |pod| pod["metadata"]["finalizers"] = json!(finalizers));
        }
    };
    keep(&["test/kubelet"]);
    world.api.put("trainingjobs", priority(queued("production", "all", 4), "production"));
    world.until("room is being made", |api| waiting_for(api, "production").contains("still terminating")).await;
    let container = json!({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "4"}}});
    world.api.put(
        "pods",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "b", "name": "stranger"},
            "spec": {"nodeName": "n2", "containers": [container]}, "status": {"phase": "Running"}}),
    );
    keep(&[]);
    let began = tokio::time::Instant::now();
    world.until("the other one ends, too", |api| phase(api, "first") == "Queued").await;
    assert!((58..=65).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    world.until("it was not in vain", |api| phase(api, "production") == "Running").await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_a_deleted_job_leaves_behind_use_quota_until_they_are_deleted() {
    leaves_pods_behind(|api| api.delete("trainingjobs", "team-a", "first")).await;
}

// SEMANTICS: J3
#[tokio::test(start_paused = true)]
async fn pods_that_a_suspended_job_leaves_behind_use_quota_until_they_are_deleted() {
    leaves_pods_behind(|api| {
        api.change("trainingjobs", "team-a", "first", |job| job["spec"]["suspend"] = true.into());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_a_finished_job_leaves_behind_use_quota_until_they_are_deleted() {
    leaves_pods_behind(|api| set_fates(api, &[("first-master", "succeeded"), ("", "running")])).await;
}

// SEMANTICS: J3
#[tokio::test(start_paused = true)]
async fn pods_that_a_job_deleted_without_them_leaves_behind_use_quota_and_are_deleted() {
    leaves_pods_behind(|api| {
        disown(api, &["pods"]);
        api.delete("trainingjobs", "team-a", "first");
    })
    .await;
}

// SEMANTICS: J2
#[tokio::test(start_paused = true)]
async fn pods_that_lose_their_owner_stay_the_jobs_and_use_its_quota() {
    let mut world = World::with_jobs(2);
    world.api.put("queues", queue("red", 2));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    world.api.put("trainingjobs", queued("first", "red", 2));
    world.until("it runs", |api| phase(api, "first") == "Running").await;
    disown(&world.api, &["pods"]);
    world.api.put("trainingjobs", queued("second", "red", 1));
    for controller in 1..3 {
        world.rest().await;
        assert_eq!(pods(&world.api), ["first-worker-0-1", "first-worker-1-1"], "controller {controller}");
        let phases = ["first", "second"].map(|name| phase(&world.api, name));
        assert_eq!(phases, ["Running", "Queued"], "controller {controller}");
        world.kill();
        world.start();
    }
    world.api.delete("trainingjobs", "team-a", "first");
    world.until("the next one runs", |api| phase(api, "second") == "Running").await;
}

// SEMANTICS: J3
#[tokio::test(start_paused = true)]
async fn pods_that_somebody_makes_in_the_name_of_an_ended_job_stop_no_other() {
    let mut world = World::with_jobs(2);
    world.api.put("queues", queue("red", 4));
    set_fates(&world.api, &[("first-worker-0", "succeeded"), ("", "running")]);
    world.start();
    let mut first = job("first", "single", &[("worker", 1)]);
    (first["spec"]["queue"], first["spec"]["keepPods"]) = ("red".into(), "all".into());
    world.api.put("trainingjobs", first);
    world.until("it is done", |api| phase(api, "first") == "Succeeded").await;
    world.api.put("trainingjobs", queued("second", "red", 2));
    world.until("another one runs", |api| phase(api, "second") == "Running").await;
    let uid = world.api.get("trainingjobs", "team-a", "first").unwrap()["metadata"]["uid"].clone();
    for name in ["junk", "first-worker-7-1"] {
        let owner = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "first", "uid": uid,
            "controller": true});
        let container = json!({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1000000"}}});
        world.api.put(
            "pods",
            json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n1", "containers": [container]},
                "metadata": {"namespace": "team-a", "name": name, "labels": {"larder.dev/job": "first"},
                    "ownerReferences": [owner]}}),
        );
    }
    for controller in 1..3 {
        world.rest().await;
        assert_eq!(phase(&world.api, "second"), "Running", "controller {controller}");
        let status = world.api.get("queues", "", "red").unwrap()["status"].clone();
        // The controller cannot rule out that one of them belongs to the job, so it counts as much as a pod of the job.
        assert_eq!(status["usage"]["nvidia.com/gpu"]["used"], "3", "controller {controller}");
        world.kill();
        world.start();
    }
    let status = world.api.get("trainingjobs", "team-a", "second").unwrap()["status"].clone();
    assert!(status["restarts"].is_null(), "{status:#}");
}

/// The job `first` ends while three of its pods cannot terminate, and another job needs the whole queue.
async fn leaves_pods_behind(end: impl FnOnce(&Api)) {
    let mut world = World::with_jobs(4);
    world.api.put("queues", queue("red", 4));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    let mut first = job("first", "pytorch", &[("master", 1), ("worker", 3)]);
    first["spec"]["queue"] = "red".into();
    world.api.put("trainingjobs", first);
    world.until("it runs", |api| phase(api, "first") == "Running").await;
    let api = world.api.clone();
    let keep = |finalizers: &[&str]| {
        for name in ["first-worker-0-1", "first-worker-1-1", "first-worker-2-1"] {
            api.change("pods", "team-a", name, |pod| pod["metadata"]["finalizers"] = json!(finalizers));
        }
    };
    keep(&["test/kubelet"]);
    world.api.put("trainingjobs", queued("second", "red", 4));
    end(&world.api);
    for controller in 1..3 {
        world.rest().await;
        assert_eq!(phase(&world.api, "second"), "Queued", "controller {controller}");
        let status = world.api.get("queues", "", "red").unwrap()["status"].clone();
        assert_eq!(status["usage"]["nvidia.com/gpu"]["used"], "3", "controller {controller}");
        world.kill();
        world.start();
    }
    keep(&[]);
    world.until("the next one runs", |api| phase(api, "second") == "Running").await;
}

#[tokio::test(start_paused = true)]
async fn the_number_of_pods_changes_while_they_run_only_where_pods_may_come_and_go() {
    let mut world = World::with_jobs(3);
    set_fates(&world.api, &[("", "running")]);
    world.start();
    world.api.put("trainingjobs", job("fixed", "pytorch", &[("worker", 2)]));
    world.api.put("trainingjobs", job("elastic", "pytorch-elastic", &[("worker", 4)]));
    world.until("both run", |api| phase(api, "fixed") == "Running" && phase(api, "elastic") == "Running").await;
    let ask = |name: &str, workers: u32| {
        let change = |job: &mut Value| job["spec"]["roles"][0]["replicas"] = workers.into();
        world.api.change("trainingjobs", "team-a", name, change);
    };
    let workers = |api: &Api, name: &str| pods(api).iter().filter(|pod| pod.starts_with(name)).count();
    ask("fixed", 4);
    ask("elastic", 2);
    world.until("one is smaller", |api| workers(api, "elastic") == 2 && phase(api, "elastic") == "Running").await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(workers(&world.api, "fixed"), 2, "its pods count each other when they start");
    ask("fixed", 1);
    ask("elastic", 3);
    world.until("one is larger", |api| workers(api, "elastic") == 3 && phase(api, "elastic") == "Running").await;
    assert_eq!(workers(&world.api, "fixed"), 2);
}

// SEMANTICS: J7
#[tokio::test(start_paused = true)]
async fn a_job_whose_namespace_has_used_up_its_quota_keeps_its_place_and_holds_nobody_up() {
    let mut world = World::with_jobs(2);
    world.api.put("queues", queue("red", 8));
    set_fates(&world.api, &[("", "running")]);
    let said = "pods \"first-worker-0-0\" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, \
                used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4";
    world.api.deny_saying("TRY team-a/pods/first", 403, said);
    world.start();
    world.api.put("trainingjobs", queued("first", "red", 6));
    world.until("it says so", |api| condition(api, "first", "QuotaReserved").1 == "ResourceQuotaUsed").await;
    assert_eq!(condition(&world.api, "first", "Valid"), ("True".into(), "Accepted".into()));
    let why = "a ResourceQuota of its namespace is used up: gpus, requested: requests.nvidia.com/gpu=1, used";
    assert!(waiting_for(&world.api, "first").starts_with(why), "{}", waiting_for(&world.api, "first"));
    world.api.put("trainingjobs", queued("second", "red", 7));
    world.until("another one passes it", |api| phase(api, "second") == "Running").await;
    for controller in 1..3 {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(phase(&world.api, "first"), "Queued", "controller {controller}");
        assert_eq!(world.api.get("queues", "", "red").unwrap()["status"]["waiting"], 1);
        assert_eq!(condition(&world.api, "first", "QuotaReserved").1, "ResourceQuotaUsed");
        world.kill();
        world.start();
    }
    world.api.allow();
    world.until("it waits for the queue", |api| condition(api, "first", "QuotaReserved").1 == "QuotaUsed").await;
    world.api.put("trainingjobs", queued("third", "red", 6));
    set_fates(&world.api, &[("second", "succeeded"), ("", "running")]);
    world.until("it is its turn", |api| phase(api, "first") == "Running").await;
    world.rest().await;
    assert!(!pods(&world.api).iter().any(|pod| pod.starts_with("third")), "it came later");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_refused_for_good_is_no_shortage_whatever_another_role_lacks() {
    let mut world = World::with_jobs(2);
    world.api.deny_saying("TRY team-a/pods/both-master", 403, "pods \"both\" is forbidden: exceeded quota: gpus");
    world.api.deny_saying("TRY team-a/pods/both-worker", 403, "violates PodSecurity");
    world.start();
    world.api.put("trainingjobs", job("both", "pytorch", &[("master", 1), ("worker", 1)]));
    world.until("it says so", |api| condition(api, "both", "Valid").1 == "PodRefused").await;
    assert_eq!(waiting_for(&world.api, "both"), "violates PodSecurity");
}
