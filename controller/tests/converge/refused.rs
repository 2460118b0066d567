//! Writes that the API rejects permanently: the dataset continues without them, and its status contains the API's
//! message.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::Api;
use super::cluster::{claim, dataset};
use super::{World, condition, is_ready};

fn why_degraded(api: &Api, name: &str) -> String {
    let dataset = api.get("datasets", "team-a", name).unwrap();
    let conditions = dataset["status"]["conditions"].as_array().unwrap().clone();
    let degraded = conditions.into_iter().find(|condition| condition["type"] == "Degraded").unwrap();
    degraded["message"].as_str().unwrap().to_owned()
}

fn is_refused(api: &Api, name: &str) -> bool {
    condition(api, name, "Degraded") == ("True".into(), "WriteRefused".into())
}

fn is_bound(api: &Api, namespace: &str, name: &str) -> bool {
    api.get("persistentvolumeclaims", namespace, name).is_some_and(|claim| claim["status"]["phase"] == "Bound")
}

fn follower() -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": "team-a", "name": "server", "annotations": {"larder.dev/follow": "pets"}},
        "spec": {"template": {"metadata": {}}},
    })
}

// SEMANTICS: K14
#[tokio::test(start_paused = true)]
async fn a_claim_in_the_way_stops_nothing_else_and_is_named() {
    let mut world = World::new(2);
    let api = world.api.clone();
    let mut old = claim("team-a", "pets", "");
    old["spec"]["storageClassName"] = "standard".into();
    old["metadata"].as_object_mut().unwrap().remove("annotations");
    api.put("persistentvolumeclaims", old);
    api.put("persistentvolumeclaims", claim("team-b", "granted", "team-a/pets"));
    api.put("deployments", follower());
    api.put("datasets", dataset("team-a", "pets", 2));
    world.start();
    world.until("it is reported", |api| is_refused(api, "pets")).await;
    let why = why_degraded(&api, "pets");
    assert!(why.starts_with("PersistentVolumeClaim team-a/pets: ") && why.contains("AlreadyExists"), "{why}");
    let rolled = |api: &Api| api.get("deployments", "team-a", "server").unwrap().to_string().contains("aaaa");
    world.until("the rest goes on", |api| is_bound(api, "team-b", "granted") && rolled(api)).await;
    assert_eq!(condition(&api, "pets", "Warm"), ("True".into(), "Cached".into()));
    // Without other changes, the write is retried once a minute, and nothing else is written.
    tokio::time::sleep(Duration::from_secs(600)).await;
    let before = api.writes().len();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let tries = api.writes().split_off(before);
    assert!(tries.len() <= 60 && tries.iter().all(|write| write == "POST persistentvolumeclaims/"), "{tries:#?}");
    api.delete("persistentvolumeclaims", "team-a", "pets");
    world.until("it has its claim", |api| is_bound(api, "team-a", "pets") && !is_refused(api, "pets")).await;
}

// SEMANTICS: K14
#[tokio::test(start_paused = true)]
async fn a_quota_or_a_policy_is_the_reason_and_the_rest_is_written() {
    for (denied, kind) in [
        ("POST team-a/jobs/larder-import", "Job team-a/larder-import"),
        ("POST team-a/jobs/larder-warm", "Job team-a/larder-warm"),
        ("POST team-a/persistentvolumeclaims/larder-warm", "PersistentVolumeClaim team-a/larder-warm"),
        ("PATCH team-a/deployments/", "Deployment team-a/server"),
    ] {
        for code in [403, 422] {
            let mut world = World::new(2);
            let api = world.api.clone();
            api.put("deployments", follower());
            api.put("datasets", dataset("team-a", "pets", 2));
            api.deny(denied, code);
            world.start();
            world.until("it is reported", |api| is_refused(api, "pets")).await;
            let why = why_degraded(&api, "pets");
            assert!(why.starts_with(kind) && why.contains("Denied"), "{denied}: {why}");
            world.rest().await;
            let jobs = api.list("jobs").iter().filter(|job| job.to_string().contains("larder-warm")).count();
            let is_without_claim = denied.contains("claims");
            assert!(!is_without_claim || jobs == 0, "a pod without its claim would only wait");
            api.allow();
            world.until("it goes on", |api| is_ready(api, "pets") && !is_refused(api, "pets")).await;
        }
    }
}

// SEMANTICS: K14
#[tokio::test(start_paused = true)]
async fn an_event_that_another_namespace_refuses_holds_nothing_up() {
    let mut world = World::new(2);
    let api = world.api.clone();
    api.put("persistentvolumeclaims", claim("team-c", "foreign", "team-a/pets"));
    api.deny("POST team-c/events/", 403);
    api.put("datasets", dataset("team-a", "pets", 2));
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    world.rest().await;
    assert!(!is_refused(&api, "pets"), "it is not about this dataset");
    assert!(is_bound(&api, "team-a", "pets"));
}

// SEMANTICS: K14
#[tokio::test(start_paused = true)]
async fn nothing_is_made_for_a_dataset_whose_finalizer_is_refused() {
    let mut world = World::new(1);
    let api = world.api.clone();
    api.deny("PATCH team-a/datasets/pets", 403);
    api.put("datasets", dataset("team-a", "pets", 1));
    world.start();
    tokio::time::sleep(Duration::from_secs(600)).await;
    // Without a finalizer it could be deleted and leave behind the objects that were created for it.
    assert!(api.list("jobs").is_empty() && api.list("persistentvolumes").is_empty());
    api.allow();
    world.until("it goes on", |api| is_ready(api, "pets")).await;
}
