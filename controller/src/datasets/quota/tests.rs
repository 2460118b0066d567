use std::collections::BTreeSet;

use larder_api::cache_quota::checked::CheckedQuota;
use larder_api::names::{ANONYMOUS_OWNER, FINALIZER};
use larder_api::{Dataset, NodeCacheSpec, NodeCacheStatus, SnapshotCache};
use serde_json::{Value, json};

use super::*;
use crate::datasets::decide;
use crate::datasets::input::{DatasetView, Decision, Refusals, Settings};
use crate::objects::{CacheObject, DatasetObject, Node};
use crate::time::Seconds;
use crate::warm_request::{Requester, WarmRequest, Warmth};
use crate::write::Change;
use larder_kube::key::{Key, Meta};
use larder_kube::pod::node_affinity::Places;

/// The room of the dataset on a node: one without files takes no more than its bytes.
const BYTES: u64 = 1000;

fn snapshot(letter: &str) -> String {
    letter.repeat(64)
}

/// A dataset on nodes `n1` to `n3`, which have room for it, and what a quota leaves to it.
struct Case {
    spec: Value,
    /// Its standing promises: node, snapshot and bytes.
    standing: Vec<(&'static str, &'static str, u64)>,
    /// Snapshots that pods mount on `n1`.
    mounted: Vec<&'static str>,
    limits: CheckedQuota,
    /// Bytes that other datasets of the quota have, and those that are kept for older ones.
    others: u64,
    kept: u64,
    older: usize,
    requests: Vec<WarmRequest>,
}

fn case(count: u32, most: u64) -> Case {
    Case {
        spec: json!({"nodes": {"count": count}}),
        standing: Vec::new(),
        mounted: Vec::new(),
        limits: CheckedQuota {
            namespaces: vec!["team-a".to_owned()],
            promised_bytes: Some(most),
            ..CheckedQuota::default()
        },
        others: 0,
        kept: 0,
        older: 0,
        requests: Vec::new(),
    }
}

fn request(namespace: &str, pods: usize) -> WarmRequest {
    let by = Requester::Job(Key::new(namespace, "train"));
    WarmRequest { by, since: Seconds(1), pods, places: Places::default(), gpus: false }
}

impl Case {
    /// The dataset, whose current snapshot is `a`. With `latest`, that one is to follow.
    fn dataset(&self, latest: &str) -> DatasetObject {
        let listed = |letter: &str| json!({"id": snapshot(letter), "files": 0, "bytes": BYTES, "listed": "2026-01-01T00:00:00Z"});
        let known = if latest == "a" { vec![listed("a")] } else { vec![listed(latest), listed("a")] };
        let mut object = json!({
            "apiVersion": "larder.dev/v1alpha1", "kind": "Dataset",
            "metadata": {"namespace": "team-a", "name": "pets", "generation": 1, "finalizers": [FINALIZER]},
            "spec": {"origin": {"source": "s3://bucket/pets", "anonymous": true}, "namespaces": ["team-b"]},
            "status": {"snapshot": snapshot("a"), "snapshots": known},
        });
        object["spec"].as_object_mut().unwrap().extend(self.spec.as_object().unwrap().clone());
        let dataset: Dataset = serde_json::from_value(object).unwrap();
        let meta = Meta { key: Key::new("team-a", "pets"), uid: "u".into(), ..Meta::default() };
        DatasetObject { meta, dataset }
    }

    fn node(&self, name: &str) -> (Node, CacheObject) {
        let meta = Meta { key: Key::cluster(name), ..Meta::default() };
        let of_node = self.standing.iter().filter(|(node, ..)| *node == name);
        let promise = |(_, letter, bytes): &(&str, &str, u64)| PromisedDataset {
            uid: "u".into(),
            name: "team-a/pets".into(),
            snapshot: snapshot(letter),
            owner: ANONYMOUS_OWNER.into(),
            bytes: *bytes,
        };
        let mounted = self.mounted.iter().filter(|_| name == "n1");
        let mounted = mounted.map(|letter| SnapshotCache {
            snapshot: snapshot(letter),
            owner: ANONYMOUS_OWNER.into(),
            mounts: 1,
            reserved_bytes: BYTES,
            ..SnapshotCache::default()
        });
        let status = NodeCacheStatus {
            observed_generation: Some(1),
            capacity_bytes: 10 * BYTES,
            snapshots: mounted.collect(),
            ..NodeCacheStatus::default()
        };
        let spec = NodeCacheSpec { datasets: of_node.map(promise).collect(), ..NodeCacheSpec::default() };
        let cache = CacheObject { meta: meta.clone(), generation: 1, spec, status: Some(status) };
        (Node { meta, ready: true, ..Node::default() }, cache)
    }

    fn decide_with(&self, latest: &str) -> Decision {
        let (dataset, nodes) = (self.dataset(latest), ["n1", "n2", "n3"].map(|name| self.node(name)));
        let (settings, emitted) = (Settings { image: "larder:1".into(), ..Settings::default() }, BTreeSet::new());
        let own: u64 = self.standing.iter().map(|(_, _, bytes)| bytes).sum();
        decide(&DatasetView {
            now: Seconds(1_800_000_000),
            settings: &settings,
            key: &dataset.meta.key,
            dataset: Some(&dataset),
            nodes: nodes
                .iter()
                .map(|(node, cache)| NodeFacts {
                    node,
                    cache: Some(cache),
                    promised: &cache.spec.datasets,
                    owner: ANONYMOUS_OWNER,
                })
                .collect(),
            jobs: Vec::new(),
            job_pods: Vec::new(),
            users: Vec::new(),
            claims: Vec::new(),
            volumes: Vec::new(),
            deployments: Vec::new(),
            warm_requests: self.requests.clone(),
            warm_requests_unknown: false,
            is_left_out: false,
            warming_slots: 8,
            quota: Some(QuotaView {
                name: "research",
                limits: &self.limits,
                promised: self.others + own,
                kept: self.kept,
                older: self.older,
                imports: 0,
            }),
            status_age: i64::MAX,
            emitted: &emitted,
            refused: &Refusals::new(),
        })
    }

    fn decide(&self) -> Decision {
        self.decide_with("a")
    }
}

/// The promises of a decision: node, first letter of the snapshot, bytes.
fn promised(decision: &Decision) -> Vec<(String, String, u64)> {
    let of = |(node, promises): (&String, &Vec<PromisedDataset>)| {
        promises.iter().map(|there| (node.clone(), there.snapshot[..1].to_owned(), there.bytes)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = decision.promises.iter().flat_map(of).collect();
    all.sort();
    all
}

fn expected(of: &[(&str, &str, u64)]) -> Vec<(String, String, u64)> {
    of.iter().map(|(node, letter, bytes)| ((*node).to_owned(), (*letter).to_owned(), *bytes)).collect()
}

/// Reason and message of the condition `Placed`.
fn placed(decision: &Decision) -> (String, String) {
    let status = decision.writes.iter().find_map(|write| match &write.change {
        Change::ApplyStatus(fields) => Some(fields["status"].clone()),
        _ => None,
    });
    let conditions = status.unwrap()["conditions"].as_array().unwrap().clone();
    let found = conditions.into_iter().find(|condition| condition["type"] == "Placed").unwrap();
    let text = |key: &str| found[key].as_str().unwrap().to_owned();
    (text("reason"), text("message"))
}

#[test]
fn the_nodes_of_the_spec_get_room_together_to_the_byte() {
    let fits = case(2, 2 * BYTES).decide();
    assert_eq!((promised(&fits).len(), fits.over_quota), (2, None));
    for short in [
        case(2, 2 * BYTES - 1),
        Case { others: 1, ..case(2, 2 * BYTES) },
        Case { kept: 1, ..case(2, 2 * BYTES) },
        case(2, 0),
    ] {
        let decision = short.decide();
        assert_eq!((promised(&decision), decision.over_quota), (vec![], Some(2 * BYTES)));
        assert_eq!(placed(&decision).0, "QuotaExceeded");
        assert!(!decision.writes.iter().any(|write| write.kind == larder_kube::kinds::Kind::Job));
    }
    let kept = placed(&Case { kept: 1024, others: 2048, ..case(2, 4 * 1024) }.decide()).1;
    assert!(
        kept.contains(
            "2.0 KiB are promised on 0 nodes, 1.0 KiB are kept for older Datasets that wait, and this dataset"
        ),
        "{kept}"
    );
}

#[test]
fn what_stands_stays_and_does_not_grow() {
    let standing = vec![("n1", "a", BYTES), ("n2", "a", 400)];
    let decision = Case { standing: standing.clone(), others: 50, ..case(3, 10) }.decide();
    assert_eq!(promised(&decision), expected(&standing));
    assert_eq!(decision.over_quota, Some(1600), "for the third node, and the rest of the second");
    let (reason, message) = placed(&decision);
    assert_eq!(reason, "QuotaExceeded");
    assert!(message.ends_with("this dataset needs 1.6 KiB more on 2 nodes"), "{message}");
    // As long as nothing is added, the quota is not in its way.
    let all = Case { standing: vec![("n1", "a", BYTES)], ..case(1, 0) }.decide();
    assert_eq!((promised(&all).len(), all.over_quota), (1, None));
}

#[test]
fn a_new_snapshot_takes_the_room_of_the_old_one_unless_pods_read_that() {
    let old = || vec![("n1", "o", BYTES)];
    let replaced = Case { standing: old(), ..case(1, BYTES) }.decide();
    assert_eq!(promised(&replaced).iter().map(|(_, letter, _)| letter.as_str()).collect::<Vec<_>>(), ["a"]);
    let read = Case { standing: old(), mounted: vec!["o"], ..case(1, BYTES) }.decide();
    assert_eq!(promised(&read), expected(&[("n1", "o", BYTES)]));
    assert_eq!(read.over_quota, Some(BYTES));
}

#[test]
fn the_next_snapshot_is_warmed_beside_the_current_one_if_the_quota_has_room_for_both() {
    let standing = || vec![("n1", "a", BYTES)];
    // The next snapshot goes to the node with more room.
    let both = Case { standing: standing(), ..case(1, 2 * BYTES) }.decide_with("b");
    assert_eq!(promised(&both), expected(&[("n1", "a", BYTES), ("n2", "b", BYTES)]));
    let one = Case { standing: standing(), ..case(1, 2 * BYTES - 1) }.decide_with("b");
    assert_eq!(promised(&one), expected(&[("n1", "a", BYTES)]));
    // Without room for both it is published at once, and takes the place of the current one.
    let publishes = |decision: &Decision| decision.writes.iter().any(|write| write.name.starts_with("larder-import"));
    assert!(publishes(&one) && !publishes(&both));
}

fn warmth(decision: &Decision, namespace: &str) -> Warmth {
    match &decision.progress[&Requester::Job(Key::new(namespace, "train"))] {
        Progress::Warms(warmth) => warmth.clone(),
        Progress::Refused => panic!("the job may use the dataset"),
    }
}

#[test]
fn jobs_get_as_many_of_their_nodes_as_fit_and_learn_why_not_all() {
    let decision = Case { requests: vec![request("team-a", 3)], ..case(0, 2 * BYTES) }.decide();
    assert_eq!(promised(&decision).len(), 2);
    let got = warmth(&decision, "team-a");
    assert!(got.is_over_quota && got.why.contains("this dataset needs 1000 B more on 1 node"), "{got:?}");
    assert_eq!(placed(&decision).0, "NotWanted", "the condition is about spec.nodes");
    // A job of another namespace does not learn the numbers.
    let got = warmth(&Case { requests: vec![request("team-b", 3)], ..case(0, BYTES) }.decide(), "team-b");
    assert_eq!((got.why.as_str(), got.is_over_quota), ("the CacheQuota of the namespace team-a is used up", true));
    // The nodes of a job get room even if there is none for all nodes of the spec.
    let both = Case { requests: vec![request("team-a", 1)], ..case(3, BYTES) }.decide();
    assert_eq!((promised(&both).len(), placed(&both).0.as_str()), (1, "QuotaExceeded"));
    assert!(!warmth(&both, "team-a").is_over_quota);
}

#[test]
fn a_dataset_too_many_gets_nothing_new() {
    let limits = CheckedQuota {
        namespaces: vec!["team-a".into(), "team-b".into()],
        datasets: Some(2),
        ..CheckedQuota::default()
    };
    let of = |older, standing| Case { limits: limits.clone(), older, standing, ..case(2, 0) };
    assert_eq!(promised(&of(1, vec![]).decide()).len(), 2);
    let decision = of(2, vec![("n1", "a", BYTES)]).decide();
    assert_eq!(promised(&decision), expected(&[("n1", "a", BYTES)]));
    let (reason, message) = placed(&decision);
    assert_eq!(reason, "QuotaExceeded");
    assert_eq!(
        message,
        "the CacheQuota research allows the namespace team-a and those that share the quota 2 Datasets, and 2 older ones \
         exist"
    );
}
