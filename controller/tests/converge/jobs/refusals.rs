//! Pods that the scheduler does not bind to the nodes of their plan.

use serde_json::json;

use super::super::World;
use super::super::kubelet::set_fates;
use super::{job, nodes_of, phase, pods};

// SEMANTICS: J15
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

// SEMANTICS: J15
#[tokio::test(start_paused = true)]
async fn a_single_pod_that_its_planned_node_refuses_starts_elsewhere() {
    let mut world = World::with_jobs(2);
    set_fates(&world.api, &[("train", "only n2")]);
    world.start();
    world.api.put("trainingjobs", job("train", "single", &[("worker", 1)]));
    world.until("it runs", |api| phase(api, "train") == "Running").await;
    assert_eq!((pods(&world.api), nodes_of(&world.api, "train")), (vec!["train-worker-0-2".into()], vec!["n2".into()]));
}

// SEMANTICS: J15
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

// SEMANTICS: J15
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
