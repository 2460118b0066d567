//! Requests as kube-scheduler 1.36 sent them (`tests/golden`), answered byte for byte.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use larder_dataset::CacheId;
use larder_scheduler_ext::admin::Counters;
use larder_scheduler_ext::config::Settings;
use larder_scheduler_ext::http::verbs::Verbs;
use larder_scheduler_ext::index::facts::{CacheFacts, DatasetFacts, Held, JobFacts, PodFacts, Seat};
use larder_scheduler_ext::index::{Event, FOLLOWED, Facts, Index, Kind, Object};
use larder_scheduler_ext::ring::Verb;

/// n1 holds all of `default/imagenet`, and n2 an eighth of it. In the recorded preemption, the victim on f0 is index 0
/// of a gang, the victim on f1 is a worker of it above the minimum, next to one with a higher index, the victim on f2
/// belongs to no job, and the victim on f3 is pinned. The other victims are unknown.
fn verbs() -> Verbs {
    let mut index = Index::new(Vec::new());
    for kind in FOLLOWED {
        index.apply(Event::All(kind, Vec::new()));
    }
    let snapshot = CacheId([7; 32]);
    let dataset = DatasetFacts { cache: Some(snapshot), bytes: 1000, ..DatasetFacts::default() };
    let mut put = |kind, key: &str, facts| {
        index.apply(Event::Changed(kind, Box::new(Object { key: key.into(), version: 1, facts })));
    };
    put(Kind::Dataset, "default/imagenet", Facts::Dataset(dataset));
    for (node, bytes) in [("n1", 1000), ("n2", 125)] {
        let held = [Held { cache: snapshot, bytes, wanted: 1000, comes: false }].into();
        put(Kind::NodeCache, node, Facts::Cache(CacheFacts { held, cordon: None }));
    }
    let gang = JobFacts { uid: "j".into(), floors: [("worker".into(), 2)].into(), ..JobFacts::default() };
    put(Kind::TrainingJob, "team/one", Facts::Job(gang));
    for (uid, node, index, pinned) in [
        ("ca79964e-4569-4461-997a-9a6d4fccd3f7", "f0", Some(0), false),
        ("3901709b-71ba-4d44-b2e9-1c8c3b744801", "f1", Some(5), false),
        ("of-index-9", "f1", Some(9), false),
        ("3ebbafc8-a6db-4c23-907f-08ca07e0d748", "f2", None, false),
        ("137578b8-2e4a-462e-b8fe-5c742ea4ce23", "f3", None, true),
    ] {
        let seat = index.map(|index| Seat { job: "team/one".into(), uid: "j".into(), role: "worker".into(), index });
        let facts = PodFacts {
            key: uid.into(),
            uid: uid.into(),
            node: node.into(),
            pinned,
            seat,
            requests: Arc::new([("nvidia.com/gpu", 1)].into_iter().collect()),
            ..PodFacts::default()
        };
        put(Kind::Pod, uid, Facts::Pod(facts));
    }
    let shown = Arc::new(ArcSwap::from(index.show()));
    Verbs::new(Arc::new(Settings::default()), shown, Arc::new(Counters::default())).0
}

// SEMANTICS: X1
#[test]
fn recorded_requests_are_answered_byte_for_byte() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let verbs = verbs();
    for (verb, name) in [
        (Verb::Filter, "filter"),
        (Verb::Prioritize, "prioritize"),
        (Verb::Filter, "filter-data"),
        (Verb::Prioritize, "prioritize-data"),
        (Verb::Preempt, "preempt"),
    ] {
        let request = std::fs::read(folder.join(format!("{name}.request.json"))).unwrap();
        let expected = std::fs::read_to_string(folder.join(format!("{name}.answer.json"))).unwrap();
        let answer = verbs.answer(verb, request.into()).unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), expected.trim_end(), "{name}");
    }
}
