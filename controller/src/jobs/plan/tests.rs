use std::borrow::Cow;

use proptest::prelude::*;

use super::*;
use crate::objects::{Node, Taint};
use k8s_openapi::api::core::v1::Toleration;
use larder_kube::key::Key;
use larder_kube::pod::amounts::Amounts;
use larder_kube::pod::node_affinity::Places;

const GPU: &str = "nvidia.com/gpu";
const ZONE: &str = "topology.kubernetes.io/zone";

fn amounts(gpus: u64, cpus: u64) -> Amounts {
    [(GPU, gpus), ("cpu", cpus * 1_000)].into_iter().collect()
}

fn node(name: &str, labels: &[(&str, &str)]) -> Node {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let mut node = Node { labels, ready: true, ..Node::default() };
    node.meta.key = Key::cluster(name);
    node
}

/// A node of 8 GPUs and 64 CPUs.
fn room(node: &Node, used_gpus: u64) -> NodeRoom<'_> {
    NodeRoom {
        node,
        allocatable: Cow::Owned(amounts(8, 64)),
        used: Cow::Owned(amounts(used_gpus, 0)),
        held: Default::default(),
    }
}

fn want(name: &str, gpus: u64, cpus: u64, required: u32) -> Want {
    Want { name: name.into(), requests: amounts(gpus, cpus), required, ..Want::default() }
}

fn gang(roles: Vec<Want>) -> Gang {
    Gang { roles, topology_key: ZONE.into(), ..Gang::default() }
}

/// The names of the nodes of each role's pods.
fn names(rooms: &[NodeRoom<'_>], gang: &Gang) -> Result<Vec<Vec<String>>, String> {
    let mut cluster = Cluster::new(rooms);
    let placement = place(&mut cluster, gang).map_err(|shortage| shortage.to_string())?;
    let name = |node: &NodeIndex| cluster.name(*node).to_owned();
    Ok(placement.roles.iter().map(|nodes| nodes.iter().map(name).collect()).collect())
}

fn one_role(rooms: &[NodeRoom<'_>], gang: &Gang) -> Vec<String> {
    names(rooms, gang).unwrap().remove(0)
}

// SEMANTICS: J14
#[test]
fn nodes_that_refused_the_pods_of_a_role_are_used_only_if_nothing_else_fits() {
    let nodes: Vec<Node> = ["a", "b", "c"].map(|name| node(name, &[])).into();
    let rooms: Vec<NodeRoom<'_>> = nodes.iter().map(|node| room(node, 0)).collect();
    let refused_by = |refused: &[usize]| refused.iter().map(|row| NodeIndex::of(*row)).collect();
    let on = |refused: &[usize], required: u32| {
        let worker = Want { refused_by: refused_by(refused), ..want("worker", 8, 1, required) };
        names(&rooms, &gang(vec![worker, want("other", 0, 1, 1)])).unwrap()
    };
    assert_eq!(on(&[], 1)[0], ["a"]);
    assert_eq!(on(&[0], 1)[0], ["b"]);
    assert_eq!(on(&[0, 1], 1)[0], ["c"]);
    assert_eq!(on(&[0], 1)[1], ["b"], "the refusal is of one role, and the other goes to the fullest node");
    assert_eq!(on(&[0], 3)[0], ["a", "b", "c"], "there is no plan without it");
    // Pods that the job can do without are not planned there at all.
    let more = Want { refused_by: refused_by(&[0, 1]), required: 0, optional: 3, ..want("worker", 8, 1, 0) };
    assert_eq!(one_role(&rooms, &gang(vec![more])), ["c"]);
}

// SEMANTICS: J14
#[test]
fn pods_that_cannot_be_together_get_a_node_each() {
    let nodes: Vec<Node> = ["a", "b", "c"].map(|name| node(name, &[])).into();
    let rooms: Vec<NodeRoom<'_>> = nodes.iter().map(|node| room(node, 0)).collect();
    let apart = |required: u32, optional: u32| Want { apart: true, optional, ..want("worker", 1, 1, required) };
    assert_eq!(one_role(&rooms, &gang(vec![apart(3, 0)])), ["a", "b", "c"]);
    assert_eq!(one_role(&rooms, &gang(vec![apart(2, 9)])), ["a", "b", "c"]);
    let refused = names(&rooms, &gang(vec![apart(4, 0)])).unwrap_err();
    assert!(refused.ends_with("3 of 3 nodes match, and would have room for 3 if they were empty"), "{refused}");
    // Pods that are to be spread share nodes if there are too few.
    let spread = |required: u32| Want { spread: true, ..want("worker", 1, 1, required) };
    assert_eq!(one_role(&rooms, &gang(vec![spread(3)])), ["a", "b", "c"]);
    assert_eq!(one_role(&rooms, &gang(vec![spread(4)])), ["a", "a", "a", "a"]);
    // The job has one on a node already.
    let occupied = vec![NodeIndex::of(1)];
    assert_eq!(one_role(&rooms, &gang(vec![Want { occupied, ..apart(0, 9) }])), ["a", "c"]);
}

/// The scheduler extender ranks nodes for the same reasons for pods that belong to no job.
#[test]
fn nodes_whose_devices_stay_together_come_before_fuller_ones() {
    let nodes: Vec<Node> = ["empty", "used"].map(|name| node(name, &[])).into();
    let mut rooms: Vec<NodeRoom<'_>> = nodes.iter().zip([0, 2]).map(|(node, used)| room(node, used)).collect();
    // It has room for only one more such pod, so it is the fuller node.
    rooms[0].used = Cow::Owned(amounts(0, 63));
    assert_eq!(one_role(&rooms, &gang(vec![want("worker", 1, 1, 1)])), ["used"]);
}

#[test]
fn of_two_domains_the_one_with_more_of_the_job_is_nearer() {
    let nodes: Vec<Node> =
        [("a1", "a"), ("a2", "a"), ("b1", "b")].map(|(name, zone)| node(name, &[(ZONE, zone)])).into();
    let rooms: Vec<NodeRoom<'_>> = nodes.iter().map(|node| room(node, 0)).collect();
    let mut cluster = Cluster::new(&rooms);
    let at = |cluster: &Cluster<'_>, name: &str| cluster.find(name).unwrap();
    let near = vec![at(&cluster, "a1"), at(&cluster, "b1"), at(&cluster, "b1")];
    let placement = place(&mut cluster, &Gang { near, ..gang(vec![want("worker", 1, 1, 1)]) }).unwrap();
    assert_eq!(cluster.name(placement.roles[0][0]), "b1");
}

#[test]
fn bytes_come_before_domains_and_domains_before_fullness() {
    let nodes: Vec<Node> = [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")]
        .map(|(name, zone)| node(name, &[(ZONE, zone)]))
        .into_iter()
        .collect();
    let mut rooms: Vec<NodeRoom<'_>> = nodes.iter().zip([0, 4, 6, 2]).map(|(node, used)| room(node, used)).collect();
    let pets = Key::new("team", "pets");
    let two = Gang { datasets: vec![(pets.clone(), 1_000)], ..gang(vec![want("worker", 4, 1, 2)]) };
    // a2 is the fullest node with room, and zone b has no room for both pods.
    assert_eq!(one_role(&rooms, &two), ["a2", "a1"]);
    let small = Gang { roles: vec![want("worker", 1, 1, 2)], ..two.clone() };
    assert_eq!(one_role(&rooms, &small), ["b1", "b1"], "the fullest node of the fullest zone");
    rooms[0].held.insert(pets.clone(), 1_000);
    assert_eq!(one_role(&rooms, &small), ["a1", "a1"]);
    rooms[3].held.insert(pets.clone(), 990);
    let three = Gang { roles: vec![want("worker", 4, 1, 3)], ..two.clone() };
    assert_eq!(one_role(&rooms, &three), ["a1", "a1", "b2"], "bytes come before one domain");
    rooms[3].held.insert(pets, 90);
    assert_eq!(one_role(&rooms, &three), ["a1", "a1", "a2"], "less than a tenth counts as none");
}

// SEMANTICS: J1
#[test]
fn seed_001_servers_without_and_workers_with_gpus_start_at_once_or_not_at_all() {
    let nodes = [node("cpu", &[("kind", "cpu")]), node("gpu", &[("kind", "gpu")])];
    let mut rooms = vec![room(&nodes[0], 8), room(&nodes[1], 0)];
    let job = |workers| gang(vec![want("ps", 0, 30, 2), want("worker", 2, 4, workers)]);
    let placed = names(&rooms, &job(4)).unwrap();
    assert_eq!(placed, [["cpu"; 2].to_vec(), ["gpu"; 4].to_vec()]);
    let refused = names(&rooms, &job(5)).unwrap_err();
    assert_eq!(
        refused,
        "5 pods of role worker, each with 2 GPUs, need room: 4 fit now; 2 of 2 nodes match, and 1 of them has room"
    );
    // The servers alone would fit; without the workers they get no nodes.
    rooms[0].used = Cow::Owned(amounts(8, 40));
    rooms[1].used = Cow::Owned(amounts(0, 30));
    let refused = names(&rooms, &job(1)).unwrap_err();
    assert!(refused.starts_with("2 pods of role ps, each with 30 CPUs, need room: 1 fits now"), "{refused}");
}

#[test]
fn a_role_with_few_nodes_gets_them_when_others_can_go_elsewhere() {
    let nodes = [node("big", &[]), node("special", &[("kind", "special")])];
    let mut rooms = vec![room(&nodes[0], 0), room(&nodes[1], 0)];
    let pets = Key::new("team", "pets");
    rooms[1].held.insert(pets.clone(), 10);
    let mut picky = want("picky", 4, 1, 1);
    picky.places.labels.insert("kind".into(), "special".into());
    let wanted = Gang { datasets: vec![(pets, 10)], ..gang(vec![want("large", 8, 1, 1), picky]) };
    // Ranked by size alone, the large pod would take the only node that the other pod may use.
    assert_eq!(names(&rooms, &wanted).unwrap(), [["big"], ["special"]]);
}

#[test]
fn taints_selectors_and_closed_nodes_are_respected() {
    let mut nodes = [node("a", &[]), node("b", &[("gpu", "h100")]), node("c", &[("gpu", "h100")]), node("d", &[])];
    nodes[2].taints.push(Taint {
        key: "team".into(),
        value: Some("x".into()),
        effect: "NoSchedule".into(),
        time_added: None,
    });
    nodes[3].ready = false;
    let on = |places: Places| gang(vec![Want { places, ..want("worker", 1, 1, 1) }]);
    let h100 = Places { labels: [("gpu".to_owned(), "h100".to_owned())].into(), ..Places::default() };
    let tolerations =
        vec![Toleration { key: Some("team".into()), operator: Some("Exists".into()), ..Toleration::default() }];
    let rooms = |used_b| {
        let used = [0, used_b, 0, 0];
        nodes.iter().zip(used).map(|(node, used)| room(node, used)).collect::<Vec<_>>()
    };
    assert_eq!(one_role(&rooms(0), &on(h100.clone())), ["b"]);
    assert_eq!(
        names(&rooms(8), &on(h100.clone())).unwrap_err(),
        "1 pod of role worker with 1 GPU needs room: 0 fit now; 1 of 4 nodes matches, and 0 of them have room"
    );
    assert_eq!(one_role(&rooms(8), &on(Places { tolerations, ..h100 })), ["c"]);
    let nowhere = Places { labels: [("gpu".to_owned(), "b200".to_owned())].into(), ..Places::default() };
    assert_eq!(
        names(&rooms(0), &on(nowhere)).unwrap_err(),
        "1 pod of role worker with 1 GPU needs room: none of 4 nodes matches its selectors, affinity and tolerations"
    );
}

#[test]
fn a_gang_larger_than_the_cluster_says_so() {
    let nodes = [node("a", &[]), node("b", &[])];
    let rooms: Vec<NodeRoom<'_>> = nodes.iter().map(|node| room(node, 3)).collect();
    let mut cluster = Cluster::new(&rooms);
    let shortage = place(&mut cluster, &gang(vec![want("worker", 4, 1, 5)])).unwrap_err();
    assert!(shortage.is_for_ever());
    assert_eq!(
        shortage.to_string(),
        "5 pods of role worker, each with 4 GPUs, need room: 2 of 2 nodes match, and would have room for 4 if they were empty"
    );
    let mut odd = want("worker", 1, 1, 1);
    odd.requests.add(&[("example.com/tpu", 1)].into_iter().collect(), 1);
    let shortage = place(&mut cluster, &gang(vec![odd])).unwrap_err();
    assert_eq!(shortage.to_string(), "no node offers example.com/tpu, which role worker requests");
    assert!(place(&mut Cluster::new(&[]), &gang(vec![want("worker", 0, 0, 1)])).is_err());
}

#[test]
fn room_is_taken_given_back_and_remembered() {
    let nodes = [node("a", &[])];
    let rooms = [room(&nodes[0], 4)];
    let mut cluster = Cluster::new(&rooms);
    let (a, before) = (cluster.find("a").unwrap(), cluster.mark());
    cluster.take(a, &amounts(1, 1), 3);
    assert_eq!(cluster.free_on(a, GPU), 1);
    cluster.give(a, &amounts(2, 0), 4);
    assert_eq!(cluster.free_on(a, GPU), 9);
    cluster.keep_free(&before);
    assert_eq!((cluster.free_on(a, GPU), cluster.free_on(a, "cpu")), (4, 61_000));
    cluster.restore(&before);
    assert_eq!((cluster.free_on(a, GPU), cluster.free_on(a, "cpu")), (4, 64_000));
    assert_eq!(cluster.find("b"), None);
}

/// A node of a generated cluster: its GPUs, the GPUs in use, its zone, and the data that it holds.
type Made = (u64, u64, u8, u64);

fn any_cluster() -> impl Strategy<Value = Vec<Made>> {
    prop::collection::vec((0..9_u64, 0..9_u64, 0..3_u8, 0..4_u64), 0..12)
}

/// A role of a generated gang: GPUs, CPUs, required and optional pods, and the zone that it must be in.
type MadeRole = (u64, u64, u32, u32, Option<u8>);

fn any_gang() -> impl Strategy<Value = Vec<MadeRole>> {
    prop::collection::vec((0..5_u64, 0..3_u64, 0..9_u32, 0..4_u32, prop::option::weighted(0.2, 0..3_u8)), 1..4)
}

fn nodes_of(made: &[Made]) -> Vec<Node> {
    let zone = |zone: &u8| format!("z{zone}");
    made.iter().enumerate().map(|(at, (_, _, in_zone, _))| node(&format!("n{at}"), &[(ZONE, &zone(in_zone))])).collect()
}

fn rooms_of<'a>(nodes: &'a [Node], made: &[Made]) -> Vec<NodeRoom<'a>> {
    let room = |(node, (gpus, used, _, held)): (&'a Node, &Made)| NodeRoom {
        node,
        allocatable: Cow::Owned([(GPU, *gpus), ("cpu", 8_000), ("pods", 10)].into_iter().collect()),
        used: Cow::Owned([(GPU, *used), ("pods", *used)].into_iter().collect()),
        held: [(Key::new("t", "d"), *held)].into(),
    };
    nodes.iter().zip(made).map(room).collect()
}

fn gang_of(made: &[MadeRole]) -> Gang {
    let role = |(gpus, cpus, required, optional, zone): &MadeRole| {
        let mut want = Want { optional: *optional, ..want("r", *gpus, *cpus, *required) };
        want.places.labels.extend(zone.map(|zone| (ZONE.to_owned(), format!("z{zone}"))));
        want
    };
    Gang { datasets: vec![(Key::new("t", "d"), 3)], ..gang(made.iter().map(role).collect()) }
}

proptest! {
    // SEMANTICS: J1
    #[test]
    fn a_plan_overcommits_no_node_and_is_whole_or_none(nodes in any_cluster(), roles in any_gang()) {
        let objects = nodes_of(&nodes);
        let rooms = rooms_of(&objects, &nodes);
        let gang = gang_of(&roles);
        let mut cluster = Cluster::new(&rooms);
        let before = cluster.mark();
        let Ok(placement) = place(&mut cluster, &gang) else {
            if let [want] = &gang.roles[..] {
                let optional = Gang { roles: vec![Want { required: 0, optional: 99, ..want.clone() }], ..gang.clone() };
                let most = place(&mut cluster, &optional).unwrap().roles[0].len();
                prop_assert!(most < want.required as usize, "equal pods have a plan if there is one");
            }
            return Ok(());
        };
        for (want, nodes) in gang.roles.iter().zip(&placement.roles) {
            let asked = want.required..=want.required + want.optional;
            prop_assert!(asked.contains(&(nodes.len() as u32)));
            for node in nodes {
                prop_assert!(want.places.allow(rooms.iter().find(|room| room.node.meta.key.name == cluster.name(*node)).unwrap().node));
                for (resource, amount) in want.requests.iter().chain([("pods", 1)]) {
                    prop_assert!(cluster.free_on(*node, resource) >= amount as i64, "{resource}");
                }
                cluster.take(*node, &want.requests, 1);
            }
        }
        // If all pods are identical, no optional pod is left out while there is room for it.
        if let ([want], [nodes]) = (&gang.roles[..], &placement.roles[..]) {
            let left = (want.required + want.optional) as usize - nodes.len();
            let one = Gang { roles: vec![Want { required: 1, optional: 0, ..want.clone() }], ..gang.clone() };
            prop_assert!(left == 0 || place(&mut cluster, &one).is_err());
        }
        cluster.restore(&before);
        prop_assert_eq!(place(&mut cluster, &gang).unwrap(), placement);
    }

    #[test]
    fn the_order_of_the_nodes_does_not_matter(nodes in any_cluster(), roles in any_gang(), seed in any::<u64>()) {
        let objects = nodes_of(&nodes);
        let rooms = rooms_of(&objects, &nodes);
        let mut shuffled = rooms.clone();
        shuffled.sort_by_key(|room| {
            let name = &room.node.meta.key.name;
            name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
        });
        let gang = gang_of(&roles);
        prop_assert_eq!(names(&rooms, &gang), names(&shuffled, &gang));
    }
}

/// 5,000 nodes with 8 GPUs in 50 zones, half of the GPUs in use, some nodes with the data; a gang of 1,000 pods in four
/// roles.
#[test]
#[ignore = "measures; run with --release --ignored --nocapture"]
fn a_thousand_pods_on_five_thousand_nodes() {
    let nodes: Vec<Node> = (0..5_000)
        .map(|at| {
            let (name, zone) = (format!("node-{at:05}"), format!("zone-{}", at % 50));
            node(&name, &[(ZONE, &zone), ("kubernetes.io/hostname", &name), ("kind", "gpu")])
        })
        .collect();
    let room = |(at, node): (u64, &'static Node)| NodeRoom {
        node,
        allocatable: Cow::Owned(Amounts::from_iter([
            (GPU, 8),
            ("cpu", 96_000),
            ("memory", 1 << 40),
            ("ephemeral-storage", 1 << 42),
            ("pods", 110),
        ])),
        used: Cow::Owned(Amounts::from_iter([
            (GPU, at % 8),
            ("cpu", at % 8 * 8_000),
            ("memory", (at % 8) << 36),
            ("pods", at % 20),
        ])),
        held: if at % 7 == 0 { [(Key::new("team", "pets"), at << 20)].into() } else { Default::default() },
    };
    let nodes: &'static [Node] = nodes.leak();
    let rooms: Vec<NodeRoom<'_>> = (0..).zip(nodes).map(room).collect();
    let mut worker = want("worker", 1, 8, 900);
    worker.places.labels.insert("kind".into(), "gpu".into());
    let roles = vec![want("chief", 1, 8, 1), want("ps", 0, 16, 90), worker, want("evaluator", 1, 4, 9)];
    for topology_key in ["", ZONE, "kubernetes.io/hostname"] {
        let gang = Gang {
            topology_key: topology_key.into(),
            datasets: vec![(Key::new("team", "pets"), 1 << 32), (Key::new("team", "coco"), 1 << 32)],
            ..gang(roles.clone())
        };
        let mut times: Vec<_> = (0..21)
            .map(|_| {
                let started = std::time::Instant::now();
                let mut cluster = Cluster::new(&rooms);
                let built = started.elapsed();
                let pods: usize = place(&mut cluster, &gang).unwrap().roles.iter().map(Vec::len).sum();
                assert_eq!(pods, 1_000);
                (started.elapsed(), built)
            })
            .collect();
        times.sort();
        let (middle, built) = times[10];
        println!(
            "topology key {topology_key:?}: {middle:?} (of which {built:?} the cluster), {:?} to {:?}",
            times[0].0, times[20].0
        );
    }
}
