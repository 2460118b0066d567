//! A changed manifest or endpoint: no pod reads from the new source before it has been imported.

use serde_json::{Value, json};

use super::api::Api;
use super::cluster::{claim, dataset};
use super::{World, condition, is_ready};

const ELSEWHERE: &str = "s3://bucket/elsewhere/manifest";

fn sources(api: &Api) -> Vec<String> {
    let volumes = api.list("persistentvolumes").into_iter();
    let source = |volume: Value| volume["spec"]["csi"]["volumeAttributes"]["source"].as_str().unwrap().to_owned();
    volumes.map(source).collect()
}

fn registered(api: &Api) -> String {
    let map = api.get("configmaps", "larder-system", "larder-registry").unwrap();
    map["data"]["datasets.yaml"].as_str().unwrap().to_owned()
}

// SEMANTICS: K16
#[tokio::test(start_paused = true)]
async fn a_manifest_that_moves_is_made_before_anything_reads_it() {
    let mut world = World::new(2);
    let api = world.api.clone();
    let mut shared = dataset("larder-system", "shared", 0);
    shared["spec"]["origin"].as_object_mut().unwrap().remove("secretRef");
    api.put("datasets", shared);
    api.put("datasets", dataset("team-a", "pets", 2));
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    world.rest().await;
    let (before, written) = (sources(&api), registered(&api));
    assert!(written.contains("s3://bucket/shared/.larder/"), "{written}");
    for namespace in ["team-a", "larder-system"] {
        api.deny(&format!("POST {namespace}/jobs/"), 500);
    }
    for (namespace, name) in [("team-a", "pets"), ("larder-system", "shared")] {
        api.change("datasets", namespace, name, |dataset| dataset["spec"]["manifest"] = ELSEWHERE.into());
    }
    world.rest().await;
    assert_eq!(sources(&api), before, "there is nothing yet at the new place");
    assert_eq!(registered(&api), written);
    // A revoked grant takes effect immediately.
    assert!(written.contains("team-b"), "{written}");
    api.change("datasets", "larder-system", "shared", |shared| shared["spec"]["namespaces"] = json!([]));
    world.until("it is taken back", |api| !registered(api).contains("team-b")).await;
    assert!(registered(&api).contains("s3://bucket/shared/.larder/"));
    api.allow();
    let imports = |api: &Api| {
        let published = json!(["--unless-published", ELSEWHERE]);
        let is_there = |job: &Value| {
            let arguments = job["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap().clone();
            arguments.windows(2).any(|pair| json!(pair) == published)
        };
        api.list("jobs").iter().filter(|job| is_there(job)).count()
    };
    world.until("both are imported there", |api| imports(api) == 2).await;
    let moved =
        |api: &Api| sources(api).contains(&ELSEWHERE.to_owned()) && registered(api).contains("s3://bucket/elsewhere/");
    world.until("pods read there", |api| moved(api) && is_ready(api, "pets")).await;
    world.rest().await;
    assert_eq!(imports(&api), 2);
    assert!(!registered(&api).contains("s3://bucket/shared/.larder/"));
}

#[tokio::test(start_paused = true)]
async fn a_manifest_of_its_own_that_is_found_behind_another_endpoint_is_refreshed_as_before() {
    let mut world = World::new(1);
    let api = world.api.clone();
    let endpoints = json!({"endpoints": ["http://one:9000", "http://two:9000"]});
    api.put("lardersettings", json!({"metadata": {"name": "larder"}, "spec": endpoints}));
    let mut object = dataset("team-a", "pets", 0);
    object["spec"]["origin"]["endpoint"] = "http://one:9000".into();
    api.put("datasets", object);
    world.start();
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    world.rest().await;
    let found = json!({"metadata": {"namespace": "test", "name": "found"}});
    api.put("configmaps", found);
    api.change("datasets", "team-a", "pets", |pets| pets["spec"]["origin"]["endpoint"] = "http://two:9000".into());
    let endpoint = |api: &Api| {
        let volumes = api.list("persistentvolumes");
        volumes.first().map(|volume| volume["spec"]["csi"]["volumeAttributes"]["endpoint"].clone()).unwrap_or_default()
    };
    world.until("pods read there", |api| endpoint(api) == "http://two:9000" && is_ready(api, "pets")).await;
    assert_eq!(condition(&api, "pets", "Imported"), ("True".into(), "Listed".into()));
}

#[tokio::test(start_paused = true)]
async fn a_move_that_is_taken_back_leaves_anothers_manifest_anothers() {
    let mut world = World::new(1);
    let api = world.api.clone();
    api.put("configmaps", json!({"metadata": {"namespace": "test", "name": "found"}}));
    api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    let imported = |api: &Api| condition(api, "pets", "Imported");
    let found = || ("True".to_owned(), "Found".to_owned());
    world.until("its manifest is found", |api| imported(api) == found()).await;
    world.rest().await;
    let hold = json!({"metadata": {"namespace": "test", "name": "hold"}, "data": {"jobs": "larder-import"}});
    api.put("configmaps", hold);
    api.change("datasets", "team-a", "pets", |pets| pets["spec"]["manifest"] = ELSEWHERE.into());
    world.until("it is to be imported elsewhere", |api| imported(api).0 == "False").await;
    api.change("datasets", "team-a", "pets", |pets| _ = pets["spec"].as_object_mut().unwrap().remove("manifest"));
    world.until("it is imported again", |api| imported(api).0 == "True").await;
    world.rest().await;
    assert_eq!(imported(&api), found());
}

#[tokio::test(start_paused = true)]
async fn a_users_claim_that_describes_the_dataset_as_it_was_holds_no_other_up() {
    let mut world = World::new(1);
    let api = world.api.clone();
    let mut users = claim("team-a", "pets", "");
    users["metadata"].as_object_mut().unwrap().remove("annotations");
    api.put("persistentvolumeclaims", users);
    api.put("datasets", dataset("team-a", "pets", 0));
    world.start();
    let is_bound = |api: &Api, namespace: &str, name: &str| {
        api.get("persistentvolumeclaims", namespace, name).is_some_and(|claim| claim["status"]["phase"] == "Bound")
    };
    world.until("it is bound", |api| is_bound(api, "team-a", "pets")).await;
    world.rest().await;
    let before = sources(&api);
    api.change("datasets", "team-a", "pets", |pets| pets["spec"]["cache"] = json!({"size": "1GiB"}));
    world.rest().await;
    api.put("persistentvolumeclaims", claim("team-b", "granted", "team-a/pets"));
    world.until("another claim is bound", |api| is_bound(api, "team-b", "granted")).await;
    world.rest().await;
    assert_eq!(sources(&api).len(), before.len() + 1, "Kubernetes keeps a volume that is bound");
    let is_reported = api.list("events").iter().any(|event| event["reason"] == "DatasetChanged");
    assert!(is_reported, "an Event reports it to the owner");
}
