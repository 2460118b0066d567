//! The whole controller against an in-memory API server ([`api`]) and a simulated rest of the cluster ([`cluster`]):
//! the cluster reaches the same final state, no matter what happens to the controller and its requests.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod api;
mod cleaning;
mod cluster;
mod deletions;
mod full_disks;
mod jobs;
mod keeping;
mod kubelet;
mod kueue;
mod lease;
mod mirrors;
mod moved;
mod quotas;
mod refused;
mod snapshots;
mod tenants;
mod turns;
mod unreadable;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder_controller::Config;
use larder_controller::admin::Counters;
use larder_controller::control::act;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use api::{Api, Dies, Id, client, new_api};
use cluster::{BYTES, SNAPSHOT, claim, dataset, node, pod};
use jobs::elsewhere::Others;

/// Simulated time: a generous limit for anything.
const LONG: Duration = Duration::from_secs(3600);

/// After this long without a change, all work is done.
const QUIET: Duration = Duration::from_secs(200);

struct World {
    api: Api,
    rest: JoinHandle<()>,
    controller: Option<JoinHandle<anyhow::Result<()>>>,
    /// The counters of the last controller.
    counters: Arc<Counters>,
    /// The settings of the next controller.
    wait_for_nodes: Option<Duration>,
    keep_ended_jobs: Option<Duration>,
    /// The clusters that the next controller can reach.
    others: Others,
}

impl Drop for World {
    fn drop(&mut self) {
        self.rest.abort();
        self.kill();
    }
}

impl World {
    fn new(nodes: usize) -> Self {
        let api = new_api();
        for index in 1..=nodes {
            api.put("nodes", node(&format!("n{index}")));
        }
        let rest = tokio::spawn(cluster::play(api.clone()));
        Self {
            api,
            rest,
            controller: None,
            counters: Arc::default(),
            wait_for_nodes: None,
            keep_ended_jobs: None,
            others: Others::default(),
        }
    }

    fn config(&self) -> Config {
        Config {
            image: "larder:test".into(),
            namespace: "larder-system".into(),
            identity: "test".into(),
            max_warming: 8,
            wait_for_nodes: self.wait_for_nodes,
            keep_ended_jobs: self.keep_ended_jobs,
            node_lost_after: Duration::from_secs(60),
            admin_address: None,
        }
    }

    fn start(&mut self) {
        self.counters = Arc::default();
        let (client, config, counters) = (client(&self.api), self.config(), Arc::clone(&self.counters));
        let others = Arc::new(self.others.clone());
        self.controller = Some(tokio::spawn(act(client, others, config, counters, CancellationToken::new())));
    }

    fn kill(&mut self) {
        if let Some(controller) = self.controller.take() {
            controller.abort();
        }
    }

    /// Waits until `done`. Time advances only when nothing else can run.
    async fn until(&self, what: &str, done: impl Fn(&Api) -> bool) {
        let mut changes = self.api.changes();
        let waiting = async {
            while !done(&self.api) {
                changes.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(LONG, waiting).await.is_err() {
            panic!("waited in vain for {what}: {:#?}\n{:#?}", self.api.list("datasets"), self.api.writes());
        }
    }

    /// Waits until the controller is killed at a write or has nothing more to write. Events that arrive together are
    /// written together, so the number of writes varies between runs. Returns true if the controller was killed.
    async fn until_killed(&self) -> bool {
        let mut changes = self.api.changes();
        while !self.api.is_dead() {
            changes.borrow_and_update();
            if tokio::time::timeout(QUIET, changes.changed()).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Waits until nothing changes any more. A rejected write is retried after at most a minute, and may be rejected
    /// twice.
    async fn rest(&self) {
        let mut changes = self.api.changes();
        loop {
            changes.borrow_and_update();
            let quiet = tokio::time::timeout(QUIET, changes.changed()).await;
            if quiet.is_err() {
                return;
            }
        }
    }
}

fn condition(api: &Api, name: &str, kind: &str) -> (String, String) {
    let dataset = api.get("datasets", "team-a", name).unwrap_or_default();
    let conditions = dataset["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default();
    (found["status"].as_str().unwrap_or_default().into(), found["reason"].as_str().unwrap_or_default().into())
}

fn is_ready(api: &Api, name: &str) -> bool {
    condition(api, name, "Ready").0 == "True"
}

/// All objects, without the fields that depend on when and how often they were written.
fn end_state(api: &Api) -> BTreeMap<Id, Value> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for key in [
                    "resourceVersion",
                    "creationTimestamp",
                    "uid",
                    "generation",
                    "observedGeneration",
                    "lastTransitionTime",
                    "listed",
                    "eta",
                    "lastUsed",
                    "cleaned",
                    "larder.dev/clean",
                    "started",
                    "finished",
                    "record",
                ] {
                    fields.remove(key);
                }
                fields.values_mut().for_each(strip);
            }
            Value::Array(values) => values.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut all = api.all();
    // Duplicate Events do not matter.
    all.retain(|(plural, ..), _| plural != "events");
    all.values_mut().for_each(strip);
    all
}

/// Two datasets, one of them on two nodes, a granted claim, and a claim of a namespace without a grant.
fn scenario(api: &Api) {
    api.put("datasets", dataset("team-a", "pets", 2));
    api.put("datasets", dataset("team-a", "cars", 0));
    api.put("persistentvolumeclaims", claim("team-b", "granted", "team-a/pets"));
    api.put("persistentvolumeclaims", claim("team-c", "foreign", "team-a/pets"));
    api.put("persistentvolumeclaims", claim("team-c", "nowhere", "team-a/none"));
}

#[tokio::test(start_paused = true)]
async fn a_dataset_is_imported_placed_warmed_claimed_and_labelled() {
    let mut world = World::new(3);
    scenario(&world.api);
    world.start();
    world.until("both are ready", |api| is_ready(api, "pets") && is_ready(api, "cars")).await;
    world.rest().await;
    let api = &world.api;
    let pets = api.get("datasets", "team-a", "pets").unwrap();
    let status = &pets["status"];
    assert_eq!((&status["snapshot"], &status["files"]), (&SNAPSHOT.into(), &10.into()));
    assert_eq!(status["nodes"], serde_json::json!({"wanted": 2, "holding": 2, "warm": 2}));
    assert_eq!((&status["percent"], &status["shown"]["nodes"]), (&100.into(), &"2/2".into()));
    assert_eq!(condition(api, "cars", "Placed"), ("True".into(), "NotWanted".into()));
    let bound = |namespace: &str, name: &str| {
        api.get("persistentvolumeclaims", namespace, name).unwrap()["status"]["phase"] == "Bound"
    };
    assert!(bound("team-a", "pets") && bound("team-a", "cars") && bound("team-b", "granted"));
    assert!(!bound("team-c", "foreign") && !bound("team-c", "nowhere"));
    // The messages of the rejected claims differ only in the name.
    let said: Vec<String> = api
        .list("events")
        .iter()
        .filter(|event| event["reason"] == "DatasetRefused")
        .map(|event| event["note"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert_eq!(
        said[0].replace("team-a/pets", "X").replace("team-a/none", "X"),
        said[1].replace("team-a/pets", "X").replace("team-a/none", "X")
    );
    let labelled: Vec<Value> = api
        .list("nodes")
        .iter()
        .map(|node| node["metadata"]["labels"]["dataset.larder.dev/team-a.pets"].clone())
        .collect();
    assert_eq!(labelled.iter().filter(|label| **label == "100").count(), 2, "{labelled:?}");
    // The Secret appears only by name, and nothing reads it.
    assert!(!api.writes().iter().any(|write| write.contains("secrets")));
    assert_eq!(BYTES, 1000);
}

// SEMANTICS: K18
#[tokio::test(start_paused = true)]
async fn volumes_of_a_dataset_with_a_secret_are_read_with_its_keys_alone() {
    let mut world = World::new(3);
    scenario(&world.api);
    let mut public = dataset("team-a", "public", 0);
    public["spec"]["origin"].as_object_mut().unwrap().remove("secretRef");
    public["spec"]["origin"]["anonymous"] = true.into();
    world.api.put("datasets", public);
    world.start();
    world.until("all are ready", |api| ["pets", "cars", "public"].iter().all(|name| is_ready(api, name))).await;
    world.rest().await;
    let volumes = world.api.list("persistentvolumes");
    let of = |name: &str| {
        let name = Value::from(format!("team-a/{name}"));
        volumes.iter().filter(|volume| volume["metadata"]["annotations"]["larder.dev/dataset"] == name).count()
    };
    assert!(of("pets") >= 2 && of("cars") == 1 && of("public") == 1, "{volumes:#?}");
    for volume in &volumes {
        let csi = &volume["spec"]["csi"];
        let expected = if csi["nodePublishSecretRef"].is_null() { Value::Null } else { "secret".into() };
        assert_eq!(csi["volumeAttributes"]["identity"], expected, "{volume:#?}");
        let of = &volume["metadata"]["annotations"]["larder.dev/dataset"];
        assert_eq!(expected.is_null(), of == "team-a/public", "{of}");
    }
}

// SEMANTICS: K11
#[tokio::test(start_paused = true)]
async fn volumes_name_their_dataset_as_owner_unless_it_is_the_administrators() {
    let mut world = World::new(1);
    scenario(&world.api);
    world.api.put("datasets", dataset("larder-system", "ours", 0));
    world.start();
    world.until("claims are made", |api| api.list("persistentvolumes").len() == 4).await;
    for volume in world.api.list("persistentvolumes") {
        let of = volume["metadata"]["annotations"]["larder.dev/dataset"].as_str().unwrap();
        let (namespace, name) = of.split_once('/').unwrap();
        let uid = world.api.get("datasets", namespace, name).unwrap()["metadata"]["uid"].clone();
        let expected = if namespace == "larder-system" { Value::Null } else { uid };
        let attributes = &volume["spec"]["csi"]["volumeAttributes"];
        assert_eq!(attributes["owner"], expected, "{of}");
        // Claims of other namespaces say whose quota counts.
        let is_own = volume["spec"]["claimRef"]["namespace"] == namespace;
        let expected = if is_own { Value::Null } else { namespace.into() };
        assert_eq!(attributes["datasetNamespace"], expected, "{of}");
    }
}

#[tokio::test(start_paused = true)]
async fn at_rest_nothing_is_written_and_writes_are_few() {
    let mut world = World::new(3);
    world.start();
    // Before the nodes report their caches, there is no room, and an Event reports that.
    world.rest().await;
    world.api.put("datasets", dataset("team-a", "pets", 2));
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    world.rest().await;
    let writes = world.api.writes();
    // The ConfigMap for inline volumes and the three NodeCaches are written for any set of datasets. On top of these
    // come 10 writes, and 3 for each node.
    assert!(writes.len() <= 4 + 10 + 2 * 3, "{}: {writes:#?}", writes.len());
    tokio::time::sleep(Duration::from_secs(3 * 3600)).await;
    assert_eq!(world.api.writes(), writes);
    // A new controller finds nothing to write either.
    world.kill();
    world.start();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.api.writes(), writes);
}

// SEMANTICS: K15
#[tokio::test(start_paused = true)]
async fn a_controller_killed_at_any_write_ends_in_the_same_state() {
    let mut world = World::new(3);
    scenario(&world.api);
    world.start();
    world.rest().await;
    let (expected, writes) = (end_state(&world.api), world.api.writes().len());
    assert!(is_ready(&world.api, "pets") && writes > 10);
    drop(world);
    let mut kills = 0;
    for write in 0..writes {
        for dies in [Dies::BeforeTheWrite, Dies::AfterTheWrite] {
            let mut world = World::new(3);
            scenario(&world.api);
            world.api.die_at(write, dies);
            world.start();
            kills += usize::from(world.until_killed().await);
            world.kill();
            world.api.revive();
            world.start();
            world.rest().await;
            assert_same(&end_state(&world.api), &expected, &format!("killed at {write}, {dies:?}"));
        }
    }
    assert!(kills > writes, "{kills} of {}", 2 * writes);
}

fn assert_same(found: &BTreeMap<Id, Value>, expected: &BTreeMap<Id, Value>, when: &str) {
    for (id, value) in expected {
        assert_eq!(found.get(id), Some(value), "{when}: {id:?}");
    }
    let more: Vec<&Id> = found.keys().filter(|id| !expected.contains_key(*id)).collect();
    assert!(more.is_empty(), "{when}: {more:?}");
}

#[tokio::test(start_paused = true)]
async fn refused_writes_converge() {
    // Exactly as many nodes as are wanted. With more nodes, those that appear first could be chosen.
    let mut world = World::new(2);
    scenario(&world.api);
    world.start();
    world.rest().await;
    let expected = end_state(&world.api);
    for code in [409, 410, 429, 500] {
        let mut world = World::new(2);
        scenario(&world.api);
        world.api.refuse_every(3, code);
        world.start();
        world.rest().await;
        let when = format!("refused with {code}: {:#?}", world.api.writes());
        assert_same(&end_state(&world.api), &expected, &when);
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_dataset_goes_with_its_last_user_and_leaves_nothing() {
    let mut world = World::new(3);
    world.start();
    world.rest().await;
    let before = end_state(&world.api);
    world.api.put("datasets", dataset("team-a", "pets", 2));
    world.until("it is ready", |api| is_ready(api, "pets")).await;
    world.api.put("pods", pod("team-a", "reader", "pets"));
    world.rest().await;
    world.api.delete("datasets", "team-a", "pets");
    world.until("it says who uses it", |api| condition(api, "pets", "Ready").1 == "InUse").await;
    let dataset = world.api.get("datasets", "team-a", "pets").unwrap();
    assert!(dataset.to_string().contains("team-a/reader"), "{dataset}");
    let held: usize =
        world.api.list("nodecaches").iter().map(|cache| cache["spec"]["datasets"].as_array().map_or(0, Vec::len)).sum();
    assert_eq!(held, 2, "its users keep the room");
    world.api.delete("pods", "team-a", "reader");
    world.until("it is gone", |api| api.list("datasets").is_empty()).await;
    world.rest().await;
    assert_same(&end_state(&world.api), &before, "deleted");
}

#[tokio::test(start_paused = true)]
async fn a_dataset_that_is_not_allowed_or_does_not_fit_says_why_and_resumes_automatically() {
    let mut world = World::new(1);
    let api = world.api.clone();
    let mut own = dataset("team-a", "own", 0);
    own["spec"]["origin"].as_object_mut().unwrap().remove("secretRef");
    api.put("datasets", own);
    let mut broken = dataset("team-a", "broken", 0);
    broken["spec"]["origin"] = "no object".into();
    api.put("datasets", broken);
    let mut large = dataset("team-a", "large", 1);
    large["spec"]["nodes"]["count"] = 2.into();
    api.put("datasets", large);
    for index in 0..10 {
        api.put("datasets", dataset("team-a", &index.to_string(), 1));
    }
    world.start();
    world.rest().await;
    assert_eq!(condition(&api, "own", "Imported"), ("False".into(), "NotAllowed".into()));
    // The node has room for ten datasets. The eleventh reports which datasets have the room.
    assert!((0..10).all(|index| is_ready(&api, &index.to_string())));
    assert_eq!(condition(&api, "large", "Placed"), ("False".into(), "NotEnoughRoom".into()));
    let why = api.get("datasets", "team-a", "large").unwrap().to_string();
    assert!(why.contains("0 of 2 nodes have room; n1: wants 41.7 KiB"), "{why}");
    api.put("nodes", node("n2"));
    api.put("nodes", node("n3"));
    world.until("there is room", |api| is_ready(api, "large")).await;
}

#[tokio::test(start_paused = true)]
async fn datasets_of_one_snapshot_share_its_room() {
    let mut world = World::new(1);
    let api = world.api.clone();
    // The node has room for ten snapshots. Datasets without a tenant's credentials share their bytes.
    for index in 0..15 {
        let mut same = dataset("team-a", &format!("same{index}"), 1);
        same["spec"]["origin"].as_object_mut().unwrap().remove("secretRef");
        same["spec"]["origin"]["anonymous"] = true.into();
        api.put("datasets", same);
    }
    for index in 0..9 {
        api.put("datasets", dataset("team-a", &index.to_string(), 1));
    }
    world.start();
    let names = || (0..15).map(|index| format!("same{index}")).chain((0..9).map(|index| index.to_string()));
    world.until("all are ready", |api| names().all(|name| is_ready(api, &name))).await;
    world.rest().await;
    assert!(names().all(|name| is_ready(&api, &name)));
    api.put("datasets", dataset("team-a", "9", 1));
    world.rest().await;
    assert_eq!(condition(&api, "9", "Placed"), ("False".into(), "NotEnoughRoom".into()));
}
