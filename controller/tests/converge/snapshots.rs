//! A controller that dies while a new snapshot is warmed: the next one publishes it no sooner.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::{Api, Dies, Id};
use super::cluster::{NEWER, dataset};
use super::{World, assert_same, end_state, is_ready};

/// A dataset that is ready on two nodes, and whose origin has changed.
async fn changed() -> World {
    let mut world = World::new(2);
    let mut object = dataset("team-a", "pets", 2);
    object["spec"]["refresh"] = "1h".into();
    world.api.put("datasets", object);
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    world
        .api
        .put("configmaps", json!({"metadata": {"namespace": "test", "name": "origin"}, "data": {"snapshot": NEWER}}));
    world
}

fn is_newer(api: &Api) -> bool {
    api.get("datasets", "team-a", "pets").is_some_and(|pets| pets["status"]["snapshot"] == NEWER)
        && is_ready(api, "pets")
}

/// What is there in the end. The names of jobs have the times of listings in them.
fn end(api: &Api) -> BTreeMap<Id, Value> {
    let mut all = end_state(api);
    all.retain(|(plural, ..), _| !["jobs", "pods"].contains(&plural.as_str()));
    all
}

fn was_cold(api: &Api) -> bool {
    api.get("configmaps", "test", "published-cold").is_some()
}

#[tokio::test(start_paused = true)]
async fn a_controller_killed_at_any_write_publishes_no_snapshot_that_is_cold() {
    let world = changed().await;
    let before = world.api.writes().len();
    world.until("new pods get it", is_newer).await;
    // It is listed again each hour.
    world.api.change("datasets", "team-a", "pets", |dataset| {
        dataset["spec"].as_object_mut().unwrap().remove("refresh");
    });
    world.rest().await;
    let (expected, writes) = (end(&world.api), world.api.writes().len() - before);
    assert!(!was_cold(&world.api) && writes > 10, "{writes}");
    drop(world);
    let mut kills = 0;
    for write in 0..writes {
        for dies in [Dies::BeforeTheWrite, Dies::AfterTheWrite] {
            let mut world = changed().await;
            world.api.die_at(before + write, dies);
            world.until("it is killed or done", |api| api.is_dead() || is_newer(api)).await;
            if !world.api.is_dead() {
                continue;
            }
            kills += 1;
            world.kill();
            world.api.revive();
            world.start();
            let when = format!("killed at {write}, {dies:?}");
            // A new process begins with the clock of the machine, by which it was listed just now.
            tokio::time::sleep(Duration::from_secs(3000)).await;
            world.until("new pods get it", is_newer).await;
            assert!(!was_cold(&world.api), "{when}: {:#?}", world.api.writes());
            world.api.change("datasets", "team-a", "pets", |dataset| {
                dataset["spec"].as_object_mut().unwrap().remove("refresh");
            });
            world.rest().await;
            assert_same(&end(&world.api), &expected, &when);
        }
    }
    assert!(kills > writes, "{kills} kills at {writes} writes");
}
