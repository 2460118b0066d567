//! Jobs that MultiKueue moves, in their home and in the cluster that runs them. Tests write what MultiKueue would.

use std::time::Duration;

use larder_testkit::fake_api::Mode;
use serde_json::{Value, json};

use super::super::World;
use super::super::api::Api;
use super::super::kubelet::set_fates;
use super::kueue::{FINALIZER, admit, evict, is, name_of, queued, workload};
use super::{phase, pods, waiting_for};

fn moved(name: &str) -> Value {
    let mut job = queued(name, "pytorch", &[("worker", 2)]);
    job["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue".into();
    job
}

/// Replaces the status of a job, as MultiKueue's adapter does.
fn copy_status(api: &Api, name: &str, status: &Value) {
    api.change("trainingjobs", "team-a", name, |job| job["status"] = status.clone());
}

// SEMANTICS: J22
#[tokio::test(start_paused = true)]
async fn a_moved_job_has_a_workload_and_no_pods_and_its_status_is_that_of_its_copy() {
    let mut world = World::with_kueue_and_jobs();
    world.start();
    world.api.put("trainingjobs", moved("train"));
    world.until("it asks", |api| !api.list("workloads").is_empty()).await;
    world.rest().await;
    let made = workload(&world.api);
    assert_eq!(made["metadata"]["finalizers"], json!([FINALIZER]));
    let owner = &made["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["controller"]), (&json!("TrainingJob"), &json!(true)), "MultiKueue finds it so");
    assert_eq!(waiting_for(&world.api, "train"), "asks Kueue's queue gpus for quota");
    admit(&world.api, &name_of(&made), 2);
    let running = json!({"phase": "Running", "record": "{}", "observedGeneration": 1, "started": world.api.now()});
    copy_status(&world.api, "train", &running);
    world.rest().await;
    let writes = world.api.writes();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.api.writes(), writes, "nothing is written at rest");
    assert_eq!(pods(&world.api), [""; 0]);
    assert_eq!(world.api.get("trainingjobs", "team-a", "train").unwrap()["status"], running);

    // It loses its quota, which is free once its copy says that it has no pods.
    evict(&world.api, &name_of(&made));
    world.rest().await;
    assert!(is(&workload(&world.api), "QuotaReserved"));
    copy_status(&world.api, "train", &json!({"phase": "Queued", "record": "{}"}));
    world.until("its quota is free", |api| !is(&workload(api), "QuotaReserved")).await;

    // Suspended, it has no Workload. Resumed, it has another one.
    let suspend = |suspend: bool| {
        world.api.change("trainingjobs", "team-a", "train", |job| job["spec"]["suspend"] = suspend.into());
    };
    suspend(true);
    world.until("its Workload is gone", |api| api.list("workloads").is_empty()).await;
    world.until("it says so", |api| phase(api, "train") == "Suspended").await;
    suspend(false);
    world.until("it asks again", |api| !api.list("workloads").is_empty()).await;
    world.api.delete("trainingjobs", "team-a", "train");
    world.until("nothing of it is left", |api| api.list("workloads").is_empty()).await;
    assert_eq!(pods(&world.api), [""; 0]);
}

/// A Workload as MultiKueue creates it here, from the one that a job of this cluster would have.
async fn prebuilt(world: &mut World) -> Value {
    world.api.put("trainingjobs", moved("train"));
    world.until("it asks", |api| !api.list("workloads").is_empty()).await;
    world.rest().await;
    let made = workload(&world.api);
    world.api.delete("trainingjobs", "team-a", "train");
    world.until("it is gone", |api| api.list("workloads").is_empty()).await;
    let (name, labels) = (made["metadata"]["name"].clone(), made["metadata"]["labels"].clone());
    let mut copy = json!({"apiVersion": made["apiVersion"], "kind": "Workload", "spec": made["spec"],
        "metadata": {"name": name, "namespace": "team-a", "labels": labels}});
    let labels = copy["metadata"]["labels"].as_object_mut().unwrap();
    labels.remove("kueue.x-k8s.io/job-uid");
    labels.insert("kueue.x-k8s.io/multikueue-origin".to_owned(), "multikueue".into());
    copy
}

/// The copy of the job, as MultiKueue creates it here.
fn copied(workload: &Value) -> Value {
    let mut job = queued("train", "pytorch", &[("worker", 2)]);
    job["metadata"]["labels"]["kueue.x-k8s.io/multikueue-origin"] = "multikueue".into();
    job["metadata"]["annotations"] = json!({"kueue.x-k8s.io/prebuilt-workload-name": workload["metadata"]["name"]});
    job["spec"]["ttlAfterFinished"] = "0s".into();
    job
}

// SEMANTICS: J22
#[tokio::test(start_paused = true)]
async fn a_copy_runs_with_the_workload_that_multikueue_has_made_for_it() {
    let mut world = World::with_kueue_and_jobs();
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    let made = prebuilt(&mut world).await;
    let name = name_of(&made);
    world.api.put("trainingjobs", copied(&made));
    world.until("it waits", |api| waiting_for(api, "train").contains("which MultiKueue makes in this cluster")).await;
    assert!(world.api.list("workloads").is_empty(), "it makes none");
    world.api.put("workloads", made.clone());
    world.until("it is the owner", |api| workload(api)["metadata"]["ownerReferences"][0]["name"] == "train").await;
    assert_eq!(workload(&world.api)["spec"], made["spec"], "MultiKueue deletes a Workload whose spec differs");
    admit(&world.api, &name, 2);
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    set_fates(&world.api, &[]);
    world.until("it is done", |api| phase(api, "train") == "Succeeded").await;
    world.until("MultiKueue sees it", |api| is(&workload(api), "Finished")).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(phase(&world.api, "train"), "Succeeded", "it stays until MultiKueue deletes it");
    world.api.delete("trainingjobs", "team-a", "train");
    world.until("nothing of it is left", |api| api.list("workloads").is_empty()).await;
}

// SEMANTICS: J23
#[tokio::test(start_paused = true)]
async fn jobs_that_stay_here_need_no_multikueue_and_no_right_to_read_its_configurations() {
    for code in [403, 404] {
        let mut world = World::with_kueue_and_jobs();
        world.api.turn(&["multikueueconfigs"], Mode::Refuses(code));
        set_fates(&world.api, &[("train", "running")]);
        world.start();
        world.api.put("trainingjobs", queued("train", "pytorch", &[("worker", 2)]));
        world.until("it asks", |api| !api.list("workloads").is_empty()).await;
        admit(&world.api, &name_of(&workload(&world.api)), 2);
        world.until("it runs", |api| phase(api, "train") == "Running").await;
        world.rest().await;
        let writes = world.api.writes();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(world.api.writes(), writes, "nothing is written at rest");
    }
}

/// True if the job says that its Workload is for more pods.
fn says_so(api: &Api) -> bool {
    waiting_for(api, "train").contains("has 3 pods of worker, the job 2")
}

/// Creates a copy of which the Workload is for more pods and is admitted, until the copy has just said so. Returns the
/// Workload as MultiKueue has made it.
async fn differing(world: &mut World) -> Value {
    let mut made = prebuilt(world).await;
    made["spec"]["podSets"][0]["count"] = 3.into();
    world.api.put("workloads", made.clone());
    admit(&world.api, &name_of(&made), 3);
    world.api.put("trainingjobs", copied(&made));
    world.until("it says so", says_so).await;
    made
}

// SEMANTICS: J22
#[tokio::test(start_paused = true)]
async fn a_copy_whose_workload_is_for_other_pods_has_none_says_so_and_gives_the_quota_back() {
    let mut world = World::with_kueue_and_jobs();
    world.start();
    let made = differing(&mut world).await;
    assert!(!is(&workload(&world.api), "Finished"), "MultiKueue copies that first");
    world.until("its quota is free", |api| is(&workload(api), "Finished")).await;
    world.rest().await;
    let finished = workload(&world.api)["status"]["conditions"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(finished["reason"], "OutOfSync", "MultiKueue queues the job again");
    assert!(says_so(&world.api), "{}", waiting_for(&world.api, "train"));
    assert_eq!(workload(&world.api)["spec"], made["spec"]);
    assert_eq!(pods(&world.api), [""; 0]);
}

// SEMANTICS: J22
#[tokio::test(start_paused = true)]
async fn a_restarted_controller_gives_the_quota_for_other_pods_back_after_another_minute() {
    let mut world = World::with_kueue_and_jobs();
    world.start();
    differing(&mut world).await;
    world.kill();
    world.start();
    tokio::time::sleep(Duration::from_secs(55)).await;
    assert!(!is(&workload(&world.api), "Finished"), "MultiKueue may not have copied yet what the job says");
    world.until("its quota is free", |api| is(&workload(api), "Finished")).await;
    assert!(says_so(&world.api), "{}", waiting_for(&world.api, "train"));
}
