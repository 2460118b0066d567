//! Pods that are lost.

use std::time::Duration;

use serde_json::json;

use super::super::World;
use super::super::cluster::node;
use super::super::kubelet::set_fates;
use super::{condition, job, nodes_of, phase, pods};

// SEMANTICS: J5
#[tokio::test(start_paused = true)]
async fn the_pod_of_a_lost_node_is_replaced_elsewhere_while_it_is_still_there() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    world.api.put("trainingjobs", job("train", "pytorch-elastic", &[("worker", 2)]));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(nodes_of(&world.api, "train"), ["n1", "n1"]);
    // The kubelet no longer runs, so no pod there ever terminates.
    for name in ["train-worker-0-1", "train-worker-1-1"] {
        world.api.change("pods", "team-a", name, |pod| pod["metadata"]["finalizers"] = json!(["test/kubelet"]));
    }
    let now = world.api.now();
    world.api.change("nodes", "", "n1", |node| {
        node["status"]["conditions"][0] = json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": now});
    });
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(pods(&world.api).len(), 2, "it may come back");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let elsewhere = nodes_of(&world.api, "train").iter().filter(|node| *node == "n2").count();
    assert_eq!((phase(&world.api, "train").as_str(), elsewhere), ("Running", 2), "70 s after the node was not ready");
    let old = world.api.get("pods", "team-a", "train-worker-0-1").unwrap();
    assert!(old["metadata"]["labels"]["larder.dev/job-serving"].is_null(), "no name leads to a dead node");
    let status = world.api.get("trainingjobs", "team-a", "train").unwrap()["status"].clone();
    assert_eq!((&status["restarts"]["nodeLost"], &status["restarts"]["crashed"]), (&2.into(), &0.into()));
}

/// Sets the condition Ready of nodes.
pub(super) fn set_ready(api: &super::Api, nodes: &[&str], status: &str) {
    let now = api.now();
    for name in nodes {
        api.change("nodes", "", name, |node| {
            node["status"]["conditions"][0] = json!({"type": "Ready", "status": status, "lastTransitionTime": now});
        });
    }
}

// SEMANTICS: J5
#[tokio::test(start_paused = true)]
async fn an_outage_of_the_api_for_all_nodes_costs_no_pod() {
    let mut world = World::with_jobs(6);
    set_fates(&world.api, &[("", "running")]);
    world.start();
    let names: Vec<String> = (0..6).map(|nth| format!("train-{nth}")).collect();
    for name in &names {
        let mut train = job(name, "pytorch", &[("worker", 4)]);
        if name == "train-0" {
            train["spec"]["restart"] = json!({"nodeLostAfter": "1s"});
        }
        world.api.put("trainingjobs", train);
    }
    world.until("all run", |api| names.iter().all(|name| phase(api, name) == "Running")).await;
    let before = pods(&world.api);
    let all = ["n1", "n2", "n3", "n4", "n5", "n6"];
    // They become unknown, and later ready, one after the other. The controller is replaced meanwhile.
    for nodes in all.chunks(2) {
        set_ready(&world.api, nodes, "Unknown");
    }
    tokio::time::sleep(Duration::from_secs(300)).await;
    world.kill();
    world.start();
    tokio::time::sleep(Duration::from_secs(300)).await;
    for nodes in all.chunks(1) {
        set_ready(&world.api, nodes, "True");
        tokio::time::sleep(Duration::from_secs(9)).await;
    }
    world.rest().await;
    assert_eq!(pods(&world.api), before);
    assert!(names.iter().all(|name| phase(&world.api, name) == "Running"));
    // Afterwards a node that is lost is lost.
    set_ready(&world.api, &["n1"], "Unknown");
    let is_lost = |api: &super::Api| {
        let jobs = api.list("trainingjobs");
        jobs.iter().any(|job| job["status"]["restarts"]["nodeLost"].as_u64().unwrap_or(0) > 0)
    };
    world.until("its pods are lost", is_lost).await;
}

// SEMANTICS: J5
#[tokio::test(start_paused = true)]
async fn a_job_that_must_run_once_waits_for_a_node_until_it_is_gone_or_out_of_service() {
    for certain in ["deleted", "out of service"] {
        let mut world = World::with_jobs(3);
        set_fates(&world.api, &[("", "running")]);
        world.start();
        let mut once = job("once", "pytorch-elastic", &[("worker", 2)]);
        once["spec"]["restart"] = json!({"atMostOnce": true});
        let mut late = job("late", "pytorch-elastic", &[("worker", 2)]);
        late["spec"]["restart"] = json!({"nodeLostAfter": "1h"});
        world.api.put("trainingjobs", once);
        world.api.put("trainingjobs", late);
        world.until("both run", |api| ["once", "late"].iter().all(|name| phase(api, name) == "Running")).await;
        let node = nodes_of(&world.api, "once").remove(0);
        assert_eq!(nodes_of(&world.api, "late"), vec![node.clone(); 2], "{certain}: they share a node");
        let before = pods(&world.api);
        set_ready(&world.api, &[node.as_str()], "Unknown");
        tokio::time::sleep(Duration::from_secs(3_500)).await;
        assert_eq!(pods(&world.api), before, "{certain}");
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert!(nodes_of(&world.api, "late").iter().any(|elsewhere| *elsewhere != node), "{certain}");
        tokio::time::sleep(Duration::from_secs(6 * 3_600)).await;
        assert_eq!(nodes_of(&world.api, "once"), vec![node.clone(); 2], "{certain}: it may still run");
        match certain {
            "deleted" => world.api.delete("nodes", "", &node),
            _ => world.api.change("nodes", "", &node, |node| {
                node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
            }),
        }
        let is_elsewhere = |api: &super::Api| nodes_of(api, "once").iter().any(|elsewhere| *elsewhere != node);
        world.until("it runs elsewhere", is_elsewhere).await;
    }
}

// SEMANTICS: J5
#[tokio::test(start_paused = true)]
async fn a_job_that_must_run_once_replaces_no_pod_that_is_stuck() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("", "running")]);
    world.start();
    let mut once = job("once", "pytorch-elastic", &[("worker", 2)]);
    once["spec"]["restart"] = json!({"atMostOnce": true});
    world.api.put("trainingjobs", once);
    world.until("it runs", |api| phase(api, "once") == "Running").await;
    let stuck = |finalizers: &[&str]| {
        world.api.change("pods", "team-a", "once-worker-1-1", |pod| pod["metadata"]["finalizers"] = json!(finalizers));
    };
    stuck(&["test/kubelet"]);
    world.api.delete("pods", "team-a", "once-worker-1-1");
    tokio::time::sleep(Duration::from_secs(6 * 3_600)).await;
    assert!(!pods(&world.api).iter().any(|pod| pod.starts_with("once-worker-1-2")), "{:?}", pods(&world.api));
    stuck(&[]);
    world.until("it runs again", |api| phase(api, "once") == "Running" && pods(api).len() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_heard_of_after_its_pod_is_not_lost() {
    let mut world = World::with_jobs(1);
    set_fates(&world.api, &[("train", "pending")]);
    world.start();
    let mut train = job("train", "single", &[("worker", 1)]);
    train["spec"]["gang"] = json!({"timeout": "10m"});
    world.api.put("trainingjobs", train);
    world.until("its pod is made", |api| pods(api).len() == 1).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    let now = world.api.now();
    world.api.change("pods", "team-a", "train-worker-0-1", |pod| {
        pod["spec"]["nodeName"] = "n9".into();
        let bound = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now});
        pod["status"] = json!({"phase": "Running", "conditions": [bound, {"type": "Ready", "status": "True"}]});
    });
    tokio::time::sleep(Duration::from_secs(50)).await;
    world.api.put("nodes", node("n9"));
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!((phase(&world.api, "train"), pods(&world.api)), ("Running".into(), vec!["train-worker-0-1".into()]));
    world.api.delete("nodes", "", "n9");
    let lost =
        |api: &super::Api| api.get("trainingjobs", "team-a", "train").unwrap()["status"]["restarts"]["nodeLost"] == 1;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(lost(&world.api), "a node that is gone is lost at once");
}

// SEMANTICS: J5
#[tokio::test(start_paused = true)]
async fn a_job_whose_pods_crash_too_often_fails() {
    let mut world = World::with_jobs(1);
    set_fates(&world.api, &[("train", "failed")]);
    world.start();
    let mut crashing = job("train", "single", &[("worker", 1)]);
    crashing["spec"]["restart"] = json!({"maxCrashes": 2});
    world.api.put("trainingjobs", crashing);
    world.until("it fails", |api| phase(api, "train") == "Failed").await;
    world.rest().await;
    assert_eq!(condition(&world.api, "train", "Failed"), ("True".into(), "CrashedTooOften".into()));
    assert_eq!(pods(&world.api), ["train-worker-0-1", "train-worker-0-2", "train-worker-0-3"], "kept for their logs");
    assert!(world.api.list("events").iter().any(|event| event["reason"] == "JobFailed"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_the_kubelet_does_not_take_has_not_crashed() {
    let mut world = World::with_jobs(1);
    set_fates(&world.api, &[("train-worker-0-1", "refused"), ("train", "running")]);
    world.start();
    let mut train = job("train", "single", &[("worker", 1)]);
    train["spec"]["restart"] = json!({"maxCrashes": 0});
    world.api.put("trainingjobs", train);
    world.until("another one runs", |api| phase(api, "train") == "Running").await;
    let status = world.api.get("trainingjobs", "team-a", "train").unwrap()["status"].clone();
    assert_eq!((&status["restarts"]["evicted"], &status["restarts"]["crashed"]), (&1.into(), &0.into()));
}

// SEMANTICS: J5
#[tokio::test(start_paused = true)]
async fn a_faulty_device_and_a_node_out_of_service_are_causes_of_their_own() {
    let mut world = World::with_jobs(3);
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    world.api.put("trainingjobs", job("train", "single", &[("worker", 1)]));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    let first = nodes_of(&world.api, "train").remove(0);
    world.api.change("nodes", "", &first, |node| {
        let fault = json!({"type": "larder.dev/DeviceFault", "status": "True"});
        node["status"]["conditions"].as_array_mut().unwrap().push(fault);
    });
    let restarts = |api: &super::Api| api.get("trainingjobs", "team-a", "train").unwrap()["status"]["restarts"].clone();
    world.until("it runs elsewhere", |api| restarts(api)["deviceFault"] == 1 && phase(api, "train") == "Running").await;
    world.rest().await;
    let second = nodes_of(&world.api, "train").remove(0);
    assert_ne!(first, second);
    world.api.change("nodes", "", &second, |node| {
        node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    });
    world.until("it runs on the third", |api| restarts(api)["nodeLost"] == 1 && phase(api, "train") == "Running").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_leaves_a_node_for_the_devices_that_it_holds_itself() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("", "running")]);
    world.start();
    let mut without = job("without", "single", &[("worker", 1)]);
    without["spec"]["roles"][0]["template"]["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "1"}});
    world.api.put("trainingjobs", without);
    for name in ["reported", "unreported"] {
        world.api.put("trainingjobs", job(name, "single", &[("worker", 1)]));
    }
    let names = ["reported", "unreported", "without"];
    world.until("all run", |api| names.iter().all(|name| phase(api, name) == "Running")).await;
    let report = |world: &World, resource: &str, health: &str| {
        let devices = json!([{"resourceID": "GPU-0", "health": "Healthy"}, {"resourceID": "GPU-1", "health": health}]);
        let reported = json!([{"name": "cpu"}, {"name": resource, "resources": devices}]);
        world.api.change("pods", "team-a", "reported-worker-0-1", |pod| {
            pod["status"]["containerStatuses"] =
                json!([{"name": "other"}, {"name": "main", "allocatedResourcesStatus": reported}]);
        });
    };
    report(&world, "nvidia.com/gpu", "Healthy");
    for node in ["n1", "n2"] {
        world.api.change("nodes", "", node, |node| {
            let fault = json!({"type": "larder.dev/DeviceFault", "status": "True"});
            node["status"]["conditions"].as_array_mut().unwrap().push(fault);
        });
    }
    let faults = |api: &super::Api, name: &str| {
        api.get("trainingjobs", "team-a", name).unwrap()["status"]["restarts"]["deviceFault"].as_u64().unwrap_or(0)
    };
    world.until("the kubelet reports nothing about one", |api| faults(api, "unreported") == 1).await;
    world.rest().await;
    for name in ["reported", "without"] {
        assert_eq!((phase(&world.api, name).as_str(), faults(&world.api, name)), ("Running", 0), "{name}");
    }
    // The condition of the node reports that it has no fault.
    for node in ["n1", "n2"] {
        world.api.change("nodes", "", node, |node| {
            for condition in node["status"]["conditions"].as_array_mut().unwrap() {
                if condition["type"] == "larder.dev/DeviceFault" {
                    condition["status"] = json!("False");
                }
            }
        });
    }
    report(&world, "larder.dev/gpu", "Unhealthy");
    world.rest().await;
    assert_eq!(faults(&world.api, "reported"), 0);
    // The condition does not cover devices of another vendor.
    report(&world, "nvidia.com/gpu", "Unhealthy");
    world.until("the kubelet reports one's device", |api| faults(api, "reported") == 1).await;
    world.rest().await;
    assert_eq!((phase(&world.api, "without").as_str(), faults(&world.api, "without")), ("Running", 0));
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_type_that_is_deleted_end_as_they_would_and_wait_for_it_to_replace_pods() {
    let mut world = World::with_jobs(4);
    set_fates(&world.api, &[("", "running")]);
    world.start();
    let names = ["lost", "done", "late", "crashing", "suspended"];
    for name in names {
        let mut job = job(name, "single", &[("worker", 2)]);
        if name == "late" {
            job["spec"]["activeDeadline"] = "10m".into();
        }
        world.api.put("trainingjobs", job);
    }
    world.until("all run", |api| names.iter().all(|name| phase(api, name) == "Running")).await;
    let single = world.api.get("jobtypes", "", "single").unwrap();
    world.api.delete("jobtypes", "", "single");
    world.until("it is missed", |api| names.iter().all(|name| condition(api, name, "Valid").1 == "TypeMissing")).await;
    world.kill();
    world.start();
    world.rest().await;
    assert!(names.iter().all(|name| phase(&world.api, name) == "Running"), "nothing has happened to them");
    world.api.delete("pods", "team-a", "lost-worker-1-1");
    let restarts = |api: &super::Api| api.get("trainingjobs", "team-a", "lost").unwrap()["status"]["restarts"].clone();
    world.until("the loss is counted", |api| restarts(api)["evicted"] == 1 && phase(api, "lost") == "Recovering").await;
    assert_eq!(super::waiting_for(&world.api, "lost"), "there is no JobType single");
    set_fates(&world.api, &[("done", "succeeded"), ("crashing", "failed"), ("", "running")]);
    world.until("one is done", |api| phase(api, "done") == "Succeeded").await;
    world.api.change("trainingjobs", "team-a", "suspended", |job| job["spec"]["suspend"] = true.into());
    world.until("one is suspended", |api| phase(api, "suspended") == "Suspended").await;
    world.until("one is late", |api| phase(api, "late") == "Failed").await;
    assert!(!pods(&world.api).iter().any(|pod| pod.starts_with("suspended") || pod.starts_with("late")));
    assert_eq!(phase(&world.api, "crashing"), "Recovering");
    world.api.put("jobtypes", single);
    world.until("it runs again", |api| phase(api, "lost") == "Running").await;
    world.until("one fails", |api| phase(api, "crashing") == "Failed").await;
    assert_eq!(condition(&world.api, "lost", "Valid").0, "True");
}
