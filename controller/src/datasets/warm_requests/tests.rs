use std::collections::BTreeMap;

use larder_api::names::{FINALIZER, ROLE_WARM};
use larder_api::{Dataset, NodeCacheStatus, PromisedDataset, SnapshotCache};
use serde_json::{Value, json};

use super::*;
use crate::datasets::decide;
use crate::datasets::input::{Refusals, Settings};
use crate::datasets::slots::Needs;
use crate::objects::{CacheObject, Job, Node, Role};
use crate::time::Seconds;
use crate::warm_request::Requester;
use crate::write::Change;
use larder_kube::key::{Key, Meta};
use larder_kube::kinds::Kind;
use larder_kube::pod::node_affinity::Places;

/// A dataset without files takes no more disk space than its bytes.
const BYTES: u64 = 1000;

/// A dataset, the nodes of its cluster, and the promises of earlier decisions.
struct Cluster {
    dataset: DatasetObject,
    nodes: Vec<(Node, CacheObject)>,
    jobs: Vec<Job>,
    /// The slots for warming.
    slots: u32,
}

fn dataset(name: &str, spec: Value) -> DatasetObject {
    let snapshot = "a".repeat(64);
    let mut object = json!({
        "apiVersion": "larder.dev/v1alpha1",
        "kind": "Dataset",
        "metadata": {"namespace": "team-a", "name": name, "generation": 1, "finalizers": [FINALIZER]},
        "spec": {"origin": {"source": format!("s3://bucket/{name}"), "secretRef": {"name": "keys"}},
            "namespaces": ["team-b"]},
        "status": {
            "snapshot": snapshot,
            "snapshots": [{"id": snapshot, "files": 0, "bytes": BYTES, "listed": "2026-01-01T00:00:00Z"}],
            "conditions": [{"type": "Imported", "status": "True", "reason": "Listed", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    let dataset: Dataset = serde_json::from_value(object).unwrap();
    let meta = Meta { key: Key::new("team-a", name), uid: name.to_owned(), ..Meta::default() };
    DatasetObject { meta, dataset }
}

impl Cluster {
    /// Nodes from `n1` up. Nodes with odd numbers have the label `gpu`.
    fn new(nodes: usize, spec: Value) -> Self {
        let node = |index: usize| {
            let meta = Meta { key: Key::cluster(&format!("n{index}")), ..Meta::default() };
            let kind = if index % 2 == 1 { "gpu" } else { "cpu" };
            let labels = BTreeMap::from([("kind".to_owned(), kind.to_owned())]);
            let status = NodeCacheStatus {
                observed_generation: Some(1),
                capacity_bytes: 2 * BYTES,
                ..NodeCacheStatus::default()
            };
            let cache =
                CacheObject { meta: meta.clone(), generation: 1, spec: Default::default(), status: Some(status) };
            (Node { meta, labels, ready: true, ..Node::default() }, cache)
        };
        Self { dataset: dataset("pets", spec), nodes: (1..=nodes).map(node).collect(), jobs: Vec::new(), slots: 64 }
    }

    fn decide(&self, requests: &[WarmRequest]) -> Decision {
        let (settings, emitted) = (Settings { image: "larder:1".into(), ..Settings::default() }, BTreeSet::new());
        let owner = self.dataset.cache_owner();
        decide(&DatasetView {
            now: Seconds(1_800_000_000),
            settings: &settings,
            key: &self.dataset.meta.key,
            dataset: Some(&self.dataset),
            nodes: self
                .nodes
                .iter()
                .map(|(node, cache)| NodeFacts { node, cache: Some(cache), promised: &cache.spec.datasets, owner })
                .collect(),
            jobs: self.jobs.iter().collect(),
            job_pods: Vec::new(),
            users: Vec::new(),
            claims: Vec::new(),
            volumes: Vec::new(),
            deployments: Vec::new(),
            warm_requests: requests.to_vec(),
            warming_slots: self.slots,
            quota: None,
            status_age: i64::MAX,
            emitted: &emitted,
            refused: &Refusals::new(),
            warm_requests_unknown: false,
            is_left_out: false,
        })
    }

    /// Decides, writes the promises, and makes each node that holds the dataset cache this many of its bytes.
    fn settle(&mut self, requests: &[WarmRequest], cached: u64) -> Decision {
        for _ in 0..3 {
            let decision = self.decide(requests);
            for (node, cache) in &mut self.nodes {
                cache.spec.datasets.retain(|there| there.uid != self.dataset.meta.uid);
                cache.spec.datasets.extend(decision.promises.get(&node.meta.key.name).cloned().unwrap_or_default());
                let status = cache.status.as_mut().unwrap();
                let cached = |promise: &PromisedDataset| SnapshotCache {
                    snapshot: promise.snapshot.clone(),
                    owner: promise.owner.clone(),
                    bytes: cached.min(promise.bytes),
                    reserved_bytes: promise.bytes,
                    ..SnapshotCache::default()
                };
                status.snapshots = cache.spec.datasets.iter().map(cached).collect();
                status.promised_bytes = cache.spec.datasets.iter().map(|promise| promise.bytes).sum();
            }
        }
        self.decide(requests)
    }
}

fn request(name: &str, since: i64, pods: usize) -> WarmRequest {
    WarmRequest { by: job("team-a", name), since: Seconds(since), pods, places: Places::default(), gpus: false }
}

/// A request of a job whose pods run on nodes of one kind.
fn request_on(kind: &str, name: &str, since: i64, pods: usize) -> WarmRequest {
    let labels = BTreeMap::from([("kind".to_owned(), kind.to_owned())]);
    WarmRequest { places: Places { labels, ..Places::default() }, ..request(name, since, pods) }
}

fn job(namespace: &str, name: &str) -> Requester {
    Requester::Job(Key::new(namespace, name))
}

fn nodes_of(decision: &Decision) -> Vec<&str> {
    decision.promises.keys().map(String::as_str).collect()
}

fn warmth_of(decision: &Decision, name: &str) -> Warmth {
    match &decision.progress[&job("team-a", name)] {
        Progress::Warms(warmth) => warmth.clone(),
        Progress::Refused => panic!("{name} is refused"),
    }
}

fn status_of(decision: &Decision) -> Value {
    let status = decision.writes.iter().find_map(|write| match &write.change {
        Change::ApplyStatus(fields) => Some(fields["status"].clone()),
        _ => None,
    });
    status.expect("a status is written")
}

#[test]
fn jobs_get_as_many_nodes_as_they_have_pods_and_not_each_others() {
    let mut cluster = Cluster::new(8, json!({}));
    let requests = [request("one", 1, 3), request("two", 2, 2)];
    let decision = cluster.settle(&requests, 620);
    assert_eq!(decision.promises.len(), 5, "{:?}", nodes_of(&decision));
    let expected = Warmth { wanted: 3, holding: 3, cached_bytes: 1860, wanted_bytes: 3000, ..Warmth::default() };
    assert_eq!(warmth_of(&decision, "one"), expected);
    assert_eq!((warmth_of(&decision, "two").percent(), decision.is_starved), (62, false));
    // If there are more jobs than nodes, they share the nodes, and every job has some.
    let many: Vec<WarmRequest> = (0..20).map(|index| request(&format!("job-{index}"), index, 2)).collect();
    let decision = cluster.settle(&many, BYTES);
    assert_eq!(decision.promises.len(), 8);
    assert!(
        decision.progress.values().all(|progress| matches!(progress, Progress::Warms(all) if all.percent() == 100))
    );
}

#[test]
fn a_job_has_only_nodes_that_its_pods_may_use_and_whom_fewer_suit_chooses_first() {
    let mut cluster = Cluster::new(6, json!({}));
    let decision = cluster.settle(&[request_on("gpu", "one", 1, 8)], 0);
    assert_eq!(nodes_of(&decision), ["n1", "n3", "n5"]);
    assert_eq!(warmth_of(&decision, "one").wanted, 3, "three nodes for eight pods");
    // The other job came first and could have used any node.
    let both = [request("any", 1, 3), request_on("gpu", "one", 2, 3)];
    let decision = cluster.settle(&both, 500);
    assert_eq!(decision.promises.len(), 6);
    assert_eq!(nodes_of(&cluster.settle(&both, 900)), nodes_of(&decision), "they keep their nodes");
    let none = cluster.settle(&[request_on("tpu", "one", 1, 2)], 0);
    assert!(none.promises.is_empty());
    assert!(warmth_of(&none, "one").why.contains("no ready node"), "{none:?}");
    assert_eq!(warmth_of(&none, "one").percent(), 0);
}

#[test]
fn nodes_of_the_spec_serve_jobs_and_jobs_change_none_of_its_conditions() {
    let mut cluster = Cluster::new(6, json!({"nodes": {"count": 2}}));
    let before = cluster.settle(&[], BYTES);
    let (own, status) = (before.promises.clone(), status_of(&before));
    let job = [request("one", 1, 3)];
    // The third node is cold.
    let decision = cluster.decide(&job);
    assert_eq!(decision.promises.len(), 3);
    assert!(own.keys().all(|node| decision.promises.contains_key(node)), "{:?}", nodes_of(&decision));
    let (wanted, percent) = (warmth_of(&decision, "one").wanted, warmth_of(&decision, "one").percent());
    assert_eq!((wanted, percent), (3, 66));
    assert_eq!(status_of(&decision), status);
    let after = cluster.settle(&job, 500);
    assert_eq!(status_of(&after)["nodes"]["wanted"], 2);
    // Without `count`, the dataset is ready even while jobs wait for it.
    let mut unasked = Cluster::new(2, json!({}));
    let decision = unasked.settle(&[request("one", 1, 2)], 0);
    let ready =
        status_of(&decision)["conditions"].as_array().unwrap().iter().find(|there| there["type"] == "Ready").cloned();
    assert_eq!(ready.unwrap()["status"], "True");
    assert_eq!(decision.promises.len(), 2);
}

#[test]
fn nodes_of_jobs_with_gpus_are_warmed_first() {
    let mut cluster = Cluster::new(4, json!({"nodes": {"count": "all"}}));
    let with_gpus = WarmRequest { gpus: true, ..request_on("gpu", "train", 1, 2) };
    let requests = [request_on("cpu", "other", 1, 1), with_gpus];
    cluster.settle(&requests, 0);
    cluster.slots = 2;
    let decision = cluster.decide(&requests);
    assert_eq!(decision.needs, Needs { urgent: 2, others: 2, urgent_held: 0 });
    let made: Vec<(String, String)> = decision
        .writes
        .iter()
        .filter_map(|write| match &write.change {
            Change::Create(job) if write.kind == Kind::Job => {
                let purpose = job["metadata"]["annotations"]["larder.dev/purpose"].as_str().unwrap();
                Some((purpose.split(' ').next().unwrap().to_owned(), write.name.clone()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(made.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["n1", "n3"]);
    let begun = made.iter().map(|(_, name)| Job {
        meta: Meta { key: Key::new("team-a", name), uid: name.clone(), ..Meta::default() },
        role: Role { uid: "pets".into(), role: ROLE_WARM.into(), node: String::new() },
        end: None,
    });
    cluster.jobs = begun.collect();
    let needs = Needs { urgent: 0, others: 2, urgent_held: 2 };
    assert_eq!(cluster.decide(&requests).needs, needs);
}

#[test]
fn an_evicted_jobs_promises_and_warming_end_at_once() {
    let mut cluster = Cluster::new(4, json!({"nodes": {"count": 1}}));
    let decision = cluster.settle(&[request("one", 1, 3)], 0);
    assert_eq!(decision.promises.len(), 3);
    let begun = decision.writes.iter().filter(|write| write.kind == Kind::Job).map(|write| Job {
        meta: Meta { key: Key::new("team-a", &write.name), uid: write.name.clone(), ..Meta::default() },
        role: Role { uid: "pets".into(), role: ROLE_WARM.into(), node: String::new() },
        end: None,
    });
    cluster.jobs = begun.collect();
    assert_eq!(cluster.jobs.len(), 3);
    let after = cluster.decide(&[]);
    assert_eq!(after.promises.len(), 1, "the spec's own stays");
    let ended =
        after.writes.iter().filter(|write| write.kind == Kind::Job && matches!(write.change, Change::Delete(_)));
    assert_eq!(ended.count(), 2);
    assert!(after.progress.is_empty());
}

// SEMANTICS: K7
#[test]
fn a_node_without_room_counts_and_says_why() {
    let mut cluster = Cluster::new(2, json!({}));
    let promise = |name: &str, snapshot: &str, bytes: u64| PromisedDataset {
        uid: name.into(),
        name: name.into(),
        snapshot: snapshot.repeat(64),
        bytes,
        ..PromisedDataset::default()
    };
    let promises = [("team-a/coco", "b", 900), ("team-b/secret", "c", 250), ("team-c/secret", "d", 350)];
    cluster.nodes[0].1.spec.datasets.extend(promises.map(|(name, snapshot, bytes)| promise(name, snapshot, bytes)));
    let decision = cluster.settle(&[request("one", 1, 2)], BYTES);
    assert_eq!(nodes_of(&decision), ["n2"]);
    let warmth = warmth_of(&decision, "one");
    assert_eq!((warmth.wanted, warmth.holding, warmth.percent()), (2, 1, 50));
    // The arithmetic is complete, and names no dataset of another namespace.
    let arithmetic = "of which team-a/coco 900, datasets of other namespaces 600 are promised";
    assert!(warmth.why.contains("n1: wants 1000") && warmth.why.contains(arithmetic), "{}", warmth.why);
    assert!(decision.is_starved, "it resumes automatically once there is room");
}

#[test]
fn two_datasets_of_one_job_are_placed_each_by_itself_and_pod_sets_add_up() {
    let mut pets = Cluster::new(4, json!({}));
    // A job with two kinds of pods: a leader, and two workers.
    let both = [request_on("cpu", "train", 1, 1), request_on("gpu", "train", 1, 2)];
    let decision = pets.settle(&both, 750);
    assert_eq!(decision.promises.len(), 3);
    assert_eq!((warmth_of(&decision, "train").wanted, warmth_of(&decision, "train").percent()), (3, 75));
    let mut cars = Cluster::new(4, json!({}));
    cars.dataset = dataset("cars", json!({}));
    for ((_, theirs), (_, ours)) in cars.nodes.iter_mut().zip(&pets.nodes) {
        theirs.spec = ours.spec.clone();
    }
    // The leader also reads this dataset. All nodes have room for both datasets.
    let decision = cars.settle(&[request_on("cpu", "train", 1, 1)], 0);
    assert_eq!((decision.promises.len(), warmth_of(&decision, "train").percent()), (1, 0));
}

#[test]
fn a_job_that_may_not_use_the_dataset_gets_nothing() {
    let cluster = Cluster::new(2, json!({}));
    let of = |namespace: &str| WarmRequest { by: job(namespace, "job"), ..request("job", 1, 1) };
    let decision = cluster.decide(&[of("team-b"), of("team-c")]);
    assert_eq!(decision.promises.len(), 1);
    assert!(matches!(decision.progress[&job("team-b", "job")], Progress::Warms(_)));
    assert_eq!(decision.progress[&job("team-c", "job")], Progress::Refused);
}

#[test]
fn a_dataset_that_nodes_share_is_warm_when_all_shares_are() {
    let mut cluster =
        Cluster::new(4, json!({"cache": {"placement": "partitioned"}, "nodes": {"selector": {"kind": "gpu"}}}));
    let decision = cluster.settle(&[request("one", 1, 1)], 250);
    assert_eq!(nodes_of(&decision), ["n1", "n3"], "each has its share, wherever the pod runs");
    assert_eq!(warmth_of(&decision, "one").percent(), 50);
    assert_eq!(warmth_of(&cluster.settle(&[request("one", 1, 1)], 500), "one").percent(), 100);
}
