//! CacheQuotas: what they let the Datasets of their namespaces have, and what they say when it is used up.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::Api;
use super::cluster::{ROOM, dataset, node};
use super::{World, condition, is_ready};

fn quota(name: &str, namespaces: &[&str], limits: Value) -> Value {
    let mut spec = limits;
    spec["namespaces"] = json!(namespaces);
    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "CacheQuota", "metadata": {"name": name}, "spec": spec})
}

fn promises(bytes: u64) -> Value {
    json!({"promisedBytes": bytes.to_string()})
}

/// Limits in `promisedBytes` from now on.
fn limit(api: &Api, name: &str, bytes: u64) {
    api.change("cachequotas", "", name, |quota| quota["spec"]["promisedBytes"] = bytes.to_string().into());
}

/// Status, reason and message of a condition.
fn condition_of(api: &Api, plural: &str, namespace: &str, name: &str, kind: &str) -> (String, String, String) {
    let object = api.get(plural, namespace, name).unwrap_or_default();
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

fn of_quota(api: &Api, name: &str, kind: &str) -> (String, String, String) {
    condition_of(api, "cachequotas", "", name, kind)
}

/// True if the quota keeps a dataset from its nodes.
fn is_limited(api: &Api, namespace: &str, name: &str) -> bool {
    let (status, reason, _) = condition_of(api, "datasets", namespace, name, "Placed");
    (status.as_str(), reason.as_str()) == ("False", "QuotaExceeded")
}

/// The number of nodes that promise room to a dataset.
fn holders(api: &Api, dataset: &str) -> usize {
    let names = |cache: &Value| {
        let promises = cache["spec"]["datasets"].as_array().cloned().unwrap_or_default();
        promises.iter().any(|promise| promise["name"] == dataset)
    };
    api.list("nodecaches").iter().filter(|cache| names(cache)).count()
}

/// Objects that are created afterwards are younger.
async fn later() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

// SEMANTICS: K20
#[tokio::test(start_paused = true)]
async fn a_dataset_above_the_quota_waits_with_the_arithmetic_and_goes_on_when_it_is_raised() {
    let mut world = World::new(2);
    let api = world.api.clone();
    api.put("cachequotas", quota("research", &["team-a"], promises(90_000)));
    api.put("datasets", dataset("team-a", "pets", 2));
    world.start();
    world.until("the first is ready", |api| is_ready(api, "pets")).await;
    api.put("datasets", dataset("team-a", "cars", 2));
    world.until("the second waits", |api| is_limited(api, "team-a", "cars")).await;
    world.rest().await;
    let (_, reason, message) = condition_of(&api, "datasets", "team-a", "cars", "Ready");
    assert_eq!(reason, "QuotaExceeded");
    assert_eq!(
        message,
        "the CacheQuota research allows the namespace team-a 87.9 KiB of promised room: 83.3 KiB are promised on 2 nodes, \
         and this dataset needs 41.6 KiB more on each of 2 nodes: 83.3 KiB"
    );
    assert_eq!((holders(&api, "team-a/pets"), holders(&api, "team-a/cars")), (2, 0));
    let claim = api.get("persistentvolumeclaims", "team-a", "cars");
    assert!(claim.is_some(), "pods can read it from the origin meanwhile");
    let events = api.list("events");
    assert!(events.iter().any(|event| event["reason"] == "QuotaExceeded"), "{events:#?}");
    let status = api.get("cachequotas", "", "research").unwrap()["status"].clone();
    assert_eq!(status["used"], json!({"promisedBytes": 2 * ROOM, "datasets": 2, "imports": 0}));
    assert_eq!(status["shown"], "83.3 KiB/87.9 KiB promised, 2 datasets, 0 imports");
    assert_eq!(of_quota(&api, "research", "WithinLimits").0, "True");
    // A part of the nodes is not taken: the quota has room for one.
    limit(&api, "research", 3 * ROOM);
    world.rest().await;
    assert_eq!(holders(&api, "team-a/cars"), 0);
    limit(&api, "research", 4 * ROOM);
    world.until("it is ready", |api| is_ready(api, "cars")).await;
    assert_eq!(holders(&api, "team-a/cars"), 2);
}

// SEMANTICS: K20
#[tokio::test(start_paused = true)]
async fn what_is_promised_stays_when_the_quota_is_lowered_and_nothing_is_added() {
    let mut world = World::new(2);
    let api = world.api.clone();
    api.put("cachequotas", quota("research", &["team-a"], promises(10 * ROOM)));
    api.put("datasets", dataset("team-a", "pets", 2));
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    world.rest().await;
    limit(&api, "research", 1000);
    world.until("the quota says so", |api| of_quota(api, "research", "WithinLimits").1 == "AboveLimits").await;
    world.rest().await;
    let (status, _, message) = of_quota(&api, "research", "WithinLimits");
    assert_eq!(status, "False");
    assert!(message.starts_with("83.3 KiB of 1000 B promised") && message.contains("stays"), "{message}");
    assert!(is_ready(&api, "pets"), "{:#?}", api.get("datasets", "team-a", "pets"));
    assert_eq!(holders(&api, "team-a/pets"), 2);
    // Neither another dataset nor another node of the same one.
    api.put("nodes", node("n3"));
    api.change("datasets", "team-a", "pets", |pets| pets["spec"]["nodes"]["count"] = 3.into());
    api.put("datasets", dataset("team-a", "cars", 1));
    world.until("both say so", |api| is_limited(api, "team-a", "pets") && is_limited(api, "team-a", "cars")).await;
    world.rest().await;
    assert_eq!((holders(&api, "team-a/pets"), holders(&api, "team-a/cars")), (2, 0));
    // The next controller keeps it, too, and writes nothing.
    let writes = api.writes();
    world.kill();
    world.start();
    world.rest().await;
    assert_eq!(api.writes(), writes);
    // Without the quota there is no limit.
    api.delete("cachequotas", "", "research");
    world.until("both are ready", |api| is_ready(api, "pets") && is_ready(api, "cars")).await;
    assert_eq!(holders(&api, "team-a/pets"), 3);
}

// SEMANTICS: K20
#[tokio::test(start_paused = true)]
async fn namespaces_of_one_quota_share_it_and_learn_nothing_of_each_other() {
    let mut world = World::new(1);
    let api = world.api.clone();
    api.put("cachequotas", quota("research", &["team-a", "team-b"], promises(ROOM)));
    api.put("datasets", dataset("team-a", "pets", 1));
    // Of a namespace without a quota.
    api.put("datasets", dataset("team-c", "free", 1));
    world.start();
    world.until("the first is ready", |api| is_ready(api, "pets")).await;
    api.put("datasets", dataset("team-b", "cars", 1));
    world.until("the second waits", |api| is_limited(api, "team-b", "cars")).await;
    world.rest().await;
    let (_, _, message) = condition_of(&api, "datasets", "team-b", "cars", "Placed");
    assert!(message.contains("the namespace team-b and those that share the quota"), "{message}");
    assert!(!message.contains("team-a") && !message.contains("pets"), "{message}");
    assert_eq!(holders(&api, "team-c/free"), 1);
    api.delete("datasets", "team-a", "pets");
    world.until("there is room", |api| holders(api, "team-b/cars") == 1).await;
}

// SEMANTICS: K20
#[tokio::test(start_paused = true)]
async fn of_two_quotas_for_a_namespace_the_older_one_counts() {
    let mut world = World::new(2);
    let api = world.api.clone();
    api.put("cachequotas", quota("z-old", &["team-a"], promises(ROOM)));
    later().await;
    api.put("cachequotas", quota("a-new", &["team-b", "team-a"], promises(10 * ROOM)));
    api.put("datasets", dataset("team-a", "pets", 2));
    world.start();
    world.until("it waits", |api| is_limited(api, "team-a", "pets")).await;
    world.rest().await;
    let (status, reason, message) = of_quota(&api, "a-new", "Valid");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "NamespaceTaken"));
    assert!(message.contains("CacheQuota z-old names the namespace team-a"), "{message}");
    assert_eq!(of_quota(&api, "a-new", "WithinLimits").1, "NotCounted");
    assert_eq!(of_quota(&api, "z-old", "Valid").0, "True");
    api.delete("cachequotas", "", "z-old");
    world.until("the other one counts", |api| of_quota(api, "a-new", "Valid").0 == "True").await;
    world.until("it is ready", |api| is_ready(api, "pets")).await;
}

// SEMANTICS: K20
#[tokio::test(start_paused = true)]
async fn room_goes_to_the_older_dataset_also_after_a_restart() {
    let mut world = World::new(3);
    let api = world.api.clone();
    api.put("cachequotas", quota("research", &["team-a"], promises(2 * ROOM)));
    api.put("datasets", dataset("team-a", "holder", 2));
    world.start();
    world.until("it is ready", |api| is_ready(api, "holder")).await;
    // One that does not fit beside the first keeps no room from younger ones.
    api.put("datasets", dataset("team-a", "giant", 3));
    later().await;
    api.put("datasets", dataset("team-a", "zebra", 2));
    later().await;
    api.put("datasets", dataset("team-a", "apple", 1));
    let all = |api: &Api| ["giant", "zebra", "apple"].iter().all(|name| is_limited(api, "team-a", name));
    world.until("all wait", all).await;
    world.rest().await;
    // Raised while no controller runs: there is room for the older one, or for the younger one and some more.
    world.kill();
    limit(&api, "research", 4 * ROOM);
    world.start();
    world.until("the older one is ready", |api| is_ready(api, "zebra")).await;
    world.rest().await;
    let holders = |name: &str| holders(&api, &format!("team-a/{name}"));
    assert_eq!(["holder", "giant", "zebra", "apple"].map(holders), [2, 0, 2, 0]);
    assert!(is_limited(&api, "team-a", "apple"));
    api.change("datasets", "team-a", "zebra", |zebra| zebra["spec"]["nodes"]["count"] = 1.into());
    world.until("the younger one fits", |api| is_ready(api, "apple")).await;
    world.rest().await;
    assert_eq!(["holder", "giant", "zebra", "apple"].map(holders), [2, 0, 1, 1]);
}

// SEMANTICS: K20
#[tokio::test(start_paused = true)]
async fn no_more_datasets_than_the_quota_has_are_imported() {
    let mut world = World::new(1);
    let api = world.api.clone();
    api.put("cachequotas", quota("research", &["team-a"], json!({"datasets": 1})));
    api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    world.until("the first is ready", |api| is_ready(api, "pets")).await;
    later().await;
    api.put("datasets", dataset("team-a", "cars", 0));
    let refused = ("False".to_owned(), "QuotaExceeded".to_owned());
    world.until("the second is one too many", |api| condition(api, "cars", "Imported") == refused).await;
    world.rest().await;
    let (_, _, message) = condition_of(&api, "datasets", "team-a", "cars", "Imported");
    let said = "the CacheQuota research allows the namespace team-a 1 Dataset, and 1 older one exists";
    assert_eq!(message, said);
    assert!(!api.list("jobs").iter().any(|job| job.to_string().contains("larder-import-cars")));
    assert_eq!(of_quota(&api, "research", "WithinLimits").1, "AboveLimits", "it was created all the same");
    api.delete("datasets", "team-a", "pets");
    world.until("there is a place", |api| is_ready(api, "cars")).await;
}

/// A pod of a user with the labels of the pod of `job`, and an owner reference to `owner`.
fn forged_pod(namespace: &str, job: &Value, owner: &Value) -> Value {
    let mut labels = job["metadata"]["labels"].clone();
    labels["batch.kubernetes.io/job-name"] = job["metadata"]["name"].clone();
    let (name, uid) = (&owner["metadata"]["name"], &owner["metadata"]["uid"]);
    let terminated = json!({"exitCode": 1, "reason": "Error", "message": "no"});
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": "looks-failed", "labels": labels, "ownerReferences": [
            {"kind": "Job", "name": name, "uid": uid, "apiVersion": "batch/v1", "controller": true}]},
        "spec": {"containers": []},
        "status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": terminated}}]},
    })
}

// SEMANTICS: K20
#[tokio::test(start_paused = true)]
async fn no_more_imports_run_at_a_time_than_the_quota_has() {
    let mut world = World::new(1);
    let api = world.api.clone();
    let hold = |jobs: &str| {
        let map = json!({"metadata": {"namespace": "test", "name": "hold"}, "data": {"jobs": jobs}});
        api.put("configmaps", map);
    };
    let running = |api: &Api| {
        let jobs = api.list("jobs");
        jobs.iter().filter(|job| job.to_string().contains("larder-import") && job["status"].is_null()).count()
    };
    hold("larder-import");
    api.put("cachequotas", quota("research", &["team-a", "team-b"], json!({"imports": 1})));
    for name in ["pets", "cars", "dogs"] {
        api.put("datasets", dataset("team-a", name, 0));
    }
    api.put("datasets", dataset("team-c", "free", 0));
    world.start();
    world.until("one of them is imported, and the free one", |api| running(api) == 2).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(running(&api), 2);
    let mut waiting: Vec<String> = ["pets", "cars", "dogs"]
        .iter()
        .map(|name| condition_of(&api, "datasets", "team-a", name, "Imported"))
        .filter(|(_, reason, _)| reason == "QuotaExceeded")
        .map(|(_, _, message)| message)
        .collect();
    waiting.sort();
    let said = |before: usize| {
        format!(
            "the CacheQuota research allows the namespace team-a and those that share the quota 1 import at a time; \
                 running or before this one: {before}"
        )
    };
    assert_eq!(waiting, [said(1), said(2)]);
    assert_eq!(api.get("cachequotas", "", "research").unwrap()["status"]["used"]["imports"], 1);
    // Pods that only look like failed ones of the import do not end it.
    let import = |namespace: &str| {
        let mut jobs = api.list("jobs").into_iter().filter(|job| job["metadata"]["namespace"] == namespace);
        jobs.find(|job| job.to_string().contains("larder-import") && job["status"].is_null()).unwrap()
    };
    let (limited, free) = (import("team-a"), import("team-c"));
    api.put("pods", forged_pod("team-a", &limited, &free));
    api.put("pods", forged_pod("team-b", &limited, &limited));
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(running(&api), 2);
    assert_eq!(api.get("cachequotas", "", "research").unwrap()["status"]["used"]["imports"], 1);
    // A controller that starts now finds the one that runs.
    world.kill();
    world.start();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(running(&api), 2);
    hold("no-job");
    world.until("all are imported", |api| ["pets", "cars", "dogs"].iter().all(|name| is_ready(api, name))).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_get_the_limits_that_they_enforce() {
    let mut world = World::new(2);
    let api = world.api.clone();
    let limits = json!({"reservedBytesPerNode": "1GiB", "mountsPerNode": 3, "imports": 2, "datasets": 7});
    api.put("cachequotas", quota("research", &["team-a", "team-b"], limits));
    api.put("cachequotas", quota("of-the-cluster", &["team-c"], json!({"datasets": 7})));
    world.start();
    let expected = json!([{
        "name": "research", "namespaces": ["team-a", "team-b"], "reservedBytes": 1_u64 << 30, "mounts": 3, "imports": 2,
    }]);
    let all = |api: &Api, expected: &Value, nodes: usize| {
        let caches = api.list("nodecaches");
        caches.len() == nodes && caches.iter().all(|cache| cache["spec"]["quotas"] == *expected)
    };
    world.until("nodes know the limits", |api| all(api, &expected, 2)).await;
    api.put("nodes", node("n3"));
    world.until("the new node knows them", |api| all(api, &expected, 3)).await;
    api.change("cachequotas", "", "research", |quota| quota["spec"]["mountsPerNode"] = Value::Null);
    let mut changed = expected.clone();
    changed[0].as_object_mut().unwrap().remove("mounts");
    world.until("nodes know the change", |api| all(api, &changed, 3)).await;
    world.rest().await;
    let writes = api.writes();
    world.kill();
    world.start();
    world.rest().await;
    assert_eq!(api.writes(), writes, "nothing is written again");
    api.delete("cachequotas", "", "research");
    world.until("there are none", |api| all(api, &Value::Null, 3)).await;
}
