//! Pods of other programs in queues, and what is wrong with queues and their flavors.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::World;
use super::super::api::Api;
use super::super::kubelet::set_fates;
use super::queues::{classes, priority, queue, queued};
use super::{condition, phase, waiting_for};

/// A pod with one GPU that waits in a queue, and has a gate of another program.
fn server(name: &str, queue: &str) -> Value {
    let container = json!({"name": "main", "image": "image", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "team-a", "name": name, "labels": {"larder.dev/queue": queue}},
        "spec": {"containers": [container], "schedulingGates": [{"name": "larder.dev/queue"}, {"name": "test/gate"}]},
    })
}

fn pod(api: &Api, name: &str) -> Option<Value> {
    api.get("pods", "team-a", name)
}

/// True if the queue does not hold the pod any more.
fn is_released(api: &Api, name: &str) -> bool {
    pod(api, name).is_some_and(|pod| pod["spec"]["schedulingGates"] == json!([{"name": "test/gate"}]))
}

fn bind(api: &Api, name: &str) {
    api.change("pods", "team-a", name, |pod| {
        pod["spec"]["nodeName"] = "n1".into();
        pod["status"] = json!({"phase": "Running"});
    });
}

fn used(api: &Api, queue: &str) -> Value {
    api.get("queues", "", queue).unwrap()["status"]["usage"]["nvidia.com/gpu"]["used"].clone()
}

/// The status and the reason of a queue's condition.
fn active(api: &Api, queue: &str) -> (String, String) {
    let queue = api.get("queues", "", queue).unwrap_or_default();
    let condition = &queue["status"]["conditions"][0];
    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

// SEMANTICS: J26
#[tokio::test(start_paused = true)]
async fn pods_of_other_programs_wait_for_quota_and_count_with_jobs_until_they_are_gone() {
    let mut world = World::with_jobs(1);
    world.api.put("queues", queue("red", 2));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    world.api.put("pods", server("first", "red"));
    world.until("it is released", |api| is_released(api, "first")).await;
    bind(&world.api, "first");
    world.api.put("trainingjobs", queued("train", "red", 2));
    world.rest().await;
    for controller in 1..3 {
        world.rest().await;
        assert_eq!((phase(&world.api, "train"), used(&world.api, "red")), ("Queued".into(), "1".into()));
        assert!(waiting_for(&world.api, "train").contains("uses 1 of 2 GPUs"), "controller {controller}");
        world.kill();
        world.start();
    }
    world.api.delete("pods", "team-a", "first");
    world.until("the job has its quota", |api| phase(api, "train") == "Running").await;
    // Now the queue is full.
    world.api.put("pods", server("second", "red"));
    world.api.put("pods", server("elsewhere", "none"));
    world.rest().await;
    assert!(!is_released(&world.api, "second") && !is_released(&world.api, "elsewhere"));
    world.api.delete("trainingjobs", "team-a", "train");
    world.until("it has its turn", |api| is_released(api, "second")).await;
    world.rest().await;
    let writes = world.api.writes().len();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.api.writes().len(), writes, "nothing is written at rest");
}

// SEMANTICS: J26
#[tokio::test(start_paused = true)]
async fn a_pod_that_waited_long_counts_on_a_node_that_is_not_known_yet() {
    let mut world = World::with_jobs(1);
    world.api.put("queues", queue("red", 1));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    world.api.put("pods", server("first", "red"));
    world.until("it is released", |api| is_released(api, "first")).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let bound = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": world.api.now()});
    world.api.change("pods", "team-a", "first", |pod| {
        pod["spec"]["nodeName"] = "new".into();
        pod["status"] = json!({"phase": "Running", "conditions": [bound]});
    });
    world.api.put("trainingjobs", queued("train", "red", 1));
    world.until("its quota is used", |api| waiting_for(api, "train").contains("queue red uses 1 of 1")).await;
    // The node never becomes known.
    world.until("the pod is lost with its node", |api| phase(api, "train") == "Running").await;
}

// SEMANTICS: J26
#[tokio::test(start_paused = true)]
async fn a_pod_whose_devices_no_queue_can_count_stays_held_and_delays_no_other() {
    let mut world = World::with_jobs(1);
    world.api.put("queues", queue("red", 2));
    world.start();
    let mut claims = server("claims", "red");
    claims["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "gpu"}]);
    world.api.put("pods", claims);
    world.api.put("pods", server("good", "red"));
    world.until("the other is released", |api| is_released(api, "good")).await;
    world.rest().await;
    assert!(!is_released(&world.api, "claims"));
}

// SEMANTICS: J26
#[tokio::test(start_paused = true)]
async fn a_job_with_a_higher_priority_ends_a_pod_of_its_queue_and_takes_its_room() {
    let mut world = World::with_jobs(1);
    classes(&world.api);
    world.api.put("queues", queue("red", 2));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    world.api.put("pods", server("low", "red"));
    let mut high = server("high", "red");
    high["spec"]["priority"] = 5_000.into();
    world.api.put("pods", high);
    world.until("both are released", |api| is_released(api, "low") && is_released(api, "high")).await;
    bind(&world.api, "low");
    bind(&world.api, "high");
    world.api.put("trainingjobs", priority(queued("train", "red", 1), "production"));
    world.until("the job runs", |api| phase(api, "train") == "Running").await;
    assert!(pod(&world.api, "low").is_none() && pod(&world.api, "high").is_some());
}

// SEMANTICS: J7, J27
#[tokio::test(start_paused = true)]
async fn queues_that_are_above_themselves_or_lack_a_flavor_say_so_and_others_go_on() {
    let mut world = World::with_jobs(1);
    world.api.change("nodes", "", "n1", |node| node["metadata"]["labels"]["gpu"] = "h100".into());
    let flavor = json!({"name": "h100", "nodeLabels": {"gpu": "h100"}});
    world.api.put("lardersettings", json!({"metadata": {"name": "larder"}, "spec": {"flavors": [flavor]}}));
    let with = |name: &str, fields: Value| {
        let mut queue = queue(name, 4);
        queue["spec"].as_object_mut().unwrap().remove("cohort");
        queue["spec"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        queue
    };
    let of = |name: &str| json!({"name": name, "quota": {"nvidia.com/gpu": {"nominal": 2}}});
    world.api.put("queues", with("a", json!({"parent": "b"})));
    world.api.put("queues", with("b", json!({"parent": "a"})));
    world.api.put("queues", with("orphan", json!({"parent": "none"})));
    world.api.put("queues", with("mixed", json!({"flavors": [of("gone"), of("h100")]})));
    world.api.put("queues", with("gone", json!({"flavors": [of("gone")]})));
    set_fates(&world.api, &[("", "running")]);
    world.start();
    for name in ["a", "orphan", "mixed", "gone"] {
        world.api.put("trainingjobs", queued(&format!("of-{name}"), name, 1));
    }
    let begun = tokio::time::Instant::now();
    let reasons = [
        ("a", "False", "ParentCycle"),
        ("b", "False", "ParentCycle"),
        ("orphan", "True", "ParentMissing"),
        ("mixed", "True", "FlavorMissing"),
        ("gone", "False", "FlavorMissing"),
    ];
    for (name, status, reason) in reasons {
        world.until(reason, |api| active(api, name) == (status.to_owned(), reason.to_owned())).await;
    }
    assert!(begun.elapsed() <= Duration::from_secs(5), "{:?}", begun.elapsed());
    world
        .until("the others run", |api| phase(api, "of-orphan") == "Running" && phase(api, "of-mixed") == "Running")
        .await;
    world.rest().await;
    let why = waiting_for(&world.api, "of-a");
    assert!(why.contains("a is below b, b is below a (spec.parent)"), "{why}");
    let why = waiting_for(&world.api, "of-gone");
    assert!(why.contains("can have none of the flavors of queue gone (gone)"), "{why}");
    let pods = world.api.list("pods");
    let of_mixed = pods.iter().find(|pod| pod["metadata"]["labels"]["larder.dev/job"] == "of-mixed").unwrap();
    assert_eq!(of_mixed["spec"]["nodeSelector"], json!({"gpu": "h100"}));
    assert_eq!(of_mixed["metadata"]["labels"]["larder.dev/job-flavor"], "h100");
    let status = world.api.get("queues", "", "mixed").unwrap()["status"].clone();
    assert_eq!(status["flavors"]["h100"]["nvidia.com/gpu"]["used"], "1", "{status:#}");
    // Jobs of a queue that is removed go on, and say that they count nowhere.
    world.api.delete("queues", "", "mixed");
    let says_so = |api: &Api| condition(api, "of-mixed", "QuotaReserved") == ("True".into(), "NoQueue".into());
    world.until("the job says so", says_so).await;
    assert_eq!(phase(&world.api, "of-mixed"), "Running");
    // Once the cycle is resolved, its jobs start.
    world.api.change("queues", "", "b", |queue| {
        queue["spec"].as_object_mut().unwrap().remove("parent");
    });
    world.until("it starts", |api| phase(api, "of-a") == "Running").await;
}

// SEMANTICS: J27
#[tokio::test(start_paused = true)]
async fn the_priorities_of_a_queue_and_not_those_of_pods_decide_about_its_jobs() {
    let mut world = World::with_jobs(1);
    classes(&world.api);
    let mut red = queue("red", 1);
    red["spec"]["priorities"] = json!({"urgent": 5, "idle": -5});
    world.api.put("queues", red);
    set_fates(&world.api, &[("", "running")]);
    world.start();
    let named = |name: &str, priority: &str| {
        let mut job = queued(name, "red", 1);
        job["spec"]["priority"] = priority.into();
        job
    };
    world.api.put("trainingjobs", priority(queued("first", "red", 1), "production"));
    world.until("it runs", |api| phase(api, "first") == "Running").await;
    world.api.put("trainingjobs", named("urgent", "urgent"));
    world.until("the urgent job runs", |api| phase(api, "urgent") == "Running").await;
    assert_eq!(phase(&world.api, "first"), "Queued", "the class of its pods does not matter");
    world.api.put("trainingjobs", named("other", "high"));
    let is_refused = |api: &Api| condition(api, "other", "Valid") == ("False".into(), "InvalidSpec".into());
    world.until("it is refused", is_refused).await;
    let why = waiting_for(&world.api, "other");
    assert_eq!(why, "spec.priority: the queue red has no priority high, and only idle, urgent");
}
