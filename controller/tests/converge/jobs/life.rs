//! Jobs that are suspended, removed, deleted, and taken over by the next controller.

use std::time::Duration;

use serde_json::json;

use super::super::World;
use super::super::api::Api;
use super::super::kubelet::{failed, set_fates};
use super::gangs::files_of;
use super::{condition, job, phase, pods};

#[tokio::test(start_paused = true)]
async fn a_suspended_job_has_no_pods_until_it_is_resumed() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    world.api.put("trainingjobs", job("train", "single", &[("worker", 2)]));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    let suspend = |suspend: bool| {
        world.api.change("trainingjobs", "team-a", "train", |job| job["spec"]["suspend"] = suspend.into());
    };
    suspend(true);
    world.until("it has no pods", |api| phase(api, "train") == "Suspended" && pods(api).is_empty()).await;
    assert_eq!(condition(&world.api, "train", "QuotaReserved"), ("False".into(), "Suspended".into()));
    world.rest().await;
    set_fates(&world.api, &[("train", "succeeded")]);
    suspend(false);
    world.until("it goes on", |api| phase(api, "train") == "Succeeded").await;
    assert_eq!(pods(&world.api), ["train-worker-0-2", "train-worker-1-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_goes_after_its_time_and_nothing_of_it_stays() {
    let mut world = World::with_jobs(2);
    let mut short = job("train", "single", &[("worker", 1)]);
    short["spec"]["ttlAfterFinished"] = "1h".into();
    world.start();
    world.api.put("trainingjobs", short);
    world.until("it is done", |api| phase(api, "train") == "Succeeded").await;
    tokio::time::sleep(Duration::from_secs(3500)).await;
    assert_eq!(pods(&world.api).len(), 1);
    world.until("it is gone", |api| api.list("trainingjobs").is_empty() && pods(api).is_empty()).await;
}

// SEMANTICS: J11
#[tokio::test(start_paused = true)]
async fn an_administrator_limits_how_long_ended_jobs_stay() {
    let mut world = World::with_jobs(2);
    let with = |name: &str, ttl: Option<&str>| {
        let mut job = job(name, "single", &[("worker", 1)]);
        if let Some(ttl) = ttl {
            job["spec"]["ttlAfterFinished"] = ttl.into();
        }
        job
    };
    world.start();
    for (name, ttl) in [("without", None), ("longer", Some("7d")), ("shorter", Some("1h"))] {
        world.api.put("trainingjobs", with(name, ttl));
    }
    set_fates(&world.api, &[("runs", "running")]);
    world.api.put("trainingjobs", with("runs", Some("1h")));
    let done = |api: &Api| ["without", "longer", "shorter"].iter().all(|name| phase(api, name) == "Succeeded");
    world.until("they are done", done).await;
    let left = |api: &Api| -> Vec<String> {
        let jobs = api.list("trainingjobs");
        jobs.iter().map(|job| job["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    // Without the setting, a job stays for as long as it says.
    world.until("the one with the shorter time is gone", |api| left(api) == ["longer", "runs", "without"]).await;
    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    assert_eq!(left(&world.api), ["longer", "runs", "without"]);
    // The next controller has it.
    world.kill();
    world.keep_ended_jobs = Some(Duration::from_secs(12 * 3600));
    world.start();
    // Its clock begins with the real time, at which the jobs have just ended.
    tokio::time::sleep(Duration::from_secs(12 * 3600 - 1800)).await;
    assert_eq!(left(&world.api), ["longer", "runs", "without"]);
    world.until("those that have ended are gone", |api| left(api) == ["runs"] && pods(api).len() == 1).await;
    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    assert_eq!(phase(&world.api, "runs"), "Running");
}

// SEMANTICS: J2
#[tokio::test(start_paused = true)]
async fn a_deleted_job_leaves_nothing_and_its_name_can_be_used_again() {
    let mut world = World::with_jobs(1);
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    world.api.put("trainingjobs", job("train", "pytorch", &[("worker", 4)]));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    let keep = |finalizers: &[&str]| {
        let change = |pod: &mut serde_json::Value| pod["metadata"]["finalizers"] = json!(finalizers);
        world.api.change("pods", "team-a", "train-worker-0-1", change);
    };
    keep(&["test/kubelet"]);
    world.api.delete("trainingjobs", "team-a", "train");
    set_fates(&world.api, &[("train", "succeeded")]);
    world.api.put("trainingjobs", job("train", "pytorch", &[("worker", 3)]));
    // A pod of the earlier job has the name that the first pod of the new job would get.
    world.until("the other one is done", |api| phase(api, "train") == "Succeeded").await;
    assert!(
        !world.api.list("events").iter().any(|event| event["type"] == "Warning"),
        "{:#?}",
        world.api.list("events")
    );
    let own = ["train-worker-0-2", "train-worker-1-2", "train-worker-2-2"];
    assert_eq!(
        (&pods(&world.api)[0], &pods(&world.api)[1..]),
        (&"train-worker-0-1".to_owned(), &own.map(str::to_owned)[..])
    );
    keep(&[]);
    world.rest().await;
    let uid = world.api.get("trainingjobs", "team-a", "train").unwrap()["metadata"]["uid"].clone();
    let owners: Vec<_> =
        world.api.list("pods").iter().map(|pod| pod["metadata"]["ownerReferences"][0]["uid"].clone()).collect();
    assert_eq!(owners, vec![uid; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_somebody_else_with_the_name_of_its_first_one_holds_no_job_up() {
    let mut world = World::with_jobs(2);
    world.api.put(
        "pods",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "team-a", "name": "train-worker-1-4"},
        "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}),
    );
    world.start();
    world.api.put("trainingjobs", job("train", "single", &[("worker", 2)]));
    world.until("it is done", |api| phase(api, "train") == "Succeeded").await;
    assert_eq!(pods(&world.api), ["train-worker-0-5", "train-worker-1-5"]);
}

// SEMANTICS: J2
#[tokio::test(start_paused = true)]
async fn the_next_controller_goes_on_where_the_last_one_was() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    world.api.put("trainingjobs", job("train", "pytorch", &[("worker", 3)]));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    world.rest().await;
    let writes = world.api.writes();
    world.kill();
    world.start();
    world.rest().await;
    assert_eq!(world.api.writes(), writes, "there is nothing to do");
    world.kill();
    // While no controller runs, one pod is deleted and another one crashes.
    world.api.delete("pods", "team-a", "train-worker-1-1");
    world.api.change("pods", "team-a", "train-worker-2-1", |pod| pod["status"] = failed());
    world.start();
    world
        .until("it runs again", |api| {
            phase(api, "train") == "Running" && pods(api).iter().filter(|pod| pod.ends_with("-2")).count() == 3
        })
        .await;
    let status = world.api.get("trainingjobs", "team-a", "train").unwrap()["status"].clone();
    let restarts = &status["restarts"];
    // The whole gang restarts for the first loss that is found.
    let lost = restarts["evicted"].as_u64().unwrap() + restarts["crashed"].as_u64().unwrap();
    assert_eq!(lost, 1, "{restarts}");
}

#[tokio::test(start_paused = true)]
async fn a_notebook_that_ends_is_suspended_and_can_be_resumed() {
    let mut world = World::with_jobs(1);
    world.start();
    world.api.put("trainingjobs", job("notes", "notebook", &[("notebook", 1)]));
    world.until("it is suspended", |api| phase(api, "notes") == "Suspended").await;
    world.rest().await;
    assert_eq!(world.api.get("trainingjobs", "team-a", "notes").unwrap()["spec"]["suspend"], true);
    set_fates(&world.api, &[("notes", "running")]);
    world.api.change("trainingjobs", "team-a", "notes", |job| job["spec"]["suspend"] = false.into());
    world.until("it runs again", |api| phase(api, "notes") == "Running").await;
    assert!(pods(&world.api).contains(&"notes-notebook-0-2".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn objects_that_the_pods_of_a_job_share_are_recreated_when_it_starts_again() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("mpi", "running")]);
    world.start();
    world.api.put("trainingjobs", job("mpi", "mpi", &[("launcher", 1), ("worker", 2)]));
    world.until("it runs", |api| phase(api, "mpi") == "Running").await;
    world.api.delete("services", "team-a", "mpi");
    for (plural, objects) in [("secrets", world.api.list("secrets")), ("configmaps", files_of(&world.api, "mpi"))] {
        assert_eq!(objects.len(), 1, "{plural}");
        world.api.delete(plural, "team-a", objects[0]["metadata"]["name"].as_str().unwrap());
    }
    let suspend = |suspend: bool| {
        world.api.change("trainingjobs", "team-a", "mpi", |job| job["spec"]["suspend"] = suspend.into());
    };
    suspend(true);
    world.until("it has no pods", |api| phase(api, "mpi") == "Suspended" && pods(api).is_empty()).await;
    suspend(false);
    world.until("it runs again", |api| phase(api, "mpi") == "Running").await;
    assert!(world.api.get("services", "team-a", "mpi").is_some());
    assert_eq!((world.api.list("secrets").len(), files_of(&world.api, "mpi").len()), (1, 1));
}
