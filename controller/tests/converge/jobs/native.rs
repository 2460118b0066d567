//! Gang scheduling by kube-scheduler.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::api::{Api, serve_gangs};
use super::super::cluster::{SNAPSHOT, dataset};
use super::super::kubelet::{failed, set_fates};
use super::super::{World, is_ready};
use super::{condition, job, phase, pods, waiting_for};

fn groups(api: &Api) -> Vec<String> {
    api.list("podgroups").iter().map(|group| group["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn group_of(pod: &Value) -> Value {
    pod["spec"]["schedulingGroup"]["podGroupName"].clone()
}

impl World {
    fn with_gangs() -> Self {
        let world = Self::with_jobs(2);
        serve_gangs(&world.api, true);
        world
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_is_made_before_its_pods_and_a_gang_that_starts_again_has_another() {
    let mut world = World::with_gangs();
    set_fates(&world.api, &[("train", "running"), ("train-worker-1-1", "pending")]);
    world.start();
    world.api.put("trainingjobs", job("train", "pytorch", &[("worker", 3)]));
    world.until("its pods are made", |api| pods(api).len() == 3).await;
    let writes = world.api.writes();
    let first = |what: &str| writes.iter().position(|write| write.starts_with(what)).unwrap();
    assert!(first("POST podgroups") < first("POST pods"), "{writes:#?}");
    let group = world.api.get("podgroups", "team-a", "train-1").unwrap();
    assert_eq!(group["spec"]["schedulingPolicy"]["gang"]["minCount"], 3);
    for pod in world.api.list("pods") {
        assert_eq!((group_of(&pod), &pod["spec"]["affinity"]), (json!("train-1"), &Value::Null));
    }
    world.api.change("podgroups", "team-a", "train-1", |group| {
        group["status"] = json!({"conditions": [{"type": "PodGroupInitiallyScheduled", "status": "False",
            "reason": "Unschedulable", "message": "2 of 3 have a node", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    });
    let said = "3 pods start together or not at all: 2 of 3 have a node";
    world.until("it says so", |api| waiting_for(api, "train").ends_with(said)).await;
    world.rest().await;
    assert!(pods(&world.api).iter().all(|pod| pod.ends_with("-1")), "the scheduler binds all or none, at any time");
    set_fates(&world.api, &[("train", "running")]);
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    world.api.change("pods", "team-a", "train-worker-2-1", |pod| pod["status"] = failed());
    world.until("it runs again", |api| phase(api, "train") == "Running" && groups(api) == ["train-2"]).await;
    assert!(world.api.list("pods").iter().any(|pod| group_of(pod) == "train-2"));
    set_fates(&world.api, &[]);
    world.until("it is done", |api| phase(api, "train") == "Succeeded" && groups(api).is_empty()).await;
}

// SEMANTICS: J35
#[tokio::test(start_paused = true)]
async fn the_data_of_a_sweep_stays_where_the_scheduler_has_bound_its_trials() {
    let mut world = World::with_gangs();
    world.start();
    world.api.put("datasets", dataset("team-a", "pets", 0));
    world.until("it is imported", |api| is_ready(api, "pets")).await;
    // Somebody's job has the name of the second trial, so nothing runs after the first one.
    let mut other = job("tune-1", "single", &[("worker", 1)]);
    other["spec"]["suspend"] = true.into();
    world.api.put("trainingjobs", other);
    let mut tune = job("tune", "single", &[("worker", 2)]);
    tune["spec"]["gang"] = json!({"backend": "native"});
    tune["spec"]["datasets"] = json!([{"name": "pets", "mountPath": "/data", "minWarm": 0}]);
    tune["spec"]["sweep"] = json!({"list": [{"LR": "0"}, {"LR": "1"}], "parallelism": 1});
    world.api.put("trainingjobs", tune);
    world.until("the first trial is done", |api| phase(api, "tune-0") == "Succeeded").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let holds = |cache: &Value| cache["spec"].to_string().contains(SNAPSHOT);
    assert!(world.api.list("nodecaches").iter().any(holds), "{:#?}", world.api.writes());
}

#[tokio::test(start_paused = true)]
async fn auto_leaves_gangs_to_the_scheduler_only_where_nothing_is_lost_by_it() {
    let mut world = World::with_gangs();
    set_fates(&world.api, &[("", "running")]);
    let mut near = job("near", "pytorch", &[("worker", 2)]);
    near["spec"]["gang"] = json!({"topologyKey": "kubernetes.io/hostname"});
    let mut builtin = job("builtin", "pytorch", &[("worker", 2)]);
    builtin["spec"]["gang"] = json!({"backend": "builtin"});
    world.start();
    for job in [near, builtin, job("auto", "pytorch", &[("worker", 2)])] {
        world.api.put("trainingjobs", job);
    }
    world.until("all run", |api| ["near", "builtin", "auto"].iter().all(|name| phase(api, name) == "Running")).await;
    assert_eq!(groups(&world.api), ["auto-1"]);
}

#[tokio::test(start_paused = true)]
async fn native_is_refused_where_it_cannot_be_had_and_auto_is_planned() {
    let mut world = World::with_jobs(2);
    world.start();
    let mut native = job("native", "pytorch", &[("worker", 2)]);
    native["spec"]["gang"] = json!({"backend": "native"});
    world.api.put("trainingjobs", native.clone());
    world.api.put("trainingjobs", job("auto", "pytorch", &[("worker", 2)]));
    world.until("the other is done", |api| phase(api, "auto") == "Succeeded").await;
    world
        .until("it is refused", |api| condition(api, "native", "Valid") == ("False".into(), "GangRefused".into()))
        .await;
    let why = "spec.gang.backend is native, but this cluster serves no PodGroups (scheduling.k8s.io/v1beta1, off by default); \
               use builtin or auto";
    assert_eq!(waiting_for(&world.api, "native"), why);
    serve_gangs(&world.api, true);
    world.until("it is done", |api| phase(api, "native") == "Succeeded").await;
    world.rest().await;
    let mut near = native;
    near["metadata"] = json!({"namespace": "team-a", "name": "near"});
    near["spec"]["gang"]["topologyKey"] = "zone".into();
    world.api.put("trainingjobs", near);
    world.until("it is refused", |api| waiting_for(api, "near").contains("do not support spec.gang.topologyKey")).await;
}

#[tokio::test(start_paused = true)]
async fn pods_whose_group_the_api_server_drops_are_planned() {
    let mut world = World::with_jobs(2);
    serve_gangs(&world.api, false);
    set_fates(&world.api, &[("first-worker-1-1", "pending"), ("first", "running")]);
    world.start();
    world.api.put("trainingjobs", job("first", "pytorch", &[("worker", 2)]));
    world.until("its pod without a node is replaced", |api| phase(api, "first") == "Running").await;
    let pod = world.api.get("pods", "team-a", "first-worker-1-2").unwrap();
    assert!(!pod["spec"]["affinity"]["nodeAffinity"].is_null(), "{pod}");
    world.api.put("trainingjobs", job("second", "pytorch", &[("worker", 2)]));
    world.until("it is done", |api| phase(api, "second") == "Succeeded").await;
    world.rest().await;
    assert_eq!(groups(&world.api), ["first-1"], "gangs are Larder's from then on");
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_somebody_else_says_nothing_about_groups() {
    let mut world = World::with_gangs();
    world.start();
    let mut train = job("train", "pytorch", &[("worker", 2)]);
    train["spec"]["gang"] = json!({"backend": "native"});
    train["spec"]["suspend"] = true.into();
    let mut other = train.clone();
    (other["metadata"]["name"], other["spec"]["suspend"]) = ("other".into(), false.into());
    world.api.put("trainingjobs", train);
    let uid = world.api.get("trainingjobs", "team-a", "train").unwrap()["metadata"]["uid"].clone();
    let owner = json!({"apiVersion": "larder.dev/v1alpha1", "kind": "TrainingJob", "name": "train", "uid": uid,
        "controller": true});
    let metadata = json!({"namespace": "team-a", "name": "train-worker-0-1", "ownerReferences": [owner]});
    world.api.put("pods", json!({"metadata": metadata, "spec": {"containers": []}}));
    world.api.change("trainingjobs", "team-a", "train", |job| job["spec"]["suspend"] = false.into());
    let is_made = |api: &Api| api.get("pods", "team-a", "train-worker-1-1").is_some();
    world.until("its other pod is made", is_made).await;
    world.api.put("trainingjobs", other);
    world.until("the scheduler takes another gang", |api| phase(api, "other") == "Succeeded").await;
}

// SEMANTICS: J1
#[tokio::test(start_paused = true)]
async fn a_gang_that_is_never_bound_gives_its_room_back_and_is_tried_again_after_a_pause_that_doubles() {
    let mut world = World::with_gangs();
    set_fates(&world.api, &[("train", "pending")]);
    world.start();
    world.api.put("trainingjobs", job("train", "pytorch", &[("worker", 2)]));
    world.until("its pods are made", |api| pods(api).len() == 2).await;
    for name in ["train-worker-0-1", "train-worker-1-1"] {
        world.api.change("pods", "team-a", name, |pod| {
            pod["status"] = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
                "reason": "Unschedulable", "message": "claim \"scratch\" not found"}]});
        });
    }
    tokio::time::sleep(Duration::from_secs(290)).await;
    assert_eq!(pods(&world.api).len(), 2, "it may take some minutes");
    world.until("it gives up for now", |api| phase(api, "train") == "Queued" && pods(api).is_empty()).await;
    let why = "2 pods were not bound in time: claim \"scratch\" not found; it is retried at ";
    world.until("it says why", |api| waiting_for(api, "train").starts_with(why)).await;
    assert_eq!(condition(&world.api, "train", "Placed"), ("False".into(), "NotBoundInTime".into()));
    let record = || {
        let job = world.api.get("trainingjobs", "team-a", "train").unwrap();
        serde_json::from_str::<Value>(job["status"]["record"].as_str().unwrap()).unwrap()
    };
    let pause = || record()["notBefore"].as_i64().unwrap() - record()["since"].as_i64().unwrap();
    assert_eq!(pause(), 30);
    world.until("it is tried again", |api| pods(api) == ["train-worker-0-2", "train-worker-1-2"]).await;
    world.until("it gives up again", |api| phase(api, "train") == "Queued" && pods(api).is_empty()).await;
    assert_eq!(pause(), 60);
    set_fates(&world.api, &[]);
    world.until("it is done", |api| phase(api, "train") == "Succeeded" && groups(api).is_empty()).await;
}
