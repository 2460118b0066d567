//! Slots for warming go round among namespaces.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::World;
use super::api::Api;
use super::cluster::dataset;

/// A dataset that all nodes should hold.
fn bulk(namespace: &str) -> Value {
    let mut object = dataset(namespace, "bulk", 0);
    object["spec"]["nodes"]["count"] = "all".into();
    object
}

/// The namespaces of the warming jobs, with their names.
fn warming(api: &Api) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::<String, Vec<String>>::new();
    for job in api.list("jobs") {
        if job["metadata"]["labels"]["larder.dev/role"] == "warm" {
            let text = |key: &str| job["metadata"][key].as_str().unwrap().to_owned();
            found.entry(text("namespace")).or_default().push(text("name"));
        }
    }
    found
}

fn counts(api: &Api) -> Vec<usize> {
    let of = warming(api);
    ["aaa", "mmm", "zzz"].iter().map(|namespace| of.get(*namespace).map_or(0, Vec::len)).collect()
}

/// A pod of this namespace gives up its node, so that its slot is free.
fn end_one(api: &Api, namespace: &str) {
    let name = warming(api)[namespace][0].clone();
    api.delete("jobs", namespace, &name);
}

// SEMANTICS: K21
#[tokio::test(start_paused = true)]
async fn slots_that_become_free_go_to_the_namespaces_with_the_fewest() {
    let mut world = World::new(12);
    let api = world.api.clone();
    // No pod ends on its own.
    api.put("configmaps", json!({"metadata": {"namespace": "test", "name": "hold"}, "data": {"jobs": "larder-warm"}}));
    api.put("datasets", bulk("aaa"));
    world.start();
    // Of eight slots one is for jobs with GPUs.
    world.until("the first has all slots", |api| counts(api) == [7, 0, 0]).await;
    api.put("datasets", bulk("mmm"));
    api.put("datasets", bulk("zzz"));
    let waits = |api: &Api, namespace: &str| {
        let dataset = api.get("datasets", namespace, "bulk").unwrap();
        dataset["status"]["lagging"].to_string().contains("waits for a slot")
    };
    world.until("the others wait", |api| waits(api, "mmm") && waits(api, "zzz")).await;
    assert_eq!(counts(&api), [7, 0, 0]);
    for expected in [[6, 1, 0], [5, 1, 1], [4, 2, 1], [3, 2, 2]] {
        end_one(&api, "aaa");
        let is_next = |api: &Api| {
            let now = counts(api);
            // The two that wait may change places.
            now == expected || now == [expected[0], expected[2], expected[1]]
        };
        world.until("another gets the slot", is_next).await;
    }
    // Two of each are left, and the one whose turn is longest ago comes first.
    end_one(&api, "aaa");
    world.until("the first is served again", |api| counts(api) == [3, 2, 2]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(counts(&api), [3, 2, 2], "all slots are taken");
}
