//! Scores and filters in generated clusters: they depend only on the node and the snapshot, and never decrease with
//! more bytes. Each node either passes the filter or fails it, and a node without a score has the score 0.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use larder_dataset::CacheId;
use larder_scheduler_ext::admin::Counters;
use larder_scheduler_ext::config::Settings;
use larder_scheduler_ext::http::verbs::Verbs;
use larder_scheduler_ext::index::facts::{CacheFacts, DatasetFacts, Held, NodeFacts, PodFacts};
use larder_scheduler_ext::index::{Event, FOLLOWED, Facts, Index, Kind, Object};
use larder_scheduler_ext::ring::Verb;
use proptest::prelude::*;
use serde_json::{Value, json};

/// The bytes that a node holds of each of two datasets, how many pods of the group run there, whether its larderd runs,
/// and whether the rest is being fetched.
type Node = ([u64; 2], usize, bool, bool);

#[derive(Clone, Debug)]
struct World {
    nodes: Vec<Node>,
    copies: [Option<u8>; 2],
    bytes: [u64; 2],
}

fn snapshot(number: usize) -> CacheId {
    CacheId([number as u8 + 1; 32])
}

impl World {
    fn verbs(&self) -> Verbs {
        let mut index = Index::new(vec!["nvidia.com/gpu".into()]);
        for kind in FOLLOWED {
            index.apply(Event::All(kind, Vec::new()));
        }
        let mut put = |kind, key: String, facts| {
            index.apply(Event::Changed(kind, Box::new(Object { key: key.into(), version: 1, facts })));
        };
        for (number, (copies, bytes)) in self.copies.into_iter().zip(self.bytes).enumerate() {
            let facts = DatasetFacts { cache: Some(snapshot(number)), bytes, copies, ..DatasetFacts::default() };
            put(Kind::Dataset, format!("a/d{number}"), Facts::Dataset(facts));
        }
        for (number, (held, pods, larderd, comes)) in self.nodes.iter().enumerate() {
            let node = format!("n{number}");
            let zone = format!("z{}", number % 2);
            let facts = NodeFacts { zone: zone.as_str().into(), rack: zone.as_str().into(), devices: [8].into() };
            put(Kind::Node, node.clone(), Facts::Node(facts));
            let held = held.iter().enumerate().map(|(number, bytes)| Held {
                cache: snapshot(number),
                bytes: *bytes,
                wanted: 100,
                comes: *comes,
            });
            put(Kind::NodeCache, node.clone(), Facts::Cache(CacheFacts { held: held.collect(), cordon: None }));
            for pod in 0..*pods + usize::from(*larderd) {
                let key = format!("a/p{number}-{pod}");
                let facts = PodFacts {
                    key: key.as_str().into(),
                    uid: key.as_str().into(),
                    node: node.as_str().into(),
                    group: (pod < *pods).then(|| "a/larder.dev/job=train".into()),
                    larderd: (pod == *pods).then_some(true),
                    ..PodFacts::default()
                };
                put(Kind::Pod, key, Facts::Pod(facts));
            }
        }
        let shown = Arc::new(ArcSwap::from(index.show()));
        Verbs::new(Arc::new(Settings::default()), shown, Arc::new(Counters::default())).0
    }
}

fn request(names: &[String], required: bool) -> Vec<u8> {
    let mut annotations = json!({"larder.dev/datasets": "d0,d1"});
    if required {
        annotations["larder.dev/data"] = "required".into();
    }
    let labels = json!({"larder.dev/job": "train"});
    let metadata = json!({"name": "p", "namespace": "a", "labels": labels, "annotations": annotations});
    json!({"Pod": {"metadata": metadata, "spec": {}}, "NodeNames": names}).to_string().into_bytes()
}

fn scores(verbs: &Verbs, names: &[String]) -> BTreeMap<String, u64> {
    let answer = verbs.answer(Verb::Prioritize, request(names, false).into()).expect("an answer");
    let answer: Vec<Value> = serde_json::from_slice(&answer).expect("JSON");
    let score =
        |one: &Value| (one["Host"].as_str().expect("a name").to_owned(), one["Score"].as_u64().expect("a score"));
    let named: BTreeMap<String, u64> = answer.iter().map(score).collect();
    assert!(named.iter().all(|(name, score)| *score > 0 && names.contains(name)), "{named:?}");
    names.iter().map(|name| (name.clone(), named.get(name).copied().unwrap_or(0))).collect()
}

fn filtered(verbs: &Verbs, names: &[String]) -> (Vec<String>, BTreeMap<String, String>) {
    let answer = verbs.answer(Verb::Filter, request(names, true).into()).expect("an answer");
    let answer: Value = serde_json::from_slice(&answer).expect("JSON");
    let part = |name: &str| answer[name].clone();
    let passing: Vec<String> = serde_json::from_value(part("NodeNames")).expect("JSON");
    let failing: BTreeMap<String, String> = serde_json::from_value(part("FailedAndUnresolvableNodes")).expect("JSON");
    assert_eq!(passing.len() + failing.len(), names.len());
    (passing, failing)
}

fn any_world() -> impl Strategy<Value = World> {
    let bytes = || prop_oneof![Just(0u64), 0..200u64, any::<u64>()];
    let node = ([bytes(), bytes()], 0..3usize, any::<bool>(), any::<bool>());
    let copies = || proptest::option::of(1..4u8);
    (proptest::collection::vec(node, 0..6), [copies(), copies()], [bytes(), bytes()])
        .prop_map(|(nodes, copies, bytes)| World { nodes, copies, bytes })
}

/// Nodes of the cluster and unknown nodes, in any order.
fn any_names() -> impl Strategy<Value = Vec<String>> {
    proptest::sample::subsequence((0..9).collect::<Vec<_>>(), 0..=9)
        .prop_shuffle()
        .prop_map(|names| names.into_iter().map(|number| format!("n{number}")).collect())
}

proptest! {
    // SEMANTICS: X1
    #[test]
    fn the_order_of_names_does_not_matter(world in any_world(), names in any_names()) {
        let verbs = world.verbs();
        let mut sorted = names.clone();
        sorted.sort();
        let all = scores(&verbs, &names);
        prop_assert!(all.values().all(|score| *score <= 10));
        prop_assert_eq!(&all, &scores(&verbs, &sorted));
        let (mut passing, failing) = filtered(&verbs, &names);
        passing.sort();
        prop_assert_eq!((passing, failing), filtered(&verbs, &sorted));
        // The other nodes of a request do not affect a node's score.
        if let Some(name) = names.first() {
            prop_assert_eq!(all[name], scores(&verbs, std::slice::from_ref(name))[name]);
        }
    }

    // SEMANTICS: X1
    #[test]
    fn a_node_that_holds_more_does_not_score_less(world in any_world(), at: prop::sample::Index, which in 0..2usize, more: u64) {
        prop_assume!(!world.nodes.is_empty());
        let at = at.index(world.nodes.len());
        let mut fuller = world.clone();
        let held = &mut fuller.nodes[at].0[which];
        *held = held.saturating_add(more);
        let name = [format!("n{at}")];
        let (before, after) = (scores(&world.verbs(), &name), scores(&fuller.verbs(), &name));
        prop_assert!(before[&name[0]] <= after[&name[0]], "{:?} {:?}", before, after);
        let (before, after) = (filtered(&world.verbs(), &name).0, filtered(&fuller.verbs(), &name).0);
        prop_assert!(before.len() <= after.len());
    }
}

// SEMANTICS: X1
#[test]
fn an_empty_cluster_and_no_names_have_answers_too() {
    let world = World { nodes: vec![], copies: [None, Some(1)], bytes: [0, 100] };
    let verbs = world.verbs();
    assert_eq!(scores(&verbs, &[]), BTreeMap::new());
    let unknown = ["x".to_owned()];
    assert_eq!(scores(&verbs, &unknown), [("x".to_owned(), 0)].into());
    assert_eq!(
        filtered(&verbs, &unknown).1,
        [("x".to_owned(), "x: holds 0 percent of a/d0, 90 percent is required".to_owned())].into()
    );
}
