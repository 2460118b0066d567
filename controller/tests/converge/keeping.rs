//! `spec.keep`: how long nodes keep a dataset that no pod uses.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::Api;
use super::cluster::{ROOM, brought, dataset, node, pod};
use super::{World, condition, is_ready};

/// The bytes of a node's promises.
fn promised(api: &Api, node: &str) -> Vec<u64> {
    let cache = api.get("nodecaches", "", node).unwrap_or_default();
    let promises = cache["spec"]["datasets"].as_array().cloned().unwrap_or_default();
    promises.iter().map(|promise| promise["bytes"].as_u64().unwrap()).collect()
}

fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}

// SEMANTICS: K17
#[tokio::test(start_paused = true)]
async fn the_room_of_an_unused_dataset_is_released_after_its_time_and_not_when_its_last_pod_ends() {
    let mut world = World::new(1);
    let api = world.api.clone();
    let mut object = dataset("team-a", "pets", 1);
    object["spec"]["keep"] = json!({"unusedFor": "4h"});
    api.put("datasets", object);
    api.put("pods", pod("team-a", "reader", "pets"));
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    tokio::time::sleep(hours(6)).await;
    assert_eq!(promised(&api, "n1"), [ROOM], "a pod uses it");
    let before = api.writes().len();
    api.delete("pods", "team-a", "reader");
    tokio::time::sleep(hours(3)).await;
    assert_eq!(promised(&api, "n1"), [ROOM]);
    let written = api.writes().split_off(before);
    assert!(written.iter().all(|write| !write.contains("nodecaches")), "not for a moment: {written:#?}");
    tokio::time::sleep(hours(2)).await;
    assert!(promised(&api, "n1").is_empty());
    assert_eq!(condition(&api, "pets", "Placed"), ("True".into(), "NotWanted".into()));
    api.put("pods", pod("team-a", "again", "pets"));
    world.until("it is kept again", |api| promised(api, "n1") == [ROOM]).await;
}

// SEMANTICS: K17
#[tokio::test(start_paused = true)]
async fn a_dataset_that_was_never_used_is_kept_from_its_creation_on() {
    let mut world = World::new(1);
    let api = world.api.clone();
    let mut object = dataset("team-a", "pets", 1);
    object["spec"]["keep"] = json!({"unusedFor": "4h"});
    api.put("datasets", object);
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    tokio::time::sleep(hours(3)).await;
    assert_eq!(promised(&api, "n1"), [ROOM]);
    tokio::time::sleep(hours(2)).await;
    assert!(promised(&api, "n1").is_empty());
}

/// Simulates that pods brought this many bytes to a node.
fn bring(api: &Api, node: &str, bytes: u64) {
    let mut cached = brought(api, 0);
    cached["bytes"] = bytes.into();
    api.change("nodecaches", "", node, |cache| cache["status"]["snapshots"] = json!([cached]));
}

fn warming_jobs(api: &Api) -> Vec<Value> {
    api.list("jobs").into_iter().filter(|job| job["metadata"]["labels"]["larder.dev/role"] == "warm").collect()
}

// SEMANTICS: K17
#[tokio::test(start_paused = true)]
async fn a_pinned_dataset_keeps_what_a_node_has_and_nothing_is_fetched_for_it() {
    let mut world = World::new(2);
    let api = world.api.clone();
    let mut object = dataset("team-a", "pets", 0);
    object["spec"]["keep"] = json!({"pinned": true});
    api.put("datasets", object);
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    bring(&api, "n1", 450);
    bring(&api, "n2", 90);
    world.until("it is pinned", |api| promised(api, "n1") == [ROOM * 4 / 10]).await;
    tokio::time::sleep(hours(2)).await;
    assert_eq!(promised(&api, "n1"), [ROOM * 4 / 10], "no more than it has");
    assert!(promised(&api, "n2").is_empty(), "less than a tenth");
    assert!(warming_jobs(&api).is_empty(), "{:#?}", warming_jobs(&api));
    assert!(is_ready(&api, "pets"));
    assert_eq!(condition(&api, "pets", "Warm"), ("True".into(), "NotWanted".into()));
}

// SEMANTICS: K17
#[tokio::test(start_paused = true)]
async fn a_node_that_is_wanted_holds_all_of_a_pinned_dataset() {
    let mut world = World::new(0);
    let api = world.api.clone();
    let mut object = dataset("team-a", "pets", 0);
    object["spec"]["keep"] = json!({"pinned": true});
    api.put("datasets", object);
    for name in ["n1", "n2", "n3"] {
        api.put("nodes", node(name));
    }
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    bring(&api, "n2", 500);
    bring(&api, "n3", 300);
    world
        .until("both are pinned", |api| promised(api, "n2") == [ROOM / 2] && promised(api, "n3") == [ROOM * 3 / 10])
        .await;
    api.change("datasets", "team-a", "pets", |dataset| {
        dataset["spec"]["nodes"] = json!({"count": 1, "selector": {"kubernetes.io/hostname": "n2"}});
    });
    world.until("the node that is asked for holds all of it", |api| promised(api, "n2") == [ROOM]).await;
    world.until("it is warm", |api| is_ready(api, "pets")).await;
    let status = api.get("datasets", "team-a", "pets").unwrap()["status"].clone();
    assert_eq!(status["nodes"], json!({"wanted": 1, "holding": 1, "warm": 1}));
    assert_eq!(promised(&api, "n3"), [ROOM * 3 / 10]);
    assert_eq!(warming_jobs(&api).len(), 1);
}
