//! Objects that other namespaces write neither hold up a Dataset nor use up cluster resources, unless those namespaces
//! were granted the Dataset.

use serde_json::{Value, json};

use super::api::Api;
use super::cluster::{claim, dataset, pod};
use super::{World, is_ready};

fn inline(namespace: &str, name: &str, dataset: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"volumes": [{"name": "d", "csi": {
            "driver": "csi.larder.dev", "volumeAttributes": {"dataset": dataset}}}]},
        "status": {"phase": "Pending"},
    })
}

fn anonymous(namespace: &str, name: &str, count: u32) -> Value {
    let mut object = dataset(namespace, name, count);
    object["spec"]["origin"].as_object_mut().unwrap().remove("secretRef");
    object["spec"]["origin"]["anonymous"] = true.into();
    object
}

/// The pods that use a dataset, according to its status.
fn users(api: &Api, name: &str) -> Value {
    api.get("datasets", "team-a", name).unwrap()["status"]["users"]["pods"].clone()
}

// SEMANTICS: K13
#[tokio::test(start_paused = true)]
async fn a_pod_that_names_a_dataset_without_a_grant_is_none_of_its_users() {
    let mut world = World::new(2);
    let api = world.api.clone();
    api.put("datasets", dataset("team-a", "pets", 1));
    api.put("datasets", anonymous("team-a", "open", 1));
    for dataset in ["team-a/pets", "team-a/open"] {
        let name = dataset.replace('/', "-");
        api.put("pods", inline("team-c", &format!("foreign-{name}"), dataset));
        api.put("pods", inline("team-b", &format!("granted-{name}"), dataset));
    }
    // The name of a claim is not the name of an inline dataset.
    api.put("pods", pod("team-a", "reader", "pets"));
    world.start();
    world.until("both are ready", |api| is_ready(api, "pets") && is_ready(api, "open")).await;
    world.rest().await;
    // A dataset with a Secret can only be mounted through claims.
    assert_eq!(users(&api, "pets"), json!(["team-a/reader"]));
    assert_eq!(users(&api, "open"), json!(["team-b/granted-team-a-open"]));
    api.delete("pods", "team-a", "reader");
    api.delete("pods", "team-b", "granted-team-a-open");
    api.delete("datasets", "team-a", "pets");
    api.delete("datasets", "team-a", "open");
    world.until("they are gone", |api| api.list("datasets").is_empty()).await;
}

/// A warming job that another user created.
fn forged(namespace: &str, name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "namespace": namespace, "name": name, "annotations": {"test/hold": "true"},
            "labels": {"larder.dev/dataset-uid": uid, "larder.dev/role": "warm"},
        },
    })
}

// SEMANTICS: K13
#[tokio::test(start_paused = true)]
async fn jobs_with_forged_labels_take_no_slot_to_warm() {
    let mut world = World::new(2);
    let api = world.api.clone();
    api.put("datasets", dataset("team-a", "cars", 0));
    let uid = api.get("datasets", "team-a", "cars").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    for index in 0..8 {
        let mut leaving = forged("team-a", &format!("leaving-{index}"), &uid);
        leaving["metadata"]["finalizers"] = json!(["example.org/stays"]);
        api.put("jobs", leaving);
        api.delete("jobs", "team-a", &format!("leaving-{index}"));
        api.put("jobs", forged("team-c", &format!("elsewhere-{index}"), &uid));
    }
    api.put("datasets", dataset("team-a", "pets", 2));
    world.start();
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    assert!(is_ready(&api, "pets"), "{:#?}", api.get("datasets", "team-a", "pets"));
}

// SEMANTICS: K13
#[tokio::test(start_paused = true)]
async fn jobs_whose_pods_do_not_start_give_their_slots_back() {
    let mut world = World::new(9);
    let api = world.api.clone();
    let hold = json!({"metadata": {"namespace": "test", "name": "hold"}, "data": {"jobs": "larder-warm-stuck"}});
    api.put("configmaps", hold);
    let mut stuck = dataset("team-a", "stuck", 0);
    stuck["spec"]["nodes"]["count"] = "all".into();
    api.put("datasets", stuck);
    world.start();
    let jobs = |api: &Api, of: &str| api.list("jobs").iter().filter(|job| job.to_string().contains(of)).count();
    // Of eight slots, one is for jobs with GPUs.
    world.until("all other slots are taken", |api| jobs(api, "larder-warm-stuck") >= 7).await;
    api.put("datasets", dataset("team-a", "pets", 2));
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(jobs(&api, "larder-warm-pets"), 0, "a pod may take a while to start");
    world.until("another is warmed", |api| is_ready(api, "pets")).await;
    let pets = api.get("datasets", "team-a", "pets").unwrap();
    assert_eq!(pets["status"]["nodes"], json!({"wanted": 2, "holding": 2, "warm": 2}));
    assert!(!is_ready(&api, "stuck"));
}

// SEMANTICS: K13
#[tokio::test(start_paused = true)]
async fn a_claim_without_a_grant_is_refused_in_whatever_state_the_dataset_is() {
    let refused = |api: &Api, claim: &str| {
        let about = |event: &Value| event["regarding"]["name"] == claim && event["reason"] == "DatasetRefused";
        api.list("events").iter().any(about)
    };
    // A dataset that is deleted but in use, and a dataset with a spec that is not allowed.
    let mut world = World::new(1);
    let api = world.api.clone();
    api.put("datasets", dataset("team-a", "pets", 0));
    let mut own = dataset("team-a", "own", 0);
    own["spec"]["origin"].as_object_mut().unwrap().remove("secretRef");
    api.put("datasets", own);
    api.put("pods", pod("team-a", "reader", "pets"));
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    api.delete("datasets", "team-a", "pets");
    world.rest().await;
    for name in ["pets", "own", "none"] {
        api.put("persistentvolumeclaims", claim("team-c", &format!("to-{name}"), &format!("team-a/{name}")));
    }
    for name in ["pets", "own", "none"] {
        world.until("it is refused", |api| refused(api, &format!("to-{name}"))).await;
    }
    api.put("persistentvolumeclaims", claim("team-b", "granted", "team-a/own"));
    world.rest().await;
    assert!(!refused(&api, "granted"), "it waits until the dataset is corrected");
}

// SEMANTICS: K16
#[tokio::test(start_paused = true)]
async fn a_claim_that_was_there_before_its_dataset_waits_for_the_import() {
    let mut world = World::new(1);
    let api = world.api.clone();
    let mut early = claim("team-a", "pets", "");
    early["metadata"].as_object_mut().unwrap().remove("annotations");
    api.put("persistentvolumeclaims", early);
    let hold = json!({"metadata": {"namespace": "test", "name": "hold"}, "data": {"jobs": "larder-import"}});
    api.put("configmaps", hold);
    api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    let volumes = |api: &Api| api.list("persistentvolumes").len();
    assert_eq!(volumes(&api), 0, "a pod would have its node list the origin");
    api.delete("configmaps", "test", "hold");
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    world.until("its claim is bound", |api| volumes(api) == 1).await;
}

/// The entries of the ConfigMap for inline volumes.
fn registry(api: &Api) -> Value {
    let map = api.get("configmaps", "larder-system", "larder-registry").unwrap();
    serde_json::from_str::<Value>(map["data"]["datasets.yaml"].as_str().unwrap()).unwrap()["datasets"].clone()
}

// SEMANTICS: K13
#[tokio::test(start_paused = true)]
async fn a_namespace_that_fills_the_list_of_inline_volumes_leaves_the_others_their_part() {
    let mut world = World::new(1);
    let api = world.api.clone();
    let mut shared = dataset("larder-system", "shared", 0);
    shared["spec"]["origin"].as_object_mut().unwrap().remove("secretRef");
    api.put("datasets", shared);
    api.put("datasets", anonymous("team-b", "open", 0));
    let namespaces: Vec<String> = (0..256).map(|index| format!("{index:0>63}")).collect();
    // Together they exceed the size limit of the API server.
    for index in 0..70 {
        let mut large = anonymous("team-a", &format!("large-{index:02}"), 0);
        large["spec"]["namespaces"] = json!(namespaces);
        api.put("datasets", large);
    }
    world.start();
    let of_team_a = |api: &Api| registry(api).as_object().unwrap().keys().filter(|key| key.contains("large")).count();
    world.until("there is a list", |api| api.get("configmaps", "larder-system", "larder-registry").is_some()).await;
    world
        .until("it has the others", |api| {
            let entries = registry(api);
            entries["shared"].is_object() && entries["team-b/open"].is_object() && of_team_a(api) > 30
        })
        .await;
    world.rest().await;
    let map = api.get("configmaps", "larder-system", "larder-registry").unwrap();
    assert!(map.to_string().len() < 1 << 20);
    let left_out: Vec<String> = (0..70)
        .map(|index| format!("large-{index:02}"))
        .filter(|name| super::condition(&api, name, "Degraded") == ("True".into(), "InlineLimit".into()))
        .collect();
    assert_eq!(of_team_a(&api) + left_out.len(), 70);
    assert!(left_out.iter().all(|name| is_ready(&api, name)), "their claims work");
    // A grant can be revoked.
    api.change("datasets", "team-b", "open", |open| open["spec"]["namespaces"] = json!([]));
    world.until("it is", |api| registry(api)["team-b/open"]["namespaces"] == json!(["team-b"])).await;
    for index in 0..40 {
        api.delete("datasets", "team-a", &format!("large-{index:02}"));
    }
    world.until("the rest fits", |api| of_team_a(api) == 30).await;
    let is_well = |api: &Api, name: &str| super::condition(api, name, "Degraded").0 == "False";
    world
        .until("they say so", |api| {
            left_out.iter().all(|name| api.get("datasets", "team-a", name).is_none() || is_well(api, name))
        })
        .await;
}

// SEMANTICS: K16
#[tokio::test(start_paused = true)]
async fn a_changed_secret_is_that_of_all_volumes_and_a_pod_that_waits_for_the_old_one_ends() {
    let mut world = World::new(2);
    let api = world.api.clone();
    api.put("datasets", dataset("team-a", "pets", 2));
    api.put("persistentvolumeclaims", claim("team-b", "bound", "team-a/pets"));
    let mut never = claim("team-b", "never", "team-a/pets");
    never["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    api.put("persistentvolumeclaims", never);
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    world.rest().await;
    api.put("configmaps", json!({"metadata": {"namespace": "test", "name": "hold"}, "data": {"jobs": ""}}));
    api.put("nodes", super::node("n3"));
    api.change("datasets", "team-a", "pets", |pets| pets["spec"]["nodes"]["count"] = 3.into());
    let unfinished = |api: &Api| {
        let jobs = api.list("jobs").into_iter();
        jobs.filter(|job| job.to_string().contains("larder-warm") && job["status"]["conditions"].is_null()).count()
    };
    world.until("a third is to be warmed", |api| unfinished(api) == 1).await;
    api.change("datasets", "team-a", "pets", |pets| pets["spec"]["origin"]["secretRef"]["name"] = "new".into());
    let secret_of = |volume: &Value| volume["spec"]["csi"]["nodePublishSecretRef"]["name"].clone();
    let old = |api: &Api| -> Vec<Value> {
        let volumes = api.list("persistentvolumes").into_iter().filter(|volume| secret_of(volume) == "keys");
        volumes.map(|volume| volume["spec"]["claimRef"]["name"].clone()).collect()
    };
    // Only its owner can give up a claim of another namespace to which a volume is bound.
    world.until("all others have it", |api| old(api) == ["bound"] && api.list("persistentvolumes").len() == 4).await;
    world
        .until("an Event reports it to the owner", |api| {
            let about = |event: &Value| event["reason"] == "DatasetChanged" && event["regarding"]["name"] == "bound";
            api.list("events").iter().any(about)
        })
        .await;
    api.delete("configmaps", "test", "hold");
    world
        .until("the third is warm", |api| {
            api.get("datasets", "team-a", "pets").unwrap()["status"]["nodes"]["warm"] == 3
        })
        .await;
}

// SEMANTICS: K13
#[tokio::test(start_paused = true)]
async fn a_volume_that_was_never_bound_goes_with_its_claim_or_its_grant() {
    let mut world = World::new(1);
    let api = world.api.clone();
    api.put("datasets", dataset("team-a", "pets", 0));
    for name in ["one", "two"] {
        let mut never = claim("team-b", name, "team-a/pets");
        never["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
        api.put("persistentvolumeclaims", never);
    }
    world.start();
    let volume_of = |api: &Api, claim: &str| {
        api.list("persistentvolumes").into_iter().any(|volume| volume["spec"]["claimRef"]["name"] == claim)
    };
    world.until("both have volumes", |api| volume_of(api, "one") && volume_of(api, "two")).await;
    api.delete("persistentvolumeclaims", "team-b", "one");
    world.until("that of the first is gone", |api| !volume_of(api, "one")).await;
    assert!(volume_of(&api, "two"));
    api.change("datasets", "team-a", "pets", |pets| pets["spec"]["namespaces"] = json!([]));
    world.until("the next claim of its name gets nothing", |api| !volume_of(api, "two")).await;
    world.rest().await;
    assert!(volume_of(&api, "pets"));
}
