//! Sweeps: trials that are jobs of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::api::{Api, Dies};
use super::super::cluster::{SNAPSHOT, dataset};
use super::super::kubelet::set_fates;
use super::super::{World, is_ready};
use super::{condition, install, job, phase, pods, waiting_for};

/// A sweep of jobs of one worker with these fields in its `spec.sweep`.
fn sweep(name: &str, fields: Value) -> Value {
    let mut sweep = job(name, "single", &[("worker", 1)]);
    sweep["spec"]["sweep"] = fields;
    sweep
}

fn list(trials: usize) -> Value {
    (0..trials).map(|value| json!({"LR": value.to_string()})).collect()
}

fn names(api: &Api) -> Vec<String> {
    let jobs = api.list("trainingjobs");
    jobs.iter().map(|job| job["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn status(api: &Api, name: &str) -> Value {
    api.get("trainingjobs", "team-a", name).unwrap_or_default()["status"]["sweep"].clone()
}

// SEMANTICS: J33
#[tokio::test(start_paused = true)]
async fn a_sweep_runs_all_its_trials_with_their_parameters_and_is_itself_no_job_with_pods() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("", "running")]);
    world.start();
    let mut tune = sweep("tune", json!({"list": list(4), "parallelism": 2}));
    tune["spec"]["ttlAfterFinished"] = "1h".into();
    world.api.put("trainingjobs", tune);
    world.until("two run", |api| ["tune-0", "tune-1"].iter().all(|name| phase(api, name) == "Running")).await;
    world.rest().await;
    assert_eq!(names(&world.api), ["tune", "tune-0", "tune-1"]);
    assert_eq!(pods(&world.api), ["tune-0-worker-0-1", "tune-1-worker-0-1"]);
    let pod = world.api.get("pods", "team-a", "tune-1-worker-0-1").unwrap();
    let variables = pod["spec"]["containers"][0]["env"].as_array().cloned().unwrap_or_default();
    let variables: BTreeMap<_, _> =
        variables.iter().map(|one| (one["name"].as_str().unwrap(), one["value"].as_str().unwrap())).collect();
    assert_eq!((variables["LR"], variables["LARDER_TRIAL"]), ("1", "1"));
    set_fates(&world.api, &[("", "result 0.5")]);
    world.until("it is done", |api| phase(api, "tune") == "Succeeded").await;
    assert_eq!(status(&world.api, "tune"), json!({"trials": 4, "active": 0, "succeeded": 4, "failed": 0}));
    assert_eq!(condition(&world.api, "tune", "Complete"), ("True".into(), "Succeeded".into()));
    world.rest().await;
    let writes = world.api.writes().len();
    tokio::time::sleep(Duration::from_secs(1800)).await;
    assert_eq!(world.api.writes().len(), writes, "nothing is written at rest");
    world.until("nothing is left", |api| names(api).is_empty() && pods(api).is_empty()).await;
}

// SEMANTICS: J11
#[tokio::test(start_paused = true)]
async fn trials_stay_for_as_long_as_their_sweep_whatever_the_administrator_keeps() {
    let mut world = World::with_jobs(2);
    world.keep_ended_jobs = Some(Duration::from_secs(60));
    set_fates(&world.api, &[("tune-2-", "running")]);
    world.start();
    world.api.put("trainingjobs", sweep("tune", json!({"list": list(3), "parallelism": 1})));
    world.until("two have ended", |api| status(api, "tune")["succeeded"] == 2).await;
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(names(&world.api), ["tune", "tune-0", "tune-1", "tune-2"]);
    set_fates(&world.api, &[]);
    world.until("nothing is left", |api| names(api).is_empty() && pods(api).is_empty()).await;
}

// SEMANTICS: J34
#[tokio::test(start_paused = true)]
async fn a_number_in_a_termination_message_stops_a_sweep() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("tune-0-", "result 0.4"), ("tune-1-", "result 0.2"), ("", "running")]);
    world.start();
    let objective = json!({"goal": "minimize", "target": "0.25"});
    world.api.put("trainingjobs", sweep("tune", json!({"list": list(100), "parallelism": 3, "objective": objective})));
    world.until("it stops", |api| phase(api, "tune") == "Succeeded").await;
    world.until("its trials have ended", |api| names(api) == ["tune", "tune-0", "tune-1"]).await;
    let best = json!({"name": "tune-1", "result": "0.2", "parameters": {"LR": "1"}});
    assert_eq!(status(&world.api, "tune")["best"], best);
    world.rest().await;
    assert!(pods(&world.api).iter().all(|pod| pod.starts_with("tune-0-") || pod.starts_with("tune-1-")));
}

// SEMANTICS: J33
#[tokio::test(start_paused = true)]
async fn a_sweep_that_is_too_large_is_refused_by_name_and_others_go_on() {
    let mut world = World::with_jobs(1);
    world.start();
    let values: Vec<String> = (0..1_000).map(|value| value.to_string()).collect();
    let grid: Vec<Value> = ["A", "B", "C"].iter().map(|name| json!({"name": name, "values": values})).collect();
    world.api.put("trainingjobs", sweep("huge", json!({"grid": grid})));
    world.api.put("trainingjobs", sweep("small", json!({"list": list(2)})));
    world.until("the small one is done", |api| phase(api, "small") == "Succeeded").await;
    assert_eq!(condition(&world.api, "huge", "Valid"), ("False".into(), "InvalidSpec".into()));
    let why = waiting_for(&world.api, "huge");
    assert!(why.contains("spec.sweep.grid has 1000000000 trials"), "{why}");
    assert!(!names(&world.api).iter().any(|name| name.starts_with("huge-")));
}

// SEMANTICS: J33
#[tokio::test(start_paused = true)]
async fn a_sweep_that_is_invalid_for_a_while_forgets_no_trial() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("tune-1-", "running")]);
    world.start();
    world.api.put("trainingjobs", sweep("tune", json!({"list": list(3), "parallelism": 1})));
    world.until("one has ended", |api| status(api, "tune")["succeeded"] == 1).await;
    // The sweep's record is all that is left of it.
    world.api.delete("trainingjobs", "team-a", "tune-0");
    let follow = |rules: Value| {
        let restart = json!({"rules": rules});
        world.api.change("trainingjobs", "team-a", "tune", |job| job["spec"]["restart"] = restart);
    };
    follow(json!([{"action": "fail"}, {"action": "ignore"}]));
    world.until("it says so", |api| condition(api, "tune", "Valid").0 == "False").await;
    assert!(waiting_for(&world.api, "tune").contains("spec.restart.rules[1]"));
    let has_event = |api: &Api| api.list("events").iter().any(|event| event["reason"] == "InvalidSpec");
    world.until("there is an event", has_event).await;
    follow(json!([]));
    world.until("it goes on", |api| condition(api, "tune", "Valid").0 == "True").await;
    set_fates(&world.api, &[]);
    world.until("it is done", |api| phase(api, "tune") == "Succeeded").await;
    assert_eq!(status(&world.api, "tune"), json!({"trials": 3, "active": 0, "succeeded": 3, "failed": 0}));
    assert_eq!(names(&world.api), ["tune", "tune-1", "tune-2"]);
}

// SEMANTICS: J33
#[tokio::test(start_paused = true)]
async fn a_trial_that_the_api_refuses_is_named_and_the_others_run() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("mine", "running")]);
    world.start();
    // Somebody's job has the name of a trial.
    world.api.put("trainingjobs", job("tune-1", "single", &[("worker", 1)]));
    world.api.put("trainingjobs", sweep("tune", json!({"list": list(4), "parallelism": 2})));
    let done = |api: &Api| status(api, "tune")["succeeded"] == 3;
    world.until("the others are done", done).await;
    world.until("it says why", |api| waiting_for(api, "tune").contains("team-a/tune-1")).await;
    assert_eq!(phase(&world.api, "tune"), "Running");
    world.api.delete("trainingjobs", "team-a", "tune-1");
    world.until("it is done", |api| phase(api, "tune") == "Succeeded").await;
}

// SEMANTICS: J33
#[tokio::test(start_paused = true)]
async fn a_controller_killed_at_any_write_of_a_sweep_runs_each_trial_once() {
    let scenario = |api: &Api| {
        install(api);
        set_fates(api, &[("", "result 1")]);
        let objective = json!({"goal": "maximize", "target": "2"});
        api.put("trainingjobs", sweep("tune", json!({"list": list(3), "parallelism": 2, "objective": objective})));
    };
    let mut world = World::new(2);
    scenario(&world.api);
    world.start();
    world.until("it is done", |api| phase(api, "tune") == "Succeeded").await;
    world.rest().await;
    let writes = world.api.writes().len();
    drop(world);
    for write in 0..writes {
        for dies in [Dies::BeforeTheWrite, Dies::AfterTheWrite] {
            let mut world = World::new(2);
            scenario(&world.api);
            world.api.die_at(write, dies);
            world.start();
            world.until_killed().await;
            world.kill();
            world.api.revive();
            world.start();
            world.until("it is done", |api| phase(api, "tune") == "Succeeded").await;
            world.rest().await;
            let when = format!("killed at {write}, {dies:?}");
            let counted = json!({"trials": 3, "active": 0, "succeeded": 3, "failed": 0});
            let mut found = status(&world.api, "tune");
            found.as_object_mut().unwrap().remove("best");
            assert_eq!(found, counted, "{when}");
            assert_eq!(names(&world.api), ["tune", "tune-0", "tune-1", "tune-2"], "{when}");
            let attempts: BTreeSet<String> = pods(&world.api).into_iter().collect();
            let once = ["tune-0-worker-0-1", "tune-1-worker-0-1", "tune-2-worker-0-1"].map(str::to_owned);
            assert_eq!(attempts, BTreeSet::from(once), "{when}");
        }
    }
}

// SEMANTICS: J35
#[tokio::test(start_paused = true)]
async fn the_dataset_of_a_sweep_is_warmed_once_for_all_trials() {
    let mut world = World::with_jobs(3);
    world.start();
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.until("it is imported", |api| is_ready(api, "pets")).await;
    let fetched = || world.api.writes().iter().filter(|write| *write == "POST jobs/").count();
    let before = fetched();
    let mut tune = sweep("tune", json!({"list": list(12), "parallelism": 1}));
    tune["spec"]["datasets"] = json!([{"name": "pets", "mountPath": "/data", "minWarm": 100}]);
    world.api.put("trainingjobs", tune);
    world.until("it is done", |api| phase(api, "tune") == "Succeeded").await;
    assert_eq!(fetched() - before, 1, "{:#?}", world.api.writes());
    let holds = |cache: &Value| cache["spec"].to_string().contains(SNAPSHOT);
    world.until("the room is released", |api| !api.list("nodecaches").iter().any(holds)).await;
}
