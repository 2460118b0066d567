//! A Dataset that this version of the controller cannot parse: none of its objects are deleted.

use serde_json::{Value, json};

use crate::api::Api;
use crate::cluster::{claim, dataset};
use crate::{World, assert_same, end_state};

const SHARED: &str = "larder-system";

/// Two datasets with every object that the controller creates for one: claims, volumes, promises, labels, and entries
/// for inline volumes.
async fn served() -> World {
    let mut world = World::new(2);
    let mut shared = dataset(SHARED, "shared", 2);
    shared["spec"]["origin"].as_object_mut().unwrap().remove("secretRef");
    world.api.put("datasets", shared);
    world.api.put("datasets", dataset("team-a", "pets", 2));
    world.api.put("persistentvolumeclaims", claim("team-b", "granted", "team-a/pets"));
    world.start();
    world.rest().await;
    world
}

fn for_each_dataset(api: &Api, change: impl Fn(&mut Value)) {
    for (namespace, name) in [(SHARED, "shared"), ("team-a", "pets")] {
        api.change("datasets", namespace, name, &change);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_taken_from_a_dataset_that_another_version_wrote() {
    let written_by_another_version: [fn(&mut Value); 2] = [
        |dataset| dataset["status"]["lagging"] = json!([{"node": "n1", "reason": "OfTheNextVersion"}]),
        |dataset| dataset["spec"]["origin"] = "of the next version".into(),
    ];
    for change in written_by_another_version {
        let mut world = served().await;
        world.kill();
        let spec = world.api.get("datasets", "team-a", "pets").unwrap()["spec"].clone();
        for_each_dataset(&world.api, change);
        let (writes, before) = (world.api.writes(), world.api.all());
        assert!(writes.iter().any(|write| write.contains("persistentvolumes")), "{writes:#?}");
        world.start();
        world.rest().await;
        assert_eq!(world.api.writes(), writes);
        assert_eq!(world.api.all(), before);

        // Once it can be parsed again, it continues as if nothing had happened.
        if world.api.get("datasets", "team-a", "pets").unwrap()["spec"] != spec {
            world.api.change("datasets", "team-a", "pets", |dataset| dataset["spec"] = spec);
            world.rest().await;
            world.api.delete("datasets", "team-a", "pets");
            world.until("it is gone", |api| api.get("datasets", "team-a", "pets").is_none()).await;
            world.rest().await;
            assert!(world.api.list("persistentvolumes").iter().all(|volume| !volume.to_string().contains("pets")));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn objects_of_an_unreadable_dataset_are_deleted_with_it() {
    let mut world = served().await;
    let api = world.api.clone();
    world.kill();
    for_each_dataset(&api, |dataset| {
        dataset["spec"] = json!({"origin": 7});
        dataset["metadata"].as_object_mut().unwrap().remove("finalizers");
    });
    world.start();
    world.rest().await;
    api.delete("datasets", "team-a", "pets");
    api.delete("datasets", SHARED, "shared");
    world.rest().await;
    drop(world);

    let mut without = World::new(2);
    without.api.put("persistentvolumeclaims", claim("team-b", "granted", "team-a/none"));
    without.start();
    without.rest().await;
    let kinds = |api: &Api| -> std::collections::BTreeMap<_, _> {
        let of_us = ["jobs", "persistentvolumes", "nodecaches", "nodes", "configmaps"];
        end_state(api).into_iter().filter(|((plural, ..), _)| of_us.contains(&plural.as_str())).collect()
    };
    assert_same(&kinds(&api), &kinds(&without.api), "after the end of what could not be read");
}
