//! Pods that the scheduler does not bind to the nodes of their plan, and pods that have no plan.

use std::time::Duration;

use serde_json::json;

use super::super::World;
use super::super::cluster::node;
use super::super::kubelet::set_fates;
use super::queues::{queue, queued};
use super::{condition, job, nodes_of, phase, pods, waiting_for};

// SEMANTICS: J14
#[tokio::test(start_paused = true)]
async fn a_notebook_whose_files_are_in_another_zone_starts_there() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("notes", "only n2")]);
    world.start();
    let mut notes = job("notes", "notebook", &[("notebook", 1)]);
    let home = json!({"name": "home", "persistentVolumeClaim": {"claimName": "home"}});
    notes["spec"]["roles"][0]["template"]["spec"]["volumes"] = json!([home]);
    world.api.put("trainingjobs", notes);
    world.until("it runs", |api| phase(api, "notes") == "Running").await;
    assert_eq!(
        (pods(&world.api), nodes_of(&world.api, "notes")),
        (vec!["notes-notebook-0-1".into()], vec!["n2".into()])
    );
    // It is resumed there as well.
    let suspend = |suspend: bool| {
        world.api.change("trainingjobs", "team-a", "notes", |job| job["spec"]["suspend"] = suspend.into());
    };
    suspend(true);
    world.until("it has no pod", |api| phase(api, "notes") == "Suspended" && pods(api).is_empty()).await;
    suspend(false);
    world.until("it runs again", |api| phase(api, "notes") == "Running").await;
    assert_eq!(
        (pods(&world.api), nodes_of(&world.api, "notes")),
        (vec!["notes-notebook-0-2".into()], vec!["n2".into()])
    );
}

// SEMANTICS: J14
#[tokio::test(start_paused = true)]
async fn a_single_pod_that_its_planned_node_refuses_starts_elsewhere() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train", "only n2")]);
    world.start();
    world.api.put("trainingjobs", job("train", "single", &[("worker", 1)]));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!((pods(&world.api), nodes_of(&world.api, "train")), (vec!["train-worker-0-2".into()], vec!["n2".into()]));
}

// SEMANTICS: J14
#[tokio::test(start_paused = true)]
async fn a_pod_of_a_gang_is_not_planned_again_for_the_node_that_refused_it() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train-worker-1", "only n2"), ("train", "running")]);
    world.start();
    world.api.put("trainingjobs", job("train", "pytorch", &[("worker", 2)]));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(pods(&world.api), ["train-worker-0-1", "train-worker-1-2"]);
    assert_eq!(nodes_of(&world.api, "train"), ["n1", "n2"]);
}

// SEMANTICS: J14
#[tokio::test(start_paused = true)]
async fn pods_of_a_role_that_listen_on_ports_of_their_nodes_get_a_node_each() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train", "running")]);
    world.start();
    let mut train = job("train", "pytorch", &[("worker", 2)]);
    train["spec"]["roles"][0]["template"]["spec"]["hostNetwork"] = true.into();
    world.api.put("trainingjobs", train);
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!(pods(&world.api), ["train-worker-0-1", "train-worker-1-1"]);
    assert_eq!(nodes_of(&world.api, "train"), ["n1", "n2"]);
}

// SEMANTICS: J17
#[tokio::test(start_paused = true)]
async fn a_pool_of_no_nodes_grows_for_the_first_job_that_has_quota() {
    let mut world = World::with_jobs(0);
    world.wait_for_nodes = Some(Duration::from_secs(900));
    world.api.put("queues", queue("red", 3));
    set_fates(&world.api, &[("", "pending")]);
    world.start();
    for (name, workers) in [("first", 2), ("second", 1), ("beyond", 4)] {
        world.api.put("trainingjobs", queued(name, "red", workers));
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    // An autoscaler counts pods that the scheduler cannot bind and that name no node.
    assert_eq!(pods(&world.api), ["first-worker-0-1", "first-worker-1-1"]);
    assert!(world.api.list("pods").iter().all(|pod| pod["spec"]["affinity"].is_null()));
    assert_eq!(condition(&world.api, "second", "Placed").1, "LargerThanTheCluster");
    assert_eq!(condition(&world.api, "beyond", "QuotaReserved").1, "QuotaUsed");
    // Nodes that do not come are waited for once more after a pause, and the others have their turn meanwhile.
    tokio::time::sleep(Duration::from_secs(895)).await;
    assert_eq!(phase(&world.api, "first"), "Queued");
    assert!(waiting_for(&world.api, "first").contains("2 pods were not bound in time"));
    world.until("the next one has its pod", |api| pods(api) == ["second-worker-0-1"]).await;
    world.api.put("nodes", node("n1"));
    set_fates(&world.api, &[("", "running")]);
    world.until("both run", |api| phase(api, "first") == "Running" && phase(api, "second") == "Running").await;
}

// SEMANTICS: J1, J13
#[tokio::test(start_paused = true)]
async fn without_an_autoscaler_or_a_queue_a_job_that_lacks_nodes_has_no_pods() {
    let of_queue = queued("train", "red", 2);
    let free = job("train", "pytorch", &[("worker", 2)]);
    for (wait_for_nodes, train) in [(None, of_queue), (Some(Duration::from_secs(900)), free)] {
        let mut world = World::with_jobs(0);
        world.wait_for_nodes = wait_for_nodes;
        world.api.put("queues", queue("red", 2));
        world.start();
        world.api.put("trainingjobs", train);
        world.rest().await;
        let there = (phase(&world.api, "train"), pods(&world.api).len());
        assert_eq!(there, ("Queued".into(), 0), "{wait_for_nodes:?}");
    }
}
