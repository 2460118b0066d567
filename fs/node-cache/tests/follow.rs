//! A node follows its NodeCache on a fake API server, with a stopped clock.
#![expect(clippy::unwrap_used, reason = "this is test code: a panic is how it fails")]

use std::sync::Arc;
use std::time::Duration;

use larder_cachenode::PodVolume;
use larder_cachenode::home::Home;
use larder_cachenode::importing::Importer;
use larder_cachenode::node::{Node, NodeConfig};
use larder_kube::Client;
use larder_node_cache::follow_with;
use larder_origin::OriginConfig;
use larder_testkit::FakeApi;
use larder_testkit::fake_api::Mode;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

const MIB: u64 = 1 << 20;

struct World {
    folder: TempDir,
    api: FakeApi,
}

impl World {
    fn new() -> Self {
        let world = Self { folder: tempfile::tempdir().unwrap(), api: FakeApi::new() };
        world.api.put("nodecaches", json!({"metadata": {"name": "n1"}, "spec": {"datasets": []}}));
        world
    }

    /// Starts a process with this cache, and its follower.
    fn start(&self) -> (Arc<Node>, JoinHandle<()>) {
        self.start_with(0)
    }

    /// The same, where this part of the disk has to stay free.
    fn start_with(&self, keep_free_percent: u8) -> (Arc<Node>, JoinHandle<()>) {
        let node = Node::open(NodeConfig {
            cache_dir: self.folder.path().join("cache"),
            more_cache_dirs: Vec::new(),
            cache_bytes: Some(10 * MIB),
            keep_free_percent,
            home: Home::new(self.folder.path().join("home")),
            origin: OriginConfig::default(),
            importer: Importer::Here,
            peers: None,
            memory: Arc::default(),
            socket: None,
        })
        .unwrap();
        let follower =
            tokio::spawn(follow_with(Arc::clone(&node), "n1".to_owned(), Client::new(self.api.service(), "default")));
        (node, follower)
    }

    fn ask(&self, promises: &[(&str, u64)]) {
        let promise = |(number, (uid, bytes)): (usize, &(&str, u64))| {
            let (name, snapshot) = (format!("team/{uid}"), format!("{number:064x}"));
            json!({"uid": uid, "name": name, "snapshot": snapshot, "bytes": bytes})
        };
        let promises: Vec<Value> = promises.iter().enumerate().map(promise).collect();
        self.api.change("nodecaches", "", "n1", |object| object["spec"] = json!({"datasets": promises}));
    }

    fn object(&self) -> Value {
        self.api.get("nodecaches", "", "n1").unwrap()
    }

    fn status(&self) -> Value {
        self.object()["status"].clone()
    }

    /// True once the status refers to the current generation of the spec.
    fn is_current(&self) -> bool {
        let object = self.object();
        object["status"]["observedGeneration"] == object["metadata"]["generation"]
    }

    async fn wait_until_current(&self) {
        while !self.is_current() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// True if the node admits another volume of team-a, which has `volumes` already.
fn is_admitted(node: &Arc<Node>, volumes: u32) -> bool {
    let volumes = [("team-a".to_owned(), volumes)].into();
    node.admit(&PodVolume { namespace: "team-a".to_owned(), volumes }).is_ok()
}

async fn kept(node: &Arc<Node>) -> Vec<u64> {
    node.cache_report().await.unwrap().promises.iter().map(|promise| promise.disk_bytes).collect()
}

// SEMANTICS: C18
#[tokio::test(start_paused = true)]
async fn promises_are_kept_before_the_status_says_so_and_nothing_is_written_at_rest() {
    let world = World::new();
    let (node, _follower) = world.start();
    world.wait_until_current().await;
    let status = world.status();
    assert_eq!((status["capacityBytes"].as_u64(), status["freeBytes"].as_u64()), (Some(10 * MIB), Some(10 * MIB)));
    world.ask(&[("a", 4 * MIB), ("b", 8 * MIB)]);
    world.wait_until_current().await;
    assert_eq!(kept(&node).await, [4 * MIB, 6 * MIB]);
    let status = world.status();
    assert_eq!(status["unkept"], json!([{"uid": "b", "snapshot": format!("{:064x}", 1), "missingBytes": 2 * MIB}]));
    assert_eq!((status["promisedBytes"].as_u64(), status["freeBytes"].as_u64()), (Some(10 * MIB), Some(0)));
    let writes = world.api.writes().len();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.api.writes().len(), writes, "{:?}", world.api.writes());
    world.ask(&[("a", 4 * MIB)]);
    world.wait_until_current().await;
    assert!(world.status()["unkept"].as_array().is_none_or(Vec::is_empty), "{}", world.status());
}

// SEMANTICS: C18
#[tokio::test(start_paused = true)]
async fn many_changes_are_one_write_in_ten_seconds_and_the_last_one_counts() {
    let world = World::new();
    let (node, _follower) = world.start();
    world.wait_until_current().await;
    let before = world.api.writes().len();
    for second in 0..60 {
        world.ask(&[("a", second * 1000)]);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let during = world.api.writes().len() - before;
    assert!((3..=7).contains(&during), "{during} writes in a minute");
    world.wait_until_current().await;
    assert_eq!(kept(&node).await, [59_000]);
}

// SEMANTICS: C18
#[tokio::test(start_paused = true)]
async fn a_cache_whose_disk_has_no_room_to_spare_reports_none_whatever_its_size_and_says_why() {
    let world = World::new();
    world.ask(&[("a", MIB)]);
    // No disk is as empty as that.
    let (node, follower) = world.start_with(100);
    world.wait_until_current().await;
    let status = world.status();
    assert_eq!((status["capacityBytes"].as_u64(), status["freeBytes"].as_u64()), (Some(0), Some(0)), "{status:#}");
    assert_eq!(status["unkept"][0]["missingBytes"], MIB, "{status:#}");
    let ready = status["conditions"][0].clone();
    assert_eq!(
        (&ready["type"], &ready["status"], &ready["reason"]),
        (&json!("Ready"), &json!("False"), &json!("NoRoom"))
    );
    assert!(ready["message"].as_str().unwrap().contains("--keep-free"), "{ready:#}");
    let writes = world.api.writes().len();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.api.writes().len(), writes, "{:?}", world.api.writes());
    follower.abort();
    let _ = follower.await;
    node.close().await.unwrap();
    drop(node);
    let (_node, _follower) = world.start();
    while world.status()["conditions"][0]["status"] != "True" {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(world.status()["unkept"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_with_an_older_definition_gets_the_status_without_the_condition() {
    let world = World::new();
    world.api.drop_field("nodecaches", "status", "conditions");
    let (_node, _follower) = world.start();
    world.ask(&[("a", MIB)]);
    world.wait_until_current().await;
    assert_eq!((world.status()["promisedBytes"].as_u64(), &world.status()["conditions"]), (Some(MIB), &Value::Null));
    // It is tried again now and then, and nothing else is written.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let writes = world.api.writes().len();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.api.writes().len(), writes, "{:?}", world.api.writes());
    world.api.keep_fields();
    world.ask(&[("a", 2 * MIB)]);
    world.wait_until_current().await;
    assert_eq!(world.status()["conditions"][0]["reason"], "PromisesKept");
}

// SEMANTICS: C17
#[tokio::test(start_paused = true)]
async fn promises_stand_without_an_api_server_over_a_restart_and_while_the_object_is_deleted() {
    let world = World::new();
    world.ask(&[("a", MIB)]);
    let (node, follower) = world.start();
    world.wait_until_current().await;
    world.api.delete("nodecaches", "", "n1");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(kept(&node).await, [MIB]);
    follower.abort();
    let _ = follower.await;
    node.close().await.unwrap();
    drop(node);
    // Another process starts and finds no object.
    let (node, _follower) = world.start();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(kept(&node).await, [MIB]);
    // The object is recreated with other promises, again as generation 1.
    world.api.put("nodecaches", json!({"metadata": {"name": "n1"}, "spec": {"datasets": []}}));
    world.wait_until_current().await;
    assert_eq!(kept(&node).await, [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn changes_are_seen_while_the_api_server_rejects_watches_of_an_old_version() {
    let world = World::new();
    let (node, _follower) = world.start();
    world.wait_until_current().await;
    world.api.turn(&["nodecaches"], Mode::RefusesWatches(410));
    world.api.cut_watches(&["nodecaches"]);
    world.ask(&[("a", MIB)]);
    world.wait_until_current().await;
    assert_eq!(kept(&node).await, [MIB]);
    world.api.delete("nodecaches", "", "n1");
    tokio::time::sleep(Duration::from_secs(60)).await;
    // There is no object whose status could be written, whatever changes in the cache.
    let writes = world.api.writes().len();
    node.promise(Vec::new()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.api.writes().len(), writes, "{:?}", world.api.writes());
}

// SEMANTICS: C18
#[tokio::test(start_paused = true)]
async fn refused_writes_are_tried_again_and_a_spec_that_cannot_be_read_changes_nothing() {
    for code in [409, 429, 500] {
        let world = World::new();
        world.api.refuse_every(2, code);
        let (node, _follower) = world.start();
        for bytes in 1..5 {
            world.ask(&[("a", bytes * MIB)]);
            world.wait_until_current().await;
            assert_eq!(kept(&node).await, [bytes * MIB]);
        }
        world.api.change("nodecaches", "", "n1", |object| object["spec"] = json!({"datasets": "many"}));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!world.is_current(), "{code}");
        assert_eq!(kept(&node).await, [4 * MIB]);
        world.ask(&[("a", MIB)]);
        world.wait_until_current().await;
        assert_eq!(kept(&node).await, [MIB]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_takes_no_promise_is_reported_and_the_promises_are_tried_again() {
    let world = World::new();
    world.ask(&[("a", MIB)]);
    let (node, _follower) = world.start();
    world.wait_until_current().await;
    // A folder blocks the path of the temporary file, so the write fails.
    let obstacle = world.folder.path().join("cache/promises.new");
    std::fs::create_dir(&obstacle).unwrap();
    world.ask(&[("a", MIB), ("b", 2 * MIB)]);
    world.wait_until_current().await;
    let unkept = |status: &Value| -> Vec<u64> {
        let unkept = status["unkept"].as_array().into_iter().flatten();
        unkept.map(|it| it["missingBytes"].as_u64().unwrap()).collect()
    };
    assert_eq!((unkept(&world.status()), kept(&node).await), (vec![MIB, 2 * MIB], vec![MIB]));
    std::fs::remove_dir(&obstacle).unwrap();
    while !unkept(&world.status()).is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(kept(&node).await, [MIB, 2 * MIB]);
}

// SEMANTICS: K22
#[tokio::test(start_paused = true)]
async fn quotas_stand_without_an_api_server_over_a_restart_and_while_the_object_is_deleted() {
    let world = World::new();
    let quota = |mounts: u32| json!([{"name": "research", "namespaces": ["team-a", "team-b"], "mounts": mounts}]);
    let limit = |mounts| {
        world.api.change("nodecaches", "", "n1", |object| object["spec"] = json!({"quotas": quota(mounts)}));
    };
    limit(2);
    let (node, follower) = world.start();
    world.wait_until_current().await;
    assert!(is_admitted(&node, 1) && !is_admitted(&node, 2));
    limit(1);
    world.wait_until_current().await;
    assert!(is_admitted(&node, 0) && !is_admitted(&node, 1));
    world.api.delete("nodecaches", "", "n1");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!is_admitted(&node, 1));
    follower.abort();
    let _ = follower.await;
    node.close().await.unwrap();
    drop(node);
    // Another process starts and finds no object.
    let (node, _follower) = world.start();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(is_admitted(&node, 0) && !is_admitted(&node, 1));
    // A controller of an earlier version recreates the object.
    world.api.put("nodecaches", json!({"metadata": {"name": "n1"}, "spec": {"datasets": []}}));
    world.wait_until_current().await;
    assert!(is_admitted(&node, 1000));
}

#[tokio::test(start_paused = true)]
async fn quotas_are_enforced_by_a_disk_that_takes_no_file_and_written_once_it_does() {
    let world = World::new();
    let (node, follower) = world.start();
    world.wait_until_current().await;
    // A folder blocks the path of the temporary file, so the write fails.
    let obstacle = world.folder.path().join("cache/quotas.new");
    std::fs::create_dir(&obstacle).unwrap();
    let quotas = json!([{"name": "a", "namespaces": ["team-a"], "mounts": 1, "reservedBytes": 5, "imports": 1}]);
    world.api.change("nodecaches", "", "n1", |object| object["spec"] = json!({"quotas": quotas}));
    world.wait_until_current().await;
    assert!(!is_admitted(&node, 1));
    std::fs::remove_dir(&obstacle).unwrap();
    let file = world.folder.path().join("cache/quotas");
    while !file.exists() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    follower.abort();
    let _ = follower.await;
    node.close().await.unwrap();
    drop(node);
    world.api.delete("nodecaches", "", "n1");
    let (node, _follower) = world.start();
    assert!(!is_admitted(&node, 1));
}
