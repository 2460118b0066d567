use proptest::prelude::*;

use super::*;

fn gpus(gpus: u64) -> BTreeMap<String, u64> {
    [("gpu".to_owned(), gpus)].into()
}

fn plain(uid: &str, each: u64) -> PodCase {
    PodCase { uid: uid.into(), known: true, requests: gpus(each), ..PodCase::default() }
}

/// A worker of role 0, named after its index.
fn worker(index: u32) -> PodCase {
    PodCase { seat: Some((0, index)), ..plain(&format!("w{index}"), 1) }
}

fn role(live: u32, floor: u32) -> RoleRoom {
    RoleRoom { name: "a/train worker".into(), live, spoken_for: 0, floor: Some(floor) }
}

fn case(roles: Vec<RoleRoom>, victims: Vec<PodCase>, workers: Vec<PodCase>) -> Case {
    let node = NodeCase { name: "n1".into(), victims, workers, budget_violations: 1 };
    Case { pod: "b/p".into(), uid: "p".into(), priority: 10, entangled: false, roles, nodes: vec![node] }
}

/// The uids to preempt on the only node; `None` if the node was dropped.
fn ended(case: &Case) -> Option<Vec<&str>> {
    decide(case).pop().map(|chosen| chosen.uids)
}

#[test]
fn plain_pods_end_as_the_scheduler_says() {
    let case = case(vec![], vec![plain("p1", 1), plain("p2", 1)], vec![]);
    let expected = Chosen { node: "n1", uids: vec!["p1", "p2"], budget_violations: 1 };
    assert_eq!(decide(&case), [expected]);
}

#[test]
fn a_node_is_dropped_if_a_gang_would_fall_below_its_floor_or_lose_its_first_pod() {
    let below = case(vec![role(4, 4)], vec![worker(3)], vec![]);
    assert_eq!(ended(&below), None);
    let above = case(vec![role(5, 4)], vec![worker(3)], vec![]);
    assert_eq!(ended(&above), Some(vec!["w3"]));
    let two = case(vec![role(5, 4)], vec![worker(3), worker(4)], vec![]);
    assert_eq!(ended(&two), None);
    let first = case(vec![role(8, 1)], vec![worker(0)], vec![]);
    assert_eq!(ended(&first), None);
    let unknown = case(vec![RoleRoom { floor: None, ..role(8, 0) }], vec![worker(3)], vec![]);
    assert_eq!(ended(&unknown), None);
    // The pods of a job that is being deleted are not protected.
    let deleted = case(vec![role(1, 0)], vec![worker(0)], vec![]);
    assert_eq!(ended(&deleted), Some(vec!["w0"]));
}

#[test]
fn pods_that_earlier_answers_may_have_evicted_do_not_count_twice() {
    let spoken_for = |spoken_for| case(vec![RoleRoom { spoken_for, ..role(6, 4) }], vec![worker(3)], vec![]);
    assert_eq!(ended(&spoken_for(1)), Some(vec!["w3"]));
    assert_eq!(ended(&spoken_for(2)), None);
}

#[test]
fn one_that_ends_already_costs_its_gang_nothing() {
    let leaving = PodCase { leaving: true, ..worker(0) };
    assert_eq!(ended(&case(vec![role(4, 4)], vec![leaving], vec![])), Some(vec!["w0"]));
}

#[test]
fn pinned_and_unknown_pods_stay() {
    for victim in [PodCase { pinned: true, ..plain("p", 1) }, PodCase { known: false, ..plain("p", 1) }] {
        assert_eq!(ended(&case(vec![], vec![victim], vec![])), None);
    }
    assert_eq!(ended(&case(vec![], vec![], vec![])), None);
}

// SEMANTICS: X5
#[test]
fn surplus_workers_end_instead_if_they_free_as_much() {
    let workers = || (1..4).map(worker).collect::<Vec<_>>();
    let of = |victim: PodCase, live| case(vec![role(live, 4)], vec![victim], workers());
    assert_eq!(ended(&of(plain("p", 2), 6)), Some(vec!["w3", "w2"]));
    // One worker frees too little, and a pinned pod cannot be preempted instead.
    assert_eq!(ended(&of(plain("p", 2), 5)), Some(vec!["p"]));
    assert_eq!(ended(&of(PodCase { pinned: true, ..plain("p", 2) }, 5)), None);
    assert_eq!(ended(&of(PodCase { pinned: true, ..plain("p", 2) }, 6)), Some(vec!["w3", "w2"]));
    // The pod may be blocked by other constraints, so only the scheduler can choose.
    assert_eq!(ended(&of(PodCase { entangled: true, ..plain("p", 2) }, 6)), Some(vec!["p"]));
    // Workers above the minimum violate no budget.
    assert_eq!(decide(&of(plain("p", 1), 6))[0].budget_violations, 0);
}

#[test]
fn the_highest_index_of_the_node_ends_first_and_nobody_of_a_higher_priority() {
    let case_of = |priority| {
        let high = PodCase { priority, ..worker(5) };
        case(vec![role(6, 4)], vec![worker(1)], vec![high])
    };
    assert_eq!(ended(&case_of(0)), Some(vec!["w5"]));
    assert_eq!(ended(&case_of(5)), Some(vec!["w1"]));
    let above = case(vec![role(6, 4)], vec![plain("p", 1)], vec![PodCase { priority: 5, ..worker(5) }]);
    assert_eq!(ended(&above), Some(vec!["p"]));
    // A protected victim is replaced by workers with a lower priority than the pod.
    let mut first = case_of(5);
    first.nodes[0].victims = vec![worker(0)];
    assert_eq!(ended(&first), Some(vec!["w5"]));
    first.priority = 5;
    assert_eq!(ended(&first), None);
}

#[test]
fn no_more_end_than_have_to() {
    let large = PodCase { requests: gpus(4), ..worker(2) };
    let case = case(vec![role(6, 2)], vec![plain("p", 4)], vec![worker(3), large]);
    assert_eq!(ended(&case), Some(vec!["w2"]));
}

fn any_candidate(roles: usize) -> impl Strategy<Value = PodCase> {
    let seat = proptest::option::weighted(0.8, (0..roles, 0u32..6));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (seat, flags, 0i32..12, 0u64..4, any::<u32>()).prop_map(|(seat, flags, priority, each, uid)| PodCase {
        uid: uid.to_string(),
        known: flags.0 || flags.1,
        pinned: flags.1 && flags.2,
        entangled: flags.2 && flags.3,
        leaving: flags.0 && flags.3,
        priority,
        seat,
        requests: gpus(each),
    })
}

fn any_case() -> impl Strategy<Value = Case> {
    let role = (0u32..8, 0u32..3, proptest::option::weighted(0.9, 0u32..8))
        .prop_map(|(live, spoken_for, floor)| RoleRoom { name: String::new(), live, spoken_for, floor });
    let pods = || proptest::collection::vec(any_candidate(3), 0..6);
    let node = (pods(), pods()).prop_map(|(victims, workers)| NodeCase {
        name: "n".into(),
        victims,
        workers,
        budget_violations: 0,
    });
    (proptest::collection::vec(role, 3), proptest::collection::vec(node, 0..4), any::<bool>()).prop_map(
        |(roles, nodes, entangled)| Case { pod: "b/p".into(), uid: "p".into(), priority: 10, entangled, roles, nodes },
    )
}

proptest! {
    // SEMANTICS: X5
    #[test]
    fn no_gang_falls_below_its_floor_on_any_node(case in any_case()) {
        for chosen in decide(&case) {
            let node = case.nodes.iter().find(|node| node.victims.iter().chain(&node.workers).any(|pod| pod.uid == chosen.uids[0]));
            let node = node.unwrap();
            let ends = |pod: &&PodCase| chosen.uids.contains(&pod.uid.as_str()) && !pod.leaving;
            let ending: Vec<&PodCase> = node.victims.iter().chain(&node.workers).filter(ends).collect();
            for pod in &ending {
                prop_assert!(pod.known && !pod.pinned);
                let Some((role, index)) = pod.seat else { continue };
                prop_assert!(index > 0 || case.roles[role].floor == Some(0));
            }
            for (at, room) in case.roles.iter().enumerate() {
                let of_role = ending.iter().filter(|pod| pod.seat.is_some_and(|(role, _)| role == at)).count();
                let left = i64::from(room.live) - i64::from(room.spoken_for) - of_role as i64;
                prop_assert!(of_role == 0 || room.floor.is_some_and(|floor| left >= i64::from(floor)));
            }
        }
    }
}
