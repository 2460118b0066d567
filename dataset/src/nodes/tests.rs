use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn node(name: &str, zone: &str, capacity_gib: u64, wanted_gib: u64) -> Candidate {
    Candidate {
        name: name.into(),
        zone: zone.into(),
        capacity_bytes: capacity_gib * GIB,
        wanted_bytes: wanted_gib * GIB,
        ..Candidate::default()
    }
}

fn promised(mut node: Candidate, promises: &[(&str, u64)]) -> Candidate {
    node.promised = promises.iter().map(|(to, gib)| Promise { to: (*to).into(), bytes: gib * GIB }).collect();
    node
}

fn names(choice: &Choice) -> Vec<&str> {
    choice.nodes.iter().map(String::as_str).collect()
}

#[test]
fn a_node_with_the_bytes_comes_before_one_with_more_room_and_that_before_another_zone() {
    let cached = Candidate { cached_bytes: 50 * GIB, ..promised(node("c", "east", 500, 100), &[("x", 300)]) };
    let roomy = node("b", "west", 500, 100);
    let zoned = promised(node("a", "north", 500, 100), &[("x", 200)]);
    let pick = |count| choose(Some(count), vec![zoned.clone(), roomy.clone(), cached.clone()]).nodes;
    assert_eq!(pick(1), ["c"]);
    assert_eq!(pick(2), ["b", "c"]);
    assert_eq!(pick(3), ["a", "b", "c"]);
}

#[test]
fn equals_are_spread_over_zones() {
    let zones = [("a", "east"), ("b", "east"), ("c", "east"), ("d", "west"), ("e", "north")];
    let all: Vec<Candidate> = zones.map(|(name, zone)| node(name, zone, 500, 100)).into();
    assert_eq!(names(&choose(Some(3), all.clone())), ["a", "d", "e"]);
    assert_eq!(names(&choose(Some(4), all.clone())), ["a", "b", "d", "e"]);
    // A zone counts as used even if only a better node is in it.
    let mut better = all;
    better[1].cached_bytes = 100 * GIB;
    assert_eq!(names(&choose(Some(2), better)), ["b", "e"]);
}

#[test]
fn a_chosen_node_stays_chosen_while_it_may() {
    let chosen = Candidate { is_chosen: true, ..promised(node("z", "west", 500, 100), &[("x", 400)]) };
    let better = Candidate { cached_bytes: 100 * GIB, ..node("a", "east", 900, 100) };
    assert_eq!(names(&choose(Some(1), vec![better.clone(), chosen.clone()])), ["z"]);
    let full = promised(chosen, &[("x", 401)]);
    assert_eq!(names(&choose(Some(1), vec![better, full])), ["a"]);
}

#[test]
fn too_little_room_is_told_with_the_arithmetic() {
    let n3 = promised(node("n3", "", 500, 400), &[("laion", 100), ("coco", 200)]);
    let choice = choose(Some(2), vec![n3, node("n4", "", 500, 400)]);
    assert_eq!(names(&choice), ["n4"]);
    assert_eq!(
        choice.shortage.unwrap().to_string(),
        "1 of 2 nodes have room; n3: wants 400 GiB; 500 GiB, of which coco 200, laion 100 are promised"
    );
    // Rounding never creates space.
    let mut tight = promised(node("n1", "", 2, 1), &[("coco", 1)]);
    tight.wanted_bytes += 1;
    let told = choose(Some(1), vec![tight]).shortage.unwrap().to_string();
    assert_eq!(told, "0 of 1 nodes have room; n1: wants 1.1 GiB; 2 GiB, of which coco 1 is promised");
}

#[test]
fn many_promises_and_nodes_are_counted_and_not_listed() {
    let promises = [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5), ("f", 6), ("g", 7)];
    let full = |n: usize| promised(node(&format!("n{n}"), "", 28, 1), &promises);
    let told = choose(Some(8), (0..8).map(full).collect()).shortage.unwrap().to_string();
    assert!(
        told.contains("n0: wants 1 GiB; 28 GiB, of which g 7, f 6, e 5, d 4, c 3, 2 others 3 are promised"),
        "{told}"
    );
    assert!(told.ends_with("; and 3 more nodes without room"), "{told}");
}

#[test]
fn other_shortages_have_their_own_words() {
    let told = |count, nodes| choose(count, nodes).shortage.map(|shortage| shortage.to_string());
    assert_eq!(told(Some(2), vec![]).as_deref(), Some("no node matches"));
    assert_eq!(told(None, vec![]).as_deref(), Some("no node matches"));
    assert_eq!(told(Some(0), vec![]), None);
    assert_eq!(told(Some(0), vec![node("a", "", 1, 2)]), None);
    assert_eq!(told(Some(3), vec![node("a", "", 2, 1)]).as_deref(), Some("3 nodes are wanted, and 1 matches"));
    let small = vec![node("a", "", 300, 400), node("b", "", 200, 400)];
    assert_eq!(told(Some(1), small).as_deref(), Some("wants 400 GiB; the largest cache, of a, has 300 GiB"));
    // One of them is full, and none of the others is too small.
    let mixed = vec![node("a", "", 300, 400), promised(node("b", "", 500, 400), &[("x", 200)])];
    let told = told(None, mixed).unwrap();
    assert!(
        told.starts_with("0 of 2 nodes have room; ") && told.contains("a: wants 400 GiB; 300 GiB in total"),
        "{told}"
    );
}

#[test]
fn a_node_that_has_promised_too_much_is_not_chosen_for_nothing_either() {
    let choice = choose(Some(1), vec![promised(node("n1", "", 1, 0), &[("x", 2)])]);
    assert!(choice.nodes.is_empty() && choice.shortage.is_some());
}

#[test]
fn shares_add_up_to_all_copies() {
    assert_eq!(share_bytes(1000, 1, 1, 4), 250);
    assert_eq!(share_bytes(1000, 2, 1, 3), 667);
    assert_eq!(share_bytes(1000, 3, 1, 2), 1000);
    assert_eq!(share_bytes(u64::MAX, 255, u64::MAX, u64::MAX), u64::MAX);
    assert_eq!(share_bytes(1000, 1, 0, 0), 0);
}

prop_compose! {
    fn candidates()(
        nodes in prop::collection::vec(
            (0u64..20, prop::collection::vec(0u64..12, 0..4), 0u64..12, 0u64..12, any::<bool>(), 0usize..3), 0..12)
    ) -> Vec<Candidate> {
        let nodes = nodes.into_iter().enumerate();
        nodes.map(|(nth, (capacity_bytes, promises, wanted_bytes, cached_bytes, is_chosen, zone))| Candidate {
            name: format!("n{nth:02}"),
            zone: ["", "east", "west"][zone].into(),
            capacity_bytes,
            full_because: String::new(),
            promised: promises.iter().map(|bytes| Promise { to: "x".into(), bytes: *bytes }).collect(),
            wanted_bytes,
            cached_bytes,
            is_chosen,
        }).collect()
    }
}

proptest! {
    #[test]
    fn no_node_is_chosen_beyond_its_capacity_and_none_is_left_out(
        nodes in candidates(),
        count in prop::option::of(0usize..14),
    ) {
        let choice = choose(count, nodes.clone());
        let fitting = nodes.iter().filter(|node| {
            node.promised.iter().map(|promise| promise.bytes).sum::<u64>() + node.wanted_bytes <= node.capacity_bytes
        });
        let fitting: Vec<&str> = fitting.map(|node| node.name.as_str()).collect();
        prop_assert!(choice.nodes.iter().all(|name| fitting.contains(&name.as_str())));
        let wanted = count.unwrap_or(nodes.len());
        prop_assert_eq!(choice.nodes.len(), wanted.min(fitting.len()));
        let short = choice.nodes.len() < wanted || (nodes.is_empty() && count != Some(0));
        prop_assert_eq!(choice.shortage.is_some(), short);
        // Every shortage can be formatted.
        prop_assert!(choice.shortage.is_none_or(|shortage| !shortage.to_string().is_empty()));
    }

    #[test]
    fn the_order_of_the_candidates_does_not_matter(
        (nodes, shuffled) in candidates().prop_flat_map(|nodes| (Just(nodes.clone()), Just(nodes).prop_shuffle())),
        count in prop::option::of(0usize..14),
    ) {
        prop_assert_eq!(choose(count, nodes), choose(count, shuffled));
    }

    #[test]
    fn what_was_chosen_is_chosen_again(
        nodes in candidates(),
        count in prop::option::of(0usize..14),
        more in 0usize..3,
    ) {
        let first = choose(count, nodes.clone());
        // The chosen nodes now have a promise for this dataset, which is not a promise to another one. Bytes and space
        // have changed on other nodes.
        let again: Vec<Candidate> = nodes
            .into_iter()
            .map(|node| {
                let is_chosen = first.nodes.contains(&node.name);
                let cached_bytes = if is_chosen { 0 } else { node.wanted_bytes };
                Candidate { is_chosen, cached_bytes, ..node }
            })
            .collect();
        let second = choose(count.map(|count| count + more), again);
        prop_assert!(first.nodes.iter().all(|name| second.nodes.contains(name)), "{:?} {:?}", first, second);
    }
}
