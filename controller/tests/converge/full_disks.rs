//! Nodes whose caches have no room, because their disks have none.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::Api;
use super::cluster::dataset;
use super::{World, condition, is_ready};

/// The message of a condition of the Dataset `pets`.
fn message(api: &Api, kind: &str) -> String {
    let dataset = api.get("datasets", "team-a", "pets").unwrap();
    let conditions = dataset["status"]["conditions"].as_array().unwrap().clone();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap();
    found["message"].as_str().unwrap().to_owned()
}

/// The Events about NodeCaches, as node and reason.
fn events(api: &Api) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let events = api.list("events").into_iter().filter(|event| event["regarding"]["kind"] == "NodeCache");
    let mut events: Vec<_> = events.map(|event| (text(&event["regarding"]["name"]), text(&event["reason"]))).collect();
    events.sort();
    events
}

#[tokio::test(start_paused = true)]
async fn a_dataset_is_not_placed_on_full_disks_and_the_reason_is_the_nodes_own() {
    let mut world = World::new(2);
    let full = json!({"metadata": {"namespace": "test", "name": "disks-are-full"}});
    world.api.put("configmaps", full);
    world.api.put("datasets", dataset("team-a", "pets", 2));
    world.start();
    let refused = ("False".into(), "CachesLackRoom".into());
    world.until("it is reported", |api| condition(api, "pets", "Placed") == refused).await;
    world
        .until("the nodes say so", |api| message(api, "Placed").contains("the cache has no room: the disk is full"))
        .await;
    assert!(!message(&world.api, "Placed").contains("spec.cache.size"), "{}", message(&world.api, "Placed"));
    let full = |node: &str| (node.to_owned(), "NoRoom".to_owned());
    world.until("there are events", |api| events(api) == [full("n1"), full("n2")]).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(events(&world.api).len(), 2);
    world.api.delete("configmaps", "test", "disks-are-full");
    // Each node reports again after a change of its object.
    for node in ["n1", "n2"] {
        world.api.change("nodecaches", "", node, |cache| cache["spec"]["clean"] = json!([]));
    }
    world.until("it is ready", |api| is_ready(api, "pets")).await;
}
