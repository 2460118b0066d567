//! Cached bytes that are dropped on request.

use std::time::Duration;

use serde_json::json;

use super::api::{Api, Dies};
use super::cluster::{brought, dataset, node};
use super::{World, assert_same, end_state, is_ready};

/// A cluster whose dataset is warm on two nodes and partially cached on three others, of which one has it mounted and
/// one is not ready.
async fn partly_cached() -> World {
    let mut world = World::new(2);
    world.api.put("datasets", dataset("team-a", "pets", 2));
    world.start();
    world.rest().await;
    for (name, mounts) in [("closed", 0), ("open", 1), ("away", 0)] {
        let mut node = node(name);
        if name == "away" {
            node["status"]["conditions"][0]["status"] = "False".into();
        }
        world.api.put("nodes", node);
        world
            .until("it reports", |api| api.get("nodecaches", "", name).is_some_and(|it| it["status"].is_object()))
            .await;
        let cached = brought(&world.api, mounts);
        world.api.change("nodecaches", "", name, |cache| cache["status"]["snapshots"] = json!([cached]));
    }
    world.rest().await;
    world
}

fn cached_on(api: &Api, node: &str) -> u64 {
    let cache = api.get("nodecaches", "", node).unwrap();
    cache["status"]["snapshots"].as_array().into_iter().flatten().map(|cached| cached["bytes"].as_u64().unwrap()).sum()
}

/// Requests that bytes are dropped which were last used before now. Returns the value of the annotation.
fn ask_to_clean(api: &Api) -> String {
    let now = api.now();
    api.change("datasets", "team-a", "pets", |dataset| {
        dataset["metadata"]["annotations"] = serde_json::json!({"larder.dev/clean": now});
    });
    now
}

#[tokio::test(start_paused = true)]
async fn cached_bytes_that_nothing_mounts_go_on_request_and_promised_ones_are_fetched_again() {
    let world = partly_cached().await;
    let api = &world.api;
    assert_eq!(["n1", "n2", "closed", "open", "away"].map(|node| cached_on(api, node)), [1000, 1000, 500, 500, 500]);
    let jobs = |api: &Api| api.writes().iter().filter(|write| **write == "POST jobs/").count();
    let (jobs_before, writes_before) = (jobs(api), api.writes().len());
    // Nothing else is pending, so only this request causes writes.
    let asked = ask_to_clean(api);
    world
        .until("it is done", |api| api.get("datasets", "team-a", "pets").unwrap()["status"]["cleaned"] == *asked)
        .await;
    world.until("it is warm again", |api| is_ready(api, "pets") && jobs(api) == jobs_before + 2).await;
    world.rest().await;
    assert_eq!(["n1", "n2", "closed", "open"].map(|node| cached_on(api, node)), [1000, 1000, 0, 500]);
    assert_eq!(cached_on(api, "away"), 500, "nobody waits for a node that is not ready");
    for cache in api.list("nodecaches") {
        assert!(cache["spec"]["clean"].is_null(), "no entry is left: {cache}");
    }
    // One write to each ready node at the beginning, and one at the end.
    let writes = &api.writes()[writes_before..];
    let to_nodes = writes.iter().filter(|write| write.starts_with("PATCH nodecaches/")).count();
    assert_eq!(to_nodes, 2 * 4, "{writes:#?}");
    let count = api.writes().len();
    tokio::time::sleep(Duration::from_secs(3 * 3600)).await;
    assert_eq!(api.writes().len(), count, "at rest nothing is written");
}

#[tokio::test(start_paused = true)]
async fn a_controller_killed_while_it_cleans_ends_in_the_same_state() {
    let world = partly_cached().await;
    let before = world.api.writes().len();
    let asked = ask_to_clean(&world.api);
    world.rest().await;
    let (expected, writes) = (end_state(&world.api), world.api.writes().len() - before);
    assert_eq!(world.api.get("datasets", "team-a", "pets").unwrap()["status"]["cleaned"], *asked);
    assert!(is_ready(&world.api, "pets") && writes > 10, "{writes}");
    drop(world);
    let mut kills = 0;
    for write in 0..writes {
        for dies in [Dies::BeforeTheWrite, Dies::AfterTheWrite] {
            let mut world = partly_cached().await;
            let asked = ask_to_clean(&world.api);
            world.api.die_at(world.api.writes().len() + write, dies);
            world.rest().await;
            if !world.api.is_dead() {
                // This run combined more events, and therefore made fewer writes.
                continue;
            }
            kills += 1;
            world.kill();
            world.api.revive();
            world.start();
            // A new process starts with the machine's clock, and the stopped clock of the test is ahead of it.
            let is_done = |api: &Api| api.get("datasets", "team-a", "pets").unwrap()["status"]["cleaned"] == *asked;
            world.until("it is done", is_done).await;
            world.rest().await;
            assert_same(&end_state(&world.api), &expected, &format!("killed at {write}, {dies:?}"));
        }
    }
    assert!(kills > writes, "{kills} kills at {writes} writes");
}
