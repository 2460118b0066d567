use std::collections::BTreeMap;

use larder_dataset::CacheId;
use proptest::prelude::*;

use super::facts::Seat;
use super::*;

fn node(zone: &str) -> Facts {
    Facts::Node(NodeFacts { zone: zone.into(), rack: format!("{zone}-r").into(), devices: [8].into() })
}

fn cache(held: &[(u8, u64)]) -> Facts {
    let held = held.iter().map(|(id, bytes)| {
        let snapshot = CacheId([*id; 32]);
        Held { cache: snapshot, bytes: *bytes, wanted: 100, comes: false }
    });
    Facts::Cache(CacheFacts { held: held.collect(), cordon: None })
}

fn pod(name: &str, node: &str, claim: &str) -> Facts {
    Facts::Pod(PodFacts {
        key: format!("a/{name}").into(),
        uid: format!("uid-{name}").into(),
        node: node.into(),
        group: Some("a/job=train".into()),
        seat: Some(Seat { job: "a/train".into(), uid: "j".into(), role: "worker".into(), index: 1 }),
        requests: Arc::new([("gpu", 2)].into_iter().collect()),
        reads: [Read::Claim(format!("a/{claim}").into())].into(),
        larderd: (name == "larderd").then_some(true),
        ..PodFacts::default()
    })
}

fn volume(claim: &str) -> Facts {
    let claim = format!("a/{claim}").into();
    Facts::Volume(VolumeFacts { claim, dataset: "a/pets".into(), uid: "uid-pets".into() })
}

fn job(floor: u32, waits: bool) -> Facts {
    Facts::Job(JobFacts { uid: "j".into(), floors: [("worker".into(), floor)].into(), waits, leaving: false })
}

fn nomination(name: &str, node: &str) -> Facts {
    Facts::Nominated(Nomination { uid: format!("uid-{name}").into(), node: node.into() })
}

fn kind(facts: &Facts) -> Kind {
    match facts {
        Facts::Node(_) => Kind::Node,
        Facts::Pod(_) | Facts::Nominated(_) => Kind::Pod,
        Facts::Volume(_) => Kind::Volume,
        Facts::Cache(_) => Kind::NodeCache,
        Facts::Dataset(_) => Kind::Dataset,
        Facts::Job(_) => Kind::TrainingJob,
    }
}

fn object(key: &str, version: u64, facts: Facts) -> Object {
    Object { key: key.into(), version, facts }
}

fn changed(object: Object) -> Event {
    Event::Changed(kind(&object.facts), Box::new(object))
}

/// Objects that refer to each other.
fn objects() -> Vec<Object> {
    vec![
        object("n1", 1, node("z1")),
        object("n2", 2, node("z2")),
        object("n1", 3, cache(&[(1, 60), (2, 10)])),
        object("n2", 4, cache(&[(1, 40)])),
        object("a/pets", 5, Facts::Dataset(DatasetFacts { bytes: 100, ..DatasetFacts::default() })),
        object("volume", 6, volume("data")),
        object("a/p1", 7, pod("p1", "n1", "data")),
        object("a/p2", 8, pod("p2", "n1", "other")),
        object("a/p3", 9, pod("p3", "n2", "data")),
        object("a/larderd", 10, pod("larderd", "n2", "none")),
        object("a/train", 11, job(2, true)),
        object("a/p4", 12, nomination("p4", "n2")),
    ]
}

fn index() -> Index {
    Index::new(vec!["gpu".into()])
}

/// Everything that readers can see, in a canonical order.
fn seen(index: &mut Index) -> BTreeMap<String, String> {
    let snapshot = index.show();
    let mut seen = BTreeMap::new();
    for (name, node) in snapshot.nodes.iter() {
        let mut pods: Vec<_> = node.pods.iter().map(|pod| pod.uid.to_string()).collect();
        pods.sort();
        let mut readers = node.readers.clone();
        readers.sort();
        let all = (&node.facts, &node.cache, pods, &node.used, readers, node.larderds);
        seen.insert(format!("node {name}"), format!("{all:?}"));
    }
    for (name, group) in snapshot.groups.iter() {
        let (mut zones, mut racks) = (group.zones.clone(), group.racks.clone());
        zones.sort();
        racks.sort();
        seen.insert(format!("group {name}"), format!("{} {zones:?} {racks:?}", group.pods));
    }
    for (name, spread) in snapshot.spreads.iter() {
        let mut zones = spread.zones.clone();
        zones.sort();
        seen.insert(format!("spread {name}"), format!("{} {zones:?}", spread.bytes));
    }
    for (name, job) in snapshot.jobs.iter() {
        seen.insert(format!("job {name}"), format!("{job:?}"));
    }
    for (name, claim) in snapshot.claims.iter() {
        seen.insert(format!("claim {name}"), format!("{claim:?}"));
    }
    for (name, dataset) in snapshot.datasets.iter() {
        seen.insert(format!("dataset {name}"), format!("{dataset:?}"));
    }
    for (uid, pod) in snapshot.pods.iter() {
        seen.insert(format!("pod {uid}"), format!("{pod:?}"));
    }
    for (uid, node) in snapshot.nominated.iter() {
        seen.insert(format!("nominated {uid}"), node.to_string());
    }
    seen.insert("counts".into(), format!("{} {}", snapshot.waiting_jobs, snapshot.larderds));
    seen
}

fn of(objects: impl IntoIterator<Item = Object>) -> Index {
    let mut index = index();
    objects.into_iter().for_each(|object| index.apply(changed(object)));
    index
}

#[test]
fn the_state_of_a_node_follows_from_its_objects() {
    let mut index = of(objects());
    let snapshot = index.show();
    let n1 = snapshot.nodes.get("n1").unwrap();
    assert_eq!((n1.zone(), n1.rack(), &*n1.used, n1.larderds), ("z1", "z1-r", &[4][..], 0));
    let (pets, _) = snapshot.datasets.entry("a/pets").unwrap();
    assert!(n1.is_read(pets) && !snapshot.nodes.get("n3").is_some_and(|node| node.is_read(pets)));
    assert_eq!(snapshot.nodes.get("n2").unwrap().larderds, 1);
    let group = snapshot.groups.get("a/job=train").unwrap();
    assert_eq!((group.pods, counts::count_of(&group.zones, "z1"), counts::count_of(&group.racks, "z2-r")), (4, 2, 2));
    let spread = snapshot.spreads.get(&CacheId([1; 32])).unwrap();
    assert_eq!((spread.bytes, counts::count_of(&spread.zones, "z1")), (100, 60));
    let job = snapshot.jobs.get("a/train").unwrap();
    assert_eq!((job.live("worker"), job.floor("worker"), job.floor("ps")), (4, Some(2), None));
    assert_eq!((snapshot.waiting_jobs, snapshot.larderds), (1, 1));
    assert!(!snapshot.is_complete);
}

#[test]
fn a_snapshot_on_a_node_is_found_among_snapshots_that_begin_alike() {
    let id = |last| CacheId(std::array::from_fn(|at| if at == 31 { last } else { 5 }));
    let held = |last: u8| Held { cache: id(last), bytes: last.into(), wanted: 0, comes: false };
    let facts = CacheFacts { held: [held(1), held(2), held(4)].into(), cordon: Some("why".into()) };
    let mut index = of([object("n1", 1, Facts::Cache(facts)), object("n2", 2, cache(&[(1, 60), (9, 10)]))]);
    let snapshot = index.show();
    let (n1, n2) = (snapshot.nodes.get("n1").unwrap(), snapshot.nodes.get("n2").unwrap());
    let bytes = |node: &NodeState, id: CacheId| node.holds(&id).map(|held| held.bytes);
    assert_eq!([1, 2, 3, 4].map(|last| bytes(n1, id(last))), [Some(1), Some(2), None, Some(4)]);
    assert_eq!([1, 5, 9].map(|all| bytes(n2, CacheId([all; 32]))), [Some(60), None, Some(10)]);
    assert_eq!((n1.cordon.as_deref(), n2.cordon.as_deref()), (Some("why"), None));
    index.apply(Event::Gone(Kind::NodeCache, "n2".into(), 3));
    index.apply(changed(object("n1", 4, cache(&[]))));
    let snapshot = index.show();
    assert!(snapshot.nodes.get("n2").is_none());
    let n1 = snapshot.nodes.get("n1").unwrap();
    assert_eq!((bytes(n1, id(1)), n1.cordon.as_deref()), (None, None));
}

#[test]
fn a_published_snapshot_does_not_change() {
    let mut index = of(objects());
    let before = index.show();
    index.apply(changed(object("n1", 20, cache(&[(1, 100)]))));
    index.apply(Event::Gone(Kind::Pod, "a/p1".into(), 21));
    let after = index.show();
    let bytes = |snapshot: &Snapshot| snapshot.spreads.get(&CacheId([1; 32])).unwrap().bytes;
    assert_eq!((bytes(&before), bytes(&after)), (100, 140));
    assert_eq!((before.pods.len(), after.pods.len()), (4, 3));
    assert!(before.version < after.version);
}

#[test]
fn an_older_event_changes_nothing() {
    let mut index = of(objects());
    let before = seen(&mut index);
    index.apply(changed(object("n1", 2, cache(&[]))));
    index.apply(changed(object("a/p1", 6, pod("p1", "n2", "data"))));
    index.apply(Event::Gone(Kind::Node, "n2".into(), 1));
    assert_eq!(seen(&mut index), before);
}

#[test]
fn a_pod_that_was_told_to_end_counts_no_more_for_its_job_and_its_group() {
    let mut index = of(objects());
    let Facts::Pod(facts) = pod("p1", "n1", "data") else { unreachable!() };
    index.apply(changed(object("a/p1", 20, Facts::Pod(PodFacts { leaving: true, ..facts }))));
    let snapshot = index.show();
    assert_eq!(snapshot.jobs.get("a/train").unwrap().live("worker"), 3);
    assert_eq!(snapshot.groups.get("a/job=train").unwrap().pods, 3);
    // A terminating pod uses its devices until it is deleted.
    assert_eq!(&*snapshot.nodes.get("n1").unwrap().used, [4]);
}

#[test]
fn a_list_takes_the_place_of_what_was_known() {
    let mut index = of(objects());
    let kept = || objects().into_iter().filter(|object| !["a/p1", "n2"].contains(&&*object.key));
    for kind_of in FOLLOWED {
        index.apply(Event::All(kind_of, kept().filter(|object| kind(&object.facts) == kind_of).collect()));
    }
    assert_eq!(seen(&mut index), seen(&mut of(kept())));
    assert!(index.show().is_complete);
    assert_eq!((index.count(Kind::Pod), index.count(Kind::Node)), (4, 1));
}

#[test]
fn nothing_is_left_of_what_is_gone() {
    let mut index = of(objects());
    for object in objects() {
        index.apply(Event::Gone(kind(&object.facts), object.key, object.version));
    }
    assert_eq!(seen(&mut index), seen(&mut self::index()));
    assert!(index.unresolved.is_empty() && index.pods.is_empty() && index.volumes.is_empty());
}

#[test]
fn a_node_that_moves_takes_its_pods_and_bytes_along() {
    let mut index = of(objects());
    index.apply(changed(object("n1", 30, node("z2"))));
    let mut moved = objects();
    moved[0] = object("n1", 30, node("z2"));
    assert_eq!(seen(&mut index), seen(&mut of(moved)));
}

#[test]
fn a_pod_is_nominated_until_it_has_a_node_or_is_gone() {
    let mut index = of(objects());
    let node = |index: &mut Index| index.show().nominated.get("uid-p4").map(ToString::to_string);
    assert_eq!(node(&mut index).as_deref(), Some("n2"));
    index.apply(changed(object("a/p4", 13, nomination("p4", "n1"))));
    assert_eq!(node(&mut index).as_deref(), Some("n1"));
    index.apply(changed(object("a/p4", 14, pod("p4", "n1", "none"))));
    assert_eq!((node(&mut index), index.show().pods.get("uid-p4").is_some()), (None, true));
    index.apply(changed(object("a/p4", 15, nomination("p4", "n1"))));
    assert_eq!((node(&mut index).is_some(), index.show().pods.get("uid-p4").is_some()), (true, false));
    index.apply(Event::Gone(Kind::Pod, "a/p4".into(), 16));
    assert_eq!(node(&mut index), None);
}

#[test]
fn a_claim_keeps_its_volume_when_the_one_before_goes() {
    let mut index = of(objects());
    index.apply(changed(object("newer", 20, volume("data"))));
    index.apply(Event::Gone(Kind::Volume, "volume".into(), 21));
    assert!(index.show().claims.get("a/data").is_some());
    index.apply(Event::Gone(Kind::Volume, "newer".into(), 22));
    assert!(index.show().claims.get("a/data").is_none());
}

/// A pod that names a dataset of another namespace does not make its node look as if the dataset were being fetched
/// there.
#[test]
fn a_name_of_another_namespace_makes_no_reader() {
    let mut index = of(objects());
    let Facts::Pod(facts) = pod("p9", "n1", "none") else { unreachable!() };
    let put = |index: &mut Index, key: &str, version| {
        let reads = [Read::Dataset("a/pets".into())].into();
        let facts = PodFacts { key: key.into(), uid: key.into(), node: "n3".into(), reads, ..facts.clone() };
        index.apply(changed(object(key, version, Facts::Pod(facts))));
        let snapshot = index.show();
        let (pets, _) = snapshot.datasets.entry("a/pets").unwrap();
        snapshot.nodes.get("n3").unwrap().is_read(pets)
    };
    assert!(!put(&mut index, "b/p9", 30));
    assert!(put(&mut index, "a/p9", 31));
}

proptest! {
    // SEMANTICS: X1
    #[test]
    fn the_order_of_news_does_not_matter(order in Just((0..12usize).collect::<Vec<_>>()).prop_shuffle()) {
        let all = objects();
        let mut shuffled = of(order.into_iter().map(|at| all[at].clone()));
        prop_assert_eq!(seen(&mut shuffled), seen(&mut of(objects())));
    }
}
