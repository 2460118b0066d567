//! Restart rules, restarts in place, and roles that start after others.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::World;
use super::super::api::Api;
use super::super::kubelet::set_fates;
use super::{condition, job, phase, pods, waiting_for};

/// A job of two workers that restart alone, with these settings.
fn with(name: &str, restart: Value) -> Value {
    let mut job = job(name, "single", &[("worker", 2)]);
    job["spec"]["restart"] = restart;
    job
}

fn crashes(api: &Api, name: &str) -> u64 {
    let job = api.get("trainingjobs", "team-a", name).unwrap_or_default();
    job["status"]["restarts"]["crashed"].as_u64().unwrap_or(0)
}

// SEMANTICS: J30
#[tokio::test(start_paused = true)]
async fn a_rule_for_an_exit_code_fails_a_job_at_its_first_crash_or_never_counts_it() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("typo-worker-0", "exit 2"), ("flaky-worker-0", "exit 143"), ("", "running")]);
    world.start();
    let rules = json!([{"exitCodes": "2", "action": "fail"}, {"exitCodes": "143", "action": "ignore"}]);
    world.api.put("trainingjobs", with("typo", json!({"maxCrashes": 100, "rules": rules})));
    world.api.put("trainingjobs", with("flaky", json!({"maxCrashes": 1, "rules": rules})));
    world.until("one has failed", |api| phase(api, "typo") == "Failed").await;
    assert_eq!(condition(&world.api, "typo", "Failed"), ("True".into(), "FailedByRule".into()));
    assert_eq!(crashes(&world.api, "typo"), 1);
    world.until("the other one goes on", |api| crashes(api, "flaky") >= 4).await;
    assert_ne!(phase(&world.api, "flaky"), "Failed");
    set_fates(&world.api, &[("", "succeeded")]);
    world.until("it is done", |api| phase(api, "flaky") == "Succeeded").await;
}

// SEMANTICS: J30
#[tokio::test(start_paused = true)]
async fn rules_that_contradict_are_reported_by_name_and_others_go_on() {
    let mut world = World::with_jobs(2);
    world.start();
    let rules = json!([{"exitCodes": "1-9", "action": "fail"}, {"exitCodes": "3", "action": "restartPod"}]);
    world.api.put("trainingjobs", with("bad", json!({"rules": rules})));
    world.api.put("trainingjobs", with("good", json!({})));
    world.until("the good one is done", |api| phase(api, "good") == "Succeeded").await;
    assert_eq!(condition(&world.api, "bad", "Valid"), ("False".into(), "InvalidSpec".into()));
    let why = waiting_for(&world.api, "bad");
    assert!(why.contains("spec.restart.rules[1]") && why.contains("spec.restart.rules[0]"), "{why}");
    assert!(!pods(&world.api).iter().any(|pod| pod.starts_with("bad")));
}

// SEMANTICS: J30
#[tokio::test(start_paused = true)]
async fn a_pod_that_may_restart_in_place_has_its_kubelet_restart_it_and_is_replaced_after_the_last_time() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("", "running")]);
    world.start();
    world.api.put("trainingjobs", with("train", json!({"inPlace": 2})));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    let policy = |name: &str| world.api.get("pods", "team-a", name).unwrap()["spec"]["restartPolicy"].clone();
    assert_eq!(policy("train-worker-0-1"), "OnFailure");
    let restart = |times: u32| {
        let ended = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
        let status = json!({"name": "main", "restartCount": times, "state": {"running": {}}, "lastState": ended});
        world.api.change("pods", "team-a", "train-worker-0-1", |pod| {
            pod["status"]["containerStatuses"] = json!([status]);
        });
    };
    restart(2);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((pods(&world.api), crashes(&world.api, "train")), (names(&[(0, 1), (1, 1)]), 0));
    restart(3);
    let is_replaced = |api: &Api| phase(api, "train") == "Running" && pods(api) == names(&[(0, 2), (1, 1)]);
    world.until("it is replaced", is_replaced).await;
    assert_eq!(crashes(&world.api, "train"), 1);
}

/// The pods of `train` with these indexes and attempts.
fn names(pods: &[(u32, u32)]) -> Vec<String> {
    pods.iter().map(|(index, attempt)| format!("train-worker-{index}-{attempt}")).collect()
}

// SEMANTICS: J32
#[tokio::test(start_paused = true)]
async fn a_role_has_no_pods_before_the_roles_that_it_starts_after_also_after_a_kill() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train-master", "starting"), ("", "running")]);
    let mut train = job("train", "pytorch", &[("master", 1), ("worker", 2)]);
    train["spec"]["roles"][1]["startsAfter"] = json!([{"role": "master"}]);
    train["spec"]["gang"] = json!({"timeout": "5s"});
    world.start();
    world.api.put("trainingjobs", train);
    world.until("its master starts", |api| pods(api) == ["train-master-0-1"]).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    world.kill();
    world.start();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(pods(&world.api), ["train-master-0-1"], "workers that do not exist are not late");
    assert!(waiting_for(&world.api, "train").contains("worker starts after master"));
    set_fates(&world.api, &[("", "running")]);
    world.until("all run", |api| phase(api, "train") == "Running" && pods(api).len() == 3).await;
}
