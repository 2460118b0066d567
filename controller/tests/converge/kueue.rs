//! Jobs in Kueue's queues wait for their data. Only Kueue's objects exist, and the tests change them as Kueue would.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::api::{Api, Dies, serve_kueue};
use super::cluster::{BYTES, SNAPSHOT, dataset, node, owner_of};
use super::{World, assert_same, condition, end_state, is_ready};

const FLAVOR: &str = "gpus";

fn kueue(kind: &str, metadata: Value, spec: Value, status: Value) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec, "status": status})
}

/// Installs Kueue with a queue that has a check of Larder and a check of another controller.
fn install(api: &Api) {
    serve_kueue(api, true);
    let check = |name: &str, controller: &str| {
        kueue("AdmissionCheck", json!({"name": name}), json!({"controllerName": controller}), json!({}))
    };
    api.put("admissionchecks", check("data", "larder.dev/data"));
    api.put("admissionchecks", check("capacity", "example.org/capacity"));
    let labels = json!({"nodeLabels": {"kubernetes.io/os": "linux"}});
    api.put("resourceflavors", kueue("ResourceFlavor", json!({"name": FLAVOR}), labels, json!({})));
}

/// A Workload of two pods that has quota from now on. Its pods mount the claim `pets`.
fn workload(api: &Api, name: &str, annotations: Value) -> Value {
    let state =
        |check: &str| json!({"name": check, "state": "Pending", "message": "", "lastTransitionTime": api.now()});
    let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "pets"}});
    kueue(
        "Workload",
        json!({"namespace": "team-a", "name": name}),
        json!({"podSets": [{"name": "main", "count": 2, "template": {
            "metadata": {"annotations": annotations},
            "spec": {"containers": [], "volumes": [claim]},
        }}]}),
        json!({
            "conditions": [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": api.now()}],
            "admission": {"podSetAssignments": [{"name": "main", "count": 2, "flavors": {"cpu": FLAVOR}}]},
            "admissionChecks": [state("capacity"), state("data")],
        }),
    )
}

/// The state of a Workload's check, and its message.
fn state(api: &Api, name: &str, check: &str) -> (String, String) {
    let workload = api.get("workloads", "team-a", name).unwrap_or_default();
    let states = workload["status"]["admissionChecks"].as_array().cloned().unwrap_or_default();
    let state = states.into_iter().find(|state| state["name"] == check).unwrap_or_default();
    let text = |key: &str| state[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("message"))
}

fn is_data_ready(api: &Api, name: &str) -> bool {
    state(api, name, "data").0 == "Ready"
}

fn promises(api: &Api) -> usize {
    let of = |cache: Value| cache["spec"]["datasets"].as_array().map_or(0, Vec::len);
    api.list("nodecaches").into_iter().map(of).sum()
}

fn warm_jobs(api: &Api) -> Vec<Value> {
    let is_warming = |job: &Value| job["metadata"]["labels"]["larder.dev/role"] == "warm";
    api.list("jobs").into_iter().filter(is_warming).collect()
}

impl World {
    /// Three nodes, of which two belong to the flavor, and Kueue.
    fn with_kueue() -> Self {
        let world = Self::new(3);
        for name in ["n2", "n3"] {
            world.api.change("nodes", "", name, |node| node["metadata"]["labels"]["kubernetes.io/os"] = "linux".into());
        }
        install(&world.api);
        world
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_is_ready_once_its_data_is_on_nodes_of_its_flavor() {
    let mut world = World::with_kueue();
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    let active = |api: &Api, name: &str| {
        api.get("admissionchecks", "", name).unwrap()["status"]["conditions"][0]["status"] == "True"
    };
    world.until("the check is active", |api| active(api, "data")).await;
    world.api.put("workloads", workload(&world.api, "train", json!({})));
    world.until("its data is there", |api| is_data_ready(api, "train")).await;
    let api = &world.api;
    assert_eq!(state(api, "train", "data").1, "team-a/pets 100 % on 2 of 2 nodes");
    // The check of another controller is left alone.
    assert!(!active(api, "capacity"));
    assert_eq!(state(api, "train", "capacity"), ("Pending".to_owned(), String::new()));
    let holds = |node: &str| api.get("nodecaches", "", node).unwrap()["spec"].to_string().contains(SNAPSHOT);
    assert_eq!(["n1", "n2", "n3"].map(holds), [false, true, true]);
    world.rest().await;
    let writes = api.writes();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(api.writes(), writes, "nothing is written at rest");
    api.change("workloads", "team-a", "train", |workload| {
        let conditions = workload["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({"type": "Finished", "status": "True", "lastTransitionTime": api.now()}));
    });
    world.until("the room is released", |api| promises(api) == 0).await;
    assert_eq!(condition(api, "pets", "Ready").0, "True");
}

/// From now on, pods of warming jobs do not end.
fn hold_jobs(api: &Api) {
    api.put("configmaps", json!({"metadata": {"namespace": "test", "name": "hold"}, "data": {}}));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_stands_across_restarts_and_an_eviction_stops_the_warming() {
    let mut world = World::with_kueue();
    hold_jobs(&world.api);
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    world.api.put("workloads", workload(&world.api, "train", json!({"larder.dev/warm-deadline": "30m"})));
    world.until("it says how far it is", |api| state(api, "train", "data").1.contains("0 % on 2 of 2 nodes")).await;
    let (_, message) = state(&world.api, "train", "data");
    assert!(message.starts_with("team-a/pets 0 % on 2 of 2 nodes, ready at 90 % or "), "{message}");
    world.until("both nodes are being warmed", |api| warm_jobs(api).len() == 2).await;
    // Half of the data arrives, which is reported after a delay.
    let owner = owner_of(&world.api, |dataset| dataset["metadata"]["name"] == "pets");
    world.api.change("nodecaches", "", "n2", |cache| {
        cache["status"]["snapshots"] = json!([{"snapshot": SNAPSHOT, "owner": owner, "bytes": BYTES,
            "wantedBytes": BYTES, "reservedBytes": BYTES, "mounts": 0}]);
    });
    world.until("it says so", |api| state(api, "train", "data").1.contains("50 %")).await;
    world.kill();
    // The deadline uses the real clock, so the test moves the reservation into the past instead of waiting for 29
    // minutes.
    world.api.change("workloads", "team-a", "train", |workload| {
        let reserved = &mut workload["status"]["conditions"][0]["lastTransitionTime"];
        let before: Timestamp = reserved.as_str().unwrap().parse().unwrap();
        *reserved = Timestamp::from_second(before.as_second() - 29 * 60).unwrap().to_string().into();
    });
    world.start();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(state(&world.api, "train", "data").0, "Pending");
    tokio::time::sleep(Duration::from_secs(70)).await;
    let (ready, said) = state(&world.api, "train", "data");
    assert_eq!(ready, "Ready");
    assert!(said.contains("50 % on 2 of 2 nodes; it starts at its deadline"), "{said}");
    assert_eq!((promises(&world.api), warm_jobs(&world.api).len()), (2, 2), "its pods still need the rest");
    // As Kueue does when it takes the quota back.
    world.api.change("workloads", "team-a", "train", |workload| {
        workload["status"]["conditions"] = json!([
            {"type": "QuotaReserved", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Evicted", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        workload["status"]["admissionChecks"][1]["state"] = "Pending".into();
    });
    world.until("the warming stops", |api| promises(api) == 0 && warm_jobs(api).is_empty()).await;
    world.rest().await;
    assert_eq!(state(&world.api, "train", "data").0, "Pending", "without quota there is no answer");
    assert_eq!(condition(&world.api, "pets", "Ready").0, "True");
}

#[tokio::test(start_paused = true)]
async fn a_dataset_that_does_not_exist_holds_a_job_until_its_deadline_and_no_longer() {
    let mut world = World::with_kueue();
    world.start();
    let named = json!({"larder.dev/datasets": "none, team-b/other", "larder.dev/warm-deadline": "5m"});
    world.api.put("workloads", workload(&world.api, "train", named));
    let said = |name: &str| format!("the namespace team-a may not use the dataset {name}, or it does not exist");
    world.until("it says what is wrong", |api| state(api, "train", "data").1.contains(&said("team-a/none"))).await;
    let (pending, message) = state(&world.api, "train", "data");
    assert!(pending == "Pending" && message.contains(&said("team-b/other")), "{message}");
    assert!(!message.contains("pets"), "a claim of no dataset is none of Larder's: {message}");
    tokio::time::sleep(Duration::from_secs(301)).await;
    assert!(is_data_ready(&world.api, "train"));
}

/// A Workload to which Kueue has assigned these topology domains.
fn with_topology(api: &Api, name: &str, slice: Value) -> Value {
    let mut workload = workload(api, name, json!({}));
    let topology = json!({"levels": ["kubernetes.io/hostname"], "slices": [slice]});
    workload["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"] = topology;
    workload
}

#[tokio::test(start_paused = true)]
async fn data_goes_to_the_topology_domains_that_kueue_has_assigned() {
    let mut world = World::with_kueue();
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    let host = json!({"domainCount": 1, "valuesPerLevel": [{"universal": "n3"}], "podCounts": {"universal": 2}});
    world.api.put("workloads", with_topology(&world.api, "train", host));
    world.until("its data is there", |api| is_data_ready(api, "train")).await;
    assert_eq!(state(&world.api, "train", "data").1, "team-a/pets 100 % on 1 of 1 nodes");
    let holds = |node: &str| world.api.get("nodecaches", "", node).unwrap()["spec"].to_string().contains(SNAPSHOT);
    assert_eq!(["n1", "n2", "n3"].map(holds), [false, false, true]);
    // Both of these are without nodes: the first until its deadline, the second because its domain has none.
    let odd = json!({"domainCount": 2, "valuesPerLevel": [{"pattern": "n*"}], "podCounts": {"universal": 1}});
    world.api.put("workloads", with_topology(&world.api, "odd", odd));
    let gone = json!({"domainCount": 2, "valuesPerLevel": [{"individual": {"prefix": "n", "roots": ["8", "9"]}}],
        "podCounts": {"universal": 1}});
    world.api.put("workloads", with_topology(&world.api, "gone", gone));
    let said = |api: &Api, name: &str, why: &str| state(api, name, "data").1.contains(why);
    let unreadable = "the topology that Kueue assigned to the pod set \"main\": unknown variant `pattern`";
    world.until("it says why", |api| said(api, "odd", unreadable)).await;
    let none = "0 % on 0 of 0 nodes (no ready node with a cache matches the pods of the job)";
    world.until("it says why, too", |api| said(api, "gone", none) && said(api, "odd", none)).await;
    world.rest().await;
    assert_eq!(promises(&world.api), 1);
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert!(is_data_ready(&world.api, "odd") && is_data_ready(&world.api, "gone"));
}

#[tokio::test(start_paused = true)]
async fn kueue_may_come_and_go_and_is_not_missed() {
    let mut world = World::new(2);
    world.api.put("datasets", dataset("team-a", "pets", 1));
    world.start();
    world.until("the dataset is ready without it", |api| is_ready(api, "pets")).await;
    for name in ["n1", "n2"] {
        world.api.change("nodes", "", name, |node| node["metadata"]["labels"]["kubernetes.io/os"] = "linux".into());
    }
    install(&world.api);
    world.api.put("workloads", workload(&world.api, "train", json!({})));
    world.until("it is found", |api| is_data_ready(api, "train")).await;
    assert_eq!(promises(&world.api), 2);
}

#[tokio::test(start_paused = true)]
async fn a_controller_killed_at_any_write_for_a_job_ends_in_the_same_state() {
    let begin = |world: &mut World| {
        world.api.put("datasets", dataset("team-a", "pets", 2));
        let patient = json!({"larder.dev/warm-deadline": "100h"});
        world.api.put("workloads", workload(&world.api, "train", patient));
    };
    let mut world = World::with_kueue();
    begin(&mut world);
    world.start();
    world.rest().await;
    let (expected, writes) = (end_state(&world.api), world.api.writes().len());
    assert!(is_data_ready(&world.api, "train"), "{:#?}", world.api.list("workloads"));
    drop(world);
    let mut kills = 0;
    for write in 0..writes {
        for dies in [Dies::BeforeTheWrite, Dies::AfterTheWrite] {
            let mut world = World::with_kueue();
            begin(&mut world);
            world.api.die_at(write, dies);
            world.start();
            kills += usize::from(world.until_killed().await);
            world.kill();
            world.api.revive();
            world.start();
            world.rest().await;
            assert_same(&end_state(&world.api), &expected, &format!("killed at {write}, {dies:?}"));
        }
    }
    assert!(kills > writes, "{kills} of {}", 2 * writes);
}

// SEMANTICS: K15
#[tokio::test(start_paused = true)]
async fn a_kueue_that_cannot_be_listed_stops_no_dataset_and_takes_no_promise() {
    let mut world = World::with_kueue();
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    let patient = json!({"larder.dev/warm-deadline": "100h"});
    world.api.put("workloads", workload(&world.api, "train", patient));
    world.until("its data is there", |api| is_data_ready(api, "train")).await;
    world.rest().await;
    assert_eq!(promises(&world.api), 2);
    world.kill();
    // The definitions still exist, but their conversion webhook does not.
    world.api.break_watches(&["workloads", "admissionchecks", "resourceflavors"]);
    world.api.put("datasets", dataset("team-a", "cars", 1));
    world.start();
    world.until("another is ready", |api| is_ready(api, "cars")).await;
    world.rest().await;
    let of_pets = |api: &Api| {
        let caches = api.list("nodecaches").into_iter();
        caches.filter(|cache| cache["spec"].to_string().contains("team-a/pets")).count()
    };
    assert_eq!(of_pets(&world.api), 2, "the job may be there still");
    world.api.break_watches(&[]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(of_pets(&world.api), 2);
    world.api.delete("workloads", "team-a", "train");
    world.until("the room is released", |api| of_pets(api) == 0).await;
}

#[tokio::test(start_paused = true)]
async fn promises_to_a_job_that_went_unseen_go_once_kueue_answers() {
    let mut world = World::with_kueue();
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    world.api.put("workloads", workload(&world.api, "train", json!({})));
    world.until("its data is there", |api| is_data_ready(api, "train")).await;
    world.kill();
    world.api.break_watches(&["workloads", "admissionchecks", "resourceflavors"]);
    world.start();
    world.rest().await;
    world.api.delete("workloads", "team-a", "train");
    world.rest().await;
    assert_eq!(promises(&world.api), 2);
    world.api.break_watches(&[]);
    world.until("the room is released", |api| promises(api) == 0).await;
}

// SEMANTICS: K21
#[tokio::test(start_paused = true)]
async fn the_data_of_a_workload_with_gpus_does_not_wait_for_a_fill() {
    let mut world = World::with_kueue();
    let api = world.api.clone();
    for index in 4..=9 {
        api.put("nodes", node(&format!("n{index}")));
    }
    api.put("configmaps", json!({"metadata": {"namespace": "test", "name": "hold"}, "data": {"jobs": "larder-warm"}}));
    let mut bulk = dataset("team-a", "bulk", 0);
    bulk["spec"]["nodes"]["count"] = "all".into();
    api.put("datasets", bulk);
    api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    let warming = |api: &Api, of: &str| warm_jobs(api).iter().filter(|job| job.to_string().contains(of)).count();
    world.until("the fill has its slots", |api| warming(api, "larder-warm-bulk") == 7).await;
    world.until("the dataset is ready", |api| is_ready(api, "pets")).await;
    let mut train = workload(&api, "train", json!({}));
    let container = json!({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}});
    train["spec"]["podSets"][0]["template"]["spec"]["containers"] = json!([container]);
    api.put("workloads", train);
    // Of eight slots, one is left to jobs with GPUs.
    world.until("its data is fetched", |api| warming(api, "larder-warm-pets") == 1).await;
}
