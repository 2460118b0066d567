//! Deletions are not repeated if Kubernetes delays them, or if watch events arrive late or in another order than
//! responses.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::Api;
use super::cluster::dataset;
use super::{World, is_ready};

/// The delay of a response. It makes repeated writes take time, so that a test of an endless loop ends.
const SLOW: Duration = Duration::from_secs(2);

fn deletions(api: &Api) -> Vec<String> {
    api.writes().into_iter().filter(|write| write.starts_with("DELETE")).collect()
}

// SEMANTICS: K14
#[tokio::test(start_paused = true)]
async fn a_volume_that_kubernetes_keeps_is_deleted_once_and_made_anew_when_it_is_gone() {
    let mut world = World::new(1);
    let api = world.api.clone();
    api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    world.rest().await;
    api.answer_after(SLOW);
    let volumes = api.list("persistentvolumes");
    let name = volumes[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let protect = |volume: &mut Value| volume["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
    api.change("persistentvolumes", "", &name, protect);
    api.change("datasets", "team-a", "pets", |dataset| dataset["spec"]["cache"] = json!({"size": "500"}));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(
        deletions(&api),
        ["DELETE persistentvolumeclaims/pets".to_owned(), format!("DELETE persistentvolumes/{name}")]
    );
    api.change("persistentvolumes", "", &name, |volume| volume["metadata"]["finalizers"] = json!([]));
    let is_new = |api: &Api| {
        let volume = api.get("persistentvolumes", "", &name);
        volume.is_some_and(|volume| volume["spec"]["csi"]["volumeAttributes"]["cacheSize"] == "500")
            && api.get("persistentvolumeclaims", "team-a", "pets").is_some()
    };
    world.until("it is made anew", is_new).await;
}

// SEMANTICS: K14
#[tokio::test(start_paused = true)]
async fn while_a_watch_is_broken_nothing_is_deleted_twice() {
    let mut world = World::new(1);
    let api = world.api.clone();
    api.put("datasets", dataset("team-a", "pets", 1));
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    world.rest().await;
    api.break_watches(&["jobs", "persistentvolumes", "persistentvolumeclaims"]);
    api.answer_after(SLOW);
    api.delete("datasets", "team-a", "pets");
    tokio::time::sleep(Duration::from_secs(300)).await;
    let mut deleted = deletions(&api);
    let all = deleted.len();
    deleted.sort();
    deleted.dedup();
    assert_eq!(deleted.len(), all, "{:#?}", deletions(&api));
    assert!(all >= 4, "claims, volumes and jobs: {deleted:#?}");
    api.break_watches(&[]);
    world.until("it is gone", |api| api.list("datasets").is_empty()).await;
}

// SEMANTICS: K14
#[tokio::test(start_paused = true)]
async fn an_object_deleted_before_its_creation_is_answered_stays_deleted() {
    let mut world = World::new(1);
    let api = world.api.clone();
    api.answer_after(SLOW);
    api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    let first = |api: &Api| api.list("jobs").first().cloned();
    world.until("its import begins", |api| first(api).is_some()).await;
    // The status has not been written yet.
    let job = first(&api).unwrap();
    api.delete("jobs", "team-a", job["metadata"]["name"].as_str().unwrap());
    world.until("it is imported nevertheless", |api| is_ready(api, "pets")).await;
    // The same at the end of the dataset: a deleted job must not block the removal.
    api.delete("datasets", "team-a", "pets");
    world.until("it is gone", |api| api.list("datasets").is_empty()).await;
}
