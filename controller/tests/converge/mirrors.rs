//! Mirrors get each new snapshot, and nodes learn the labels by which mirrors are near.

use serde_json::{Value, json};

use super::api::Api;
use super::cluster::{NEWER, SNAPSHOT, claim, dataset};
use super::{World, is_ready};

fn mirrors(api: &Api) -> Value {
    api.get("datasets", "team-a", "pets").unwrap()["status"]["mirrors"].clone()
}

// SEMANTICS: M8
#[tokio::test(start_paused = true)]
async fn a_mirror_gets_each_snapshot_and_nodes_the_labels_by_which_it_is_near() {
    let mut world = World::new(2);
    let api = world.api.clone();
    api.change("nodes", "", "n1", |node| node["metadata"]["labels"]["site"] = "b".into());
    let mut object = dataset("team-a", "pets", 1);
    object["spec"]["refresh"] = "30m".into();
    object["spec"]["mirrors"] = json!([
        {"name": "near", "origin": {"source": "s3://copy/pets"}, "near": {"site": "b"}, "kept": true},
    ]);
    api.put("datasets", object);
    api.put("persistentvolumeclaims", claim("team-b", "granted", "team-a/pets"));
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    world.until("the mirror has it", |api| mirrors(api)[0]["snapshot"] == SNAPSHOT).await;
    let mirror = mirrors(&api)[0].clone();
    assert_eq!((&mirror["percent"], &mirror["behindBytes"]), (&100.into(), &0.into()));
    let labels = |node: &str| {
        let cache = api.get("nodecaches", "", node).unwrap_or_default();
        cache["spec"]["labels"].clone()
    };
    world.until("the node knows its label", |_| labels("n1") == json!({"site": "b"})).await;
    assert_eq!(labels("n2"), Value::Null);
    let is_told = |volume: &Value| {
        let attribute = volume["spec"]["csi"]["volumeAttributes"]["mirrors"].as_str().unwrap_or_default();
        attribute.contains("s3://copy/pets")
    };
    world.until("the volume has it", |api| api.list("persistentvolumes").iter().any(is_told)).await;

    let origin = json!({"metadata": {"namespace": "test", "name": "origin"}, "data": {"snapshot": NEWER}});
    api.put("configmaps", origin);
    world.until("the mirror has the next one", |api| mirrors(api)[0]["snapshot"] == NEWER).await;

    api.change("datasets", "team-a", "pets", |pets| {
        pets["spec"].as_object_mut().unwrap().retain(|field, _| !["mirrors", "refresh"].contains(&field.as_str()));
    });
    world.until("it is forgotten", |api| mirrors(api).is_null()).await;
    world.until("so are the labels", |_| labels("n1").as_object().is_none_or(serde_json::Map::is_empty)).await;
}
