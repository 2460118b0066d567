//! A new snapshot is warmed beside the old one, used, and rolled back. A controller that is killed in between does not
//! publish it earlier.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::{Api, Dies, Id};
use super::cluster::{NEWER, SNAPSHOT, dataset};
use super::{World, assert_same, condition, end_state, is_ready};

/// A dataset that is ready on two nodes, and whose origin has changed since.
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

/// The final state. The names of jobs contain times of listings, so they are excluded.
fn end(api: &Api) -> BTreeMap<Id, Value> {
    let mut all = end_state(api);
    all.retain(|(plural, ..), _| !["jobs", "pods"].contains(&plural.as_str()));
    all
}

fn was_cold(api: &Api) -> bool {
    api.get("configmaps", "test", "published-cold").is_some()
}

// SEMANTICS: K15
#[tokio::test(start_paused = true)]
async fn a_controller_killed_at_any_write_publishes_no_snapshot_that_is_cold() {
    let world = changed().await;
    let before = world.api.writes().len();
    world.until("new pods get it", is_newer).await;
    // The origin is listed again every hour.
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
            // A new process starts with the machine's clock, according to which the last listing was a moment ago.
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

#[tokio::test(start_paused = true)]
async fn a_new_snapshot_is_warmed_beside_the_old_one_then_used_and_rolled_back() {
    let mut world = World::new(2);
    let mut object = dataset("team-a", "pets", 2);
    object["spec"]["refresh"] = "1h".into();
    world.api.put("datasets", object);
    world.api.put(
        "deployments",
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "namespace": "team-a", "name": "server", "annotations": {"larder.dev/follow": "pets"},
            },
            "spec": {"template": {"metadata": {}}},
        }),
    );
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    let rolled_to = |api: &Api| {
        let server = api.get("deployments", "team-a", "server").unwrap();
        server["spec"]["template"]["metadata"]["annotations"]["larder.dev/snapshot"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    world.until("the Deployment has it", |api| rolled_to(api) == SNAPSHOT).await;
    world
        .api
        .put("configmaps", json!({"metadata": {"namespace": "test", "name": "origin"}, "data": {"snapshot": NEWER}}));
    let current = |api: &Api| api.get("datasets", "team-a", "pets").unwrap()["status"]["snapshot"].clone();
    world.until("it is warmed", |api| api.get("datasets", "team-a", "pets").unwrap()["status"]["next"] == NEWER).await;
    assert_eq!((current(&world.api), rolled_to(&world.api)), (SNAPSHOT.into(), SNAPSHOT.to_owned()));
    world.until("new pods get it", |api| current(api) == NEWER).await;
    let warm = |api: &Api, snapshot: &str| {
        api.list("nodecaches").iter().all(|cache| cache["status"].to_string().contains(snapshot))
    };
    assert!(warm(&world.api, NEWER), "it was warm before");
    world.until("the Deployment is rolled", |api| rolled_to(api) == NEWER).await;
    world
        .until("the old one is dropped", |api| {
            api.list("nodecaches").iter().all(|cache| !cache["spec"].to_string().contains(SNAPSHOT))
        })
        .await;
    world.api.change("datasets", "team-a", "pets", |dataset| {
        dataset["spec"]["snapshot"] = SNAPSHOT.into();
        dataset["spec"].as_object_mut().unwrap().remove("refresh");
    });
    world.until("it is rolled back", |api| current(api) == SNAPSHOT && rolled_to(api) == SNAPSHOT).await;
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    assert!(warm(&world.api, SNAPSHOT));

    // Forward again while the job of the first roll still exists: pods read what a job has published.
    let publishing = |api: &Api| {
        let jobs = api.list("jobs").into_iter();
        jobs.filter(|job| job["spec"]["template"]["spec"]["containers"][0]["args"][1].to_string().contains(NEWER))
            .count()
    };
    assert_eq!(publishing(&world.api), 1);
    world.api.change("datasets", "team-a", "pets", |dataset| dataset["spec"]["snapshot"] = NEWER.into());
    world.until("it is rolled forward", |api| current(api) == NEWER && rolled_to(api) == NEWER).await;
    assert_eq!(publishing(&world.api), 2);
}

#[tokio::test(start_paused = true)]
async fn a_new_snapshot_for_which_there_turns_out_to_be_too_little_room_is_used_as_far_as_it_goes() {
    let mut world = World::new(2);
    let mut object = dataset("team-a", "pets", 2);
    object["spec"]["refresh"] = "1h".into();
    world.api.put("datasets", object);
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    for (name, data) in [("origin", json!({"snapshot": NEWER})), ("newer-is-too-large", Value::Null)] {
        let map = json!({"metadata": {"namespace": "test", "name": name}, "data": data});
        world.api.put("configmaps", map);
    }
    let pets = |api: &Api| api.get("datasets", "team-a", "pets").unwrap();
    world.until("new pods get it", |api| pets(api)["status"]["snapshot"] == NEWER).await;
    world
        .until("it is reported", |api| condition(api, "pets", "Degraded") == ("True".into(), "PromiseUnkept".into()))
        .await;
}
