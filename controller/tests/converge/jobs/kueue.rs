//! Jobs in queues of Kueue. Only Kueue's objects exist, and [`play`] changes them as Kueue would.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::super::api::{Api, Dies, serve_kueue};
use super::super::kubelet::set_fates;
use super::super::{World, assert_same, end_state};
use super::{condition, disown, job, nodes_of, phase, pods, waiting_for};

pub(super) const FINALIZER: &str = "kueue.x-k8s.io/resource-in-use";

/// Installs Kueue with one flavor that covers one node.
fn install(api: &Api) {
    serve_kueue(api, true);
    api.put(
        "resourceflavors",
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "h100"},
            "spec": {"nodeLabels": {"gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}}),
    );
    api.change("nodes", "", "n2", |node| {
        node["metadata"]["labels"]["gpu"] = "h100".into();
        node["spec"]["taints"] = json!([{"key": "gpu", "effect": "NoSchedule"}]);
    });
}

pub(super) fn is(workload: &Value, kind: &str) -> bool {
    let conditions = workload["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// Sets conditions as Kueue does.
fn set(api: &Api, workload: &mut Value, conditions: &[(&str, &str, &str)]) {
    let list = &mut workload["status"]["conditions"];
    if list.is_null() {
        *list = json!([]);
    }
    let list = list.as_array_mut().unwrap();
    for (kind, status, reason) in conditions {
        list.retain(|condition| condition["type"] != *kind);
        list.push(json!({"type": kind, "status": status, "reason": reason, "message": format!("{reason} by Kueue"),
            "lastTransitionTime": api.now()}));
    }
}

/// Admits a Workload with at most this many pods per pod set.
pub(super) fn admit(api: &Api, name: &str, most: u64) {
    api.change("workloads", "team-a", name, |workload| {
        let sets = workload["spec"]["podSets"].as_array().cloned().unwrap_or_default();
        let assignment = |set: &Value| {
            let count = set["count"].as_u64().unwrap();
            let count = if set["minCount"].is_null() { count } else { count.min(most) };
            json!({"name": set["name"], "count": count, "flavors": {"nvidia.com/gpu": "h100"}})
        };
        let assignments: Vec<Value> = sets.iter().map(assignment).collect();
        workload["status"]["admission"] = json!({"clusterQueue": "research", "podSetAssignments": assignments});
        let evicted = workload["status"].to_string().contains("Evicted");
        set(api, workload, &[("QuotaReserved", "True", "QuotaReserved"), ("Admitted", "True", "Admitted")]);
        if evicted {
            set(api, workload, &[("Evicted", "False", "QuotaReserved")]);
        }
    });
}

pub(super) fn evict(api: &Api, name: &str) {
    api.change("workloads", "team-a", name, |workload| {
        set(api, workload, &[("Evicted", "True", "Preempted")]);
    });
}

pub(super) fn name_of(workload: &Value) -> String {
    workload["metadata"]["name"].as_str().unwrap().to_owned()
}

pub(super) fn workload(api: &Api) -> Value {
    let mut all = api.list("workloads");
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

/// Admits every Workload with at most `most` pods per pod set, if it can be admitted in part. If `evicts`, each one is
/// evicted once, when its pods are ready.
fn play(api: &Api, most: u64, evicts: bool) -> JoinHandle<()> {
    let api = api.clone();
    tokio::spawn(async move {
        let mut changes = api.changes();
        loop {
            for workload in api.list("workloads") {
                let name = name_of(&workload);
                let was_evicted = workload["status"].to_string().contains("Evicted");
                if is(&workload, "Finished") || !workload["metadata"]["deletionTimestamp"].is_null() {
                    continue;
                }
                if !is(&workload, "QuotaReserved") {
                    admit(&api, &name, most);
                } else if evicts && is(&workload, "PodsReady") && !was_evicted {
                    evict(&api, &name);
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    })
}

impl World {
    pub(super) fn with_kueue_and_jobs() -> Self {
        let world = Self::with_jobs(2);
        install(&world.api);
        world
    }
}

pub(super) fn queued(name: &str, kind: &str, roles: &[(&str, u32)]) -> Value {
    let mut job = job(name, kind, roles);
    job["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "gpus"});
    job
}

// SEMANTICS: J9
#[tokio::test(start_paused = true)]
async fn a_job_runs_once_kueue_admits_it_on_nodes_of_its_flavor_and_frees_its_quota_in_the_end() {
    let mut world = World::with_kueue_and_jobs();
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    world.api.put("trainingjobs", queued("train", "pytorch", &[("master", 1), ("worker", 2)]));
    world.until("it asks", |api| !api.list("workloads").is_empty()).await;
    world.rest().await;
    let made = workload(&world.api);
    assert_eq!((&made["spec"]["queueName"], &made["spec"]["podSets"][1]["count"]), (&json!("gpus"), &json!(2)));
    assert_eq!(made["metadata"]["finalizers"], json!([FINALIZER]));
    assert_eq!(pods(&world.api), [""; 0], "nothing runs without quota");
    assert_eq!(condition(&world.api, "train", "QuotaReserved"), ("False".into(), "KueueDecides".into()));
    assert_eq!(waiting_for(&world.api, "train"), "Kueue's queue gpus has not decided yet");
    admit(&world.api, &name_of(&made), 3);
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    world.until("Kueue knows", |api| is(&workload(api), "PodsReady")).await;
    assert_eq!(nodes_of(&world.api, "train"), ["n2"; 3], "n1 is of no flavor");
    let pod = world.api.get("pods", "team-a", "train-worker-1-1").unwrap();
    assert_eq!(pod["spec"]["nodeSelector"]["gpu"], "h100");
    assert!(pod["spec"]["tolerations"].to_string().contains("\"gpu\""), "{pod}");
    assert_eq!(pod["metadata"]["annotations"]["kueue.x-k8s.io/workload"], name_of(&made).as_str());
    assert_eq!(condition(&world.api, "train", "QuotaReserved"), ("True".into(), "Reserved".into()));
    set_fates(&world.api, &[]);
    world.until("it is done", |api| phase(api, "train") == "Succeeded").await;
    world.rest().await;
    let ended = workload(&world.api);
    assert!(
        is(&ended, "Finished") && ended["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty),
        "{ended:#}"
    );
    let writes = world.api.writes();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.api.writes(), writes, "nothing is written at rest");
}

// SEMANTICS: J9
#[tokio::test(start_paused = true)]
async fn an_evicted_job_ends_its_pods_gives_its_quota_back_and_comes_again() {
    let mut world = World::with_kueue_and_jobs();
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    world.api.put("trainingjobs", queued("train", "pytorch", &[("worker", 2)]));
    world.until("it asks", |api| !api.list("workloads").is_empty()).await;
    let name = name_of(&workload(&world.api));
    admit(&world.api, &name, 2);
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    evict(&world.api, &name);
    world.until("its quota is free", |api| !is(&workload(api), "QuotaReserved")).await;
    assert_eq!(pods(&world.api), [""; 0], "Kueue counts quota until no pod uses it");
    let evicted = workload(&world.api);
    assert!(is(&evicted, "Requeued") && evicted["status"]["admission"].is_null(), "{evicted:#}");
    world.until("it waits", |api| phase(api, "train") == "Queued").await;
    world.rest().await;
    let job = world.api.get("trainingjobs", "team-a", "train").unwrap();
    assert_eq!(job["status"]["restarts"]["preempted"], 1, "{job:#}");
    set_fates(&world.api, &[]);
    admit(&world.api, &name, 2);
    world.until("it is done", |api| phase(api, "train") == "Succeeded").await;
    assert_eq!(pods(&world.api), ["train-worker-0-2", "train-worker-1-2"]);
}

// SEMANTICS: J9
#[tokio::test(start_paused = true)]
async fn pods_that_an_ended_job_keeps_have_its_quota_until_the_last_of_them_has_ended() {
    for how in ["ended", "deleted", "lost"] {
        let mut world = World::with_kueue_and_jobs();
        set_fates(&world.api, &[("train", "running")]);
        world.start();
        let mut train = queued("train", "pytorch", &[("worker", 2)]);
        (train["spec"]["keepPods"], train["spec"]["activeDeadline"]) = ("all".into(), "1m".into());
        world.api.put("trainingjobs", train);
        world.until("it asks", |api| !api.list("workloads").is_empty()).await;
        admit(&world.api, &name_of(&workload(&world.api)), 2);
        world.until("it is late", |api| phase(api, "train") == "Failed").await;
        world.rest().await;
        world.kill();
        world.start();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!is(&workload(&world.api), "Finished") && pods(&world.api).len() == 2, "{how}: they run");
        world.api.delete("pods", "team-a", "train-worker-0-1");
        world.rest().await;
        assert!(!is(&workload(&world.api), "Finished"), "{how}: the other one runs");
        match how {
            "ended" => set_fates(&world.api, &[]),
            "deleted" => world.api.delete("pods", "team-a", "train-worker-1-1"),
            _ => {
                let now = world.api.now();
                world.api.change("nodes", "", "n2", |node| {
                    let lost = json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": now});
                    node["status"]["conditions"][0] = lost;
                });
            }
        }
        world.until("its quota is free", |api| is(&workload(api), "Finished")).await;
        world.rest().await;
        assert!(!workload(&world.api).to_string().contains(FINALIZER), "{how}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_elastic_job_runs_with_the_pods_that_kueue_has_admitted() {
    let mut world = World::with_kueue_and_jobs();
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    let mut elastic = queued("train", "pytorch-elastic", &[("worker", 4)]);
    elastic["spec"]["roles"][0]["min"] = 2.into();
    world.api.put("trainingjobs", elastic);
    world.until("it asks", |api| !api.list("workloads").is_empty()).await;
    let asked = workload(&world.api);
    assert_eq!(asked["spec"]["podSets"][0]["minCount"], 2);
    admit(&world.api, &name_of(&asked), 3);
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(pods(&world.api).len(), 3, "it does not grow beyond its quota");
}

// SEMANTICS: J9
#[tokio::test(start_paused = true)]
async fn an_elastic_job_grows_by_a_second_workload_and_keeps_its_pods_meanwhile() {
    let mut world = World::with_kueue_and_jobs();
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    let mut elastic = queued("train", "pytorch-elastic", &[("worker", 4)]);
    elastic["metadata"]["annotations"] = json!({"kueue.x-k8s.io/elastic-job": "true"});
    elastic["spec"]["roles"][0]["min"] = 2.into();
    world.api.put("trainingjobs", elastic);
    world.until("it asks", |api| !api.list("workloads").is_empty()).await;
    let first = workload(&world.api);
    assert_eq!(
        (&first["spec"]["podSets"][0]["count"], &first["spec"]["podSets"][0]["minCount"]),
        (&json!(2), &json!(null))
    );
    admit(&world.api, &name_of(&first), 9);
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    world.until("it asks for the rest", |api| api.list("workloads").len() == 2).await;
    let is_second = |workload: &Value| name_of(workload) != name_of(&first);
    let second = world.api.list("workloads").into_iter().find(is_second).unwrap();
    assert_eq!(second["spec"]["podSets"][0]["count"], 4);
    let replaced = format!("team-a/{}", name_of(&first));
    let annotations = &second["metadata"]["annotations"];
    assert_eq!(annotations["kueue.x-k8s.io/workload-slice-replacement-for"], replaced.as_str());
    world.rest().await;
    assert_eq!(pods(&world.api), ["train-worker-0-1", "train-worker-1-1"], "they run on");
    admit(&world.api, &name_of(&second), 9);
    world.until("it has grown", |api| pods(api).len() == 4).await;
    world.until("the first Workload is gone", |api| api.list("workloads").len() == 1).await;
    world.api.delete("trainingjobs", "team-a", "train");
    world.until("no Workload is left", |api| api.list("workloads").is_empty()).await;
}

// SEMANTICS: J9
#[tokio::test(start_paused = true)]
async fn a_controller_killed_at_any_write_of_a_growth_grows_the_job_once() {
    let begin = |api: &Api| {
        set_fates(api, &[("train", "running")]);
        let mut elastic = queued("train", "pytorch-elastic", &[("worker", 4)]);
        elastic["metadata"]["annotations"] = json!({"kueue.x-k8s.io/elastic-job": "true"});
        elastic["spec"]["roles"][0]["min"] = 2.into();
        api.put("trainingjobs", elastic);
    };
    let has_grown = |api: &Api| {
        let counts: Vec<Value> =
            api.list("workloads").iter().map(|workload| workload["spec"]["podSets"][0]["count"].clone()).collect();
        let pods = pods(api);
        let indexes: Vec<&str> = pods.iter().map(|pod| pod.rsplit_once('-').unwrap().0).collect();
        counts == [4] && indexes == ["train-worker-0", "train-worker-1", "train-worker-2", "train-worker-3"]
    };
    let mut world = World::with_kueue_and_jobs();
    begin(&world.api);
    let kueue = play(&world.api, 9, false);
    world.start();
    world.until("it has grown", has_grown).await;
    world.rest().await;
    kueue.abort();
    let writes = world.api.writes().len();
    drop(world);
    let mut kills = 0;
    for write in 0..writes {
        for dies in [Dies::BeforeTheWrite, Dies::AfterTheWrite] {
            let mut world = World::with_kueue_and_jobs();
            begin(&world.api);
            let kueue = play(&world.api, 9, false);
            world.api.die_at(write, dies);
            world.start();
            kills += usize::from(world.until_killed().await);
            world.kill();
            world.api.revive();
            world.start();
            world.until("it has grown", has_grown).await;
            world.rest().await;
            kueue.abort();
            assert!(has_grown(&world.api), "killed at {write}, {dies:?}: {:#?}", world.api.writes());
        }
    }
    assert!(kills > writes, "{kills} of {}", 2 * writes);
}

#[tokio::test(start_paused = true)]
async fn a_job_with_quota_and_without_nodes_waits_and_takes_the_room_of_no_other() {
    let mut world = World::with_kueue_and_jobs();
    set_fates(&world.api, &[("first", "running"), ("other", "running")]);
    world.start();
    // The flavor has only four GPUs.
    world.api.put("trainingjobs", queued("first", "pytorch", &[("worker", 3)]));
    world.until("it asks", |api| !api.list("workloads").is_empty()).await;
    admit(&world.api, &name_of(&workload(&world.api)), 3);
    world.until("it runs", |api| phase(api, "first") == "Running").await;
    let mut other = job("other", "single", &[("worker", 2)]);
    other["spec"]["roles"][0]["template"]["spec"]["nodeSelector"] = json!({"gpu": "h100"});
    other["spec"]["roles"][0]["template"]["spec"]["tolerations"] = json!([{"key": "gpu", "operator": "Exists"}]);
    world.api.put("trainingjobs", other);
    world.api.put("trainingjobs", queued("second", "pytorch", &[("worker", 2)]));
    world.until("it asks", |api| api.list("workloads").len() == 2).await;
    let is_second = |workload: &Value| name_of(workload).contains("second");
    let second = world.api.list("workloads").into_iter().find(is_second).unwrap();
    admit(&world.api, &name_of(&second), 2);
    world.until("it says so", |api| waiting_for(api, "second").starts_with("has Kueue's quota; 2 pods of role")).await;
    world.rest().await;
    assert_eq!(condition(&world.api, "second", "Placed"), ("False".into(), "NoRoom".into()));
    // Larder's queues do not preempt jobs of Kueue, but their pods count on the nodes.
    assert_eq!((phase(&world.api, "other").as_str(), phase(&world.api, "first").as_str()), ("Queued", "Running"));
    set_fates(&world.api, &[]);
    world.until("both are done", |api| ["second", "other"].iter().all(|name| phase(api, name) == "Succeeded")).await;
}

// SEMANTICS: J9
#[tokio::test(start_paused = true)]
async fn a_job_that_goes_leaves_no_workload_with_a_finalizer() {
    for remove in ["delete", "orphan", "label", "suspend"] {
        let mut world = World::with_kueue_and_jobs();
        set_fates(&world.api, &[("train", "running")]);
        world.start();
        world.api.put("trainingjobs", queued("train", "pytorch", &[("worker", 2)]));
        world.until("it asks", |api| !api.list("workloads").is_empty()).await;
        admit(&world.api, &name_of(&workload(&world.api)), 2);
        world.until("it runs", |api| phase(api, "train") == "Running").await;
        let stuck = |finalizers: &[&str]| {
            for name in pods(&world.api) {
                world.api.change("pods", "team-a", &name, |pod| pod["metadata"]["finalizers"] = json!(finalizers));
            }
        };
        match remove {
            "delete" | "orphan" => {
                stuck(&["test/kubelet"]);
                if remove == "orphan" {
                    disown(&world.api, &["pods", "workloads"]);
                }
                world.api.delete("trainingjobs", "team-a", "train");
                world.rest().await;
                let has_quota = workload(&world.api).to_string().contains(FINALIZER);
                assert!(has_quota && pods(&world.api).len() == 2, "{remove}: its pods have not ended");
                stuck(&[]);
            }
            "label" => world.api.change("trainingjobs", "team-a", "train", |job| {
                job["metadata"]["labels"] = json!({});
            }),
            _ => world.api.change("trainingjobs", "team-a", "train", |job| job["spec"]["suspend"] = true.into()),
        }
        world.until("the Workload is gone", |api| api.list("workloads").is_empty()).await;
        world.rest().await;
        let left = if remove == "label" { 2 } else { 0 };
        assert_eq!(pods(&world.api).len(), left, "{remove}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_kueue_a_job_says_so_and_starts_once_it_is_installed() {
    let mut world = World::with_jobs(2);
    world.start();
    world.api.put("trainingjobs", queued("train", "pytorch", &[("worker", 2)]));
    world.until("it says so", |api| waiting_for(api, "train").contains("this cluster has no Kueue")).await;
    world.rest().await;
    assert_eq!(pods(&world.api), [""; 0]);
    install(&world.api);
    world.until("it asks", |api| !api.list("workloads").is_empty()).await;
    admit(&world.api, &name_of(&workload(&world.api)), 2);
    world.until("it is done", |api| phase(api, "train") == "Succeeded").await;
}

#[tokio::test(start_paused = true)]
async fn a_job_that_kueue_cannot_take_says_why() {
    let mut world = World::with_kueue_and_jobs();
    world.start();
    let mut train = queued("train", "pytorch", &[("worker", 2)]);
    train["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "urgent".into();
    world.api.put("trainingjobs", train);
    let why = "there is no WorkloadPriorityClass urgent (kueue.x-k8s.io/priority-class)";
    world.until("it says so", |api| waiting_for(api, "train") == why).await;
    assert!(world.api.list("workloads").is_empty());
    let class = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
        "metadata": {"name": "urgent"}, "value": 1000});
    world.api.put("workloadpriorityclasses", class);
    world.until("it asks", |api| !api.list("workloads").is_empty()).await;
    assert_eq!(workload(&world.api)["spec"]["priority"], 1000);
    world.api.deny("POST team-a/workloads", 403);
    world.api.put("trainingjobs", queued("denied", "pytorch", &[("worker", 2)]));
    world
        .until("it says so, too", |api| {
            waiting_for(api, "denied").contains("rejects one of the job's objects: Workload")
        })
        .await;
}

/// A gang, and an elastic job that is partially admitted. Each is evicted once.
fn begin(api: &Api) {
    set_fates(
        api,
        &[
            ("gang-master-0-1", "running"),
            ("gang-worker", "running"),
            ("elastic-worker-0-1", "running"),
            ("elastic-worker-1-1", "running"),
        ],
    );
    api.put("trainingjobs", queued("gang", "pytorch", &[("master", 1), ("worker", 1)]));
    let mut elastic = queued("elastic", "pytorch-elastic", &[("worker", 4)]);
    elastic["spec"]["roles"][0]["min"] = 1.into();
    api.put("trainingjobs", elastic);
}

// SEMANTICS: J9
#[tokio::test(start_paused = true)]
async fn a_controller_killed_at_any_write_for_kueue_ends_in_the_same_state() {
    let state = |api: &Api| {
        let mut all = end_state(api);
        for ((plural, ..), object) in &mut all {
            if plural == "workloads" {
                // If a job ends quickly, Kueue may not have been informed that its pods were ready, or that some have
                // ended.
                let is_finished = is(object, "Finished");
                object["status"] = json!({"finished": is_finished, "admission": object["status"]["admission"]});
            }
        }
        all
    };
    let mut world = World::with_kueue_and_jobs();
    begin(&world.api);
    let kueue = play(&world.api, 2, true);
    world.start();
    world.rest().await;
    kueue.abort();
    let all_done = |api: &Api| ["gang", "elastic"].iter().all(|name| phase(api, name) == "Succeeded");
    assert!(all_done(&world.api), "{:#?}", world.api.list("trainingjobs"));
    let finished = |workload: &Value| is(workload, "Finished") && !workload.to_string().contains(FINALIZER);
    assert!(world.api.list("workloads").iter().all(finished), "{:#?}", world.api.list("workloads"));
    let (expected, writes, names) = (state(&world.api), world.api.writes().len(), pods(&world.api));
    assert!(writes > 20 && names.iter().all(|name| name.ends_with("-2")), "{writes}: {names:?}");
    drop(world);
    let mut kills = 0;
    for write in 0..writes {
        for dies in [Dies::BeforeTheWrite, Dies::AfterTheWrite] {
            let mut world = World::with_kueue_and_jobs();
            begin(&world.api);
            let kueue = play(&world.api, 2, true);
            world.api.die_at(write, dies);
            world.start();
            kills += usize::from(world.until_killed().await);
            world.kill();
            world.api.revive();
            world.start();
            world.rest().await;
            kueue.abort();
            let when = format!("killed at {write}, {dies:?}");
            assert_eq!(pods(&world.api), names, "{when}: {:#?}", world.api.writes());
            assert_same(&state(&world.api), &expected, &when);
        }
    }
    assert!(kills > writes, "{kills} of {}", 2 * writes);
}
