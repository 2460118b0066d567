use proptest::prelude::*;

use super::*;

fn reading(held: u64, coming: u64) -> NodeFacts {
    let mut node = NodeFacts { coming_bytes: coming, ..NodeFacts::default() };
    node.reads(held, 100);
    node
}

#[test]
fn what_is_there_counts_more_than_what_comes_and_both_more_than_nothing() {
    let total = |node: &NodeFacts| Weights::default().total(&terms(node));
    let all = [reading(100, 0), reading(50, 50), reading(0, 100), reading(0, 0)];
    assert_eq!(all.map(|node| total(&node)), [10, 6, 3, 0]);
}

#[test]
fn a_reason_that_no_node_differs_in_has_no_part_in_the_total() {
    let alone = terms(&reading(100, 0));
    assert_eq!((alone.shared, alone.zone, alone.rack, alone.whole), (None, None, None, None));
    assert_eq!(Weights::default().total(&alone), 10);
    assert_eq!(Weights::default().total(&Terms::default()), 0);
    let nothing = Weights { data: 0, warming: 0, shared: 0, zone: 0, rack: 0, whole: 0 };
    assert_eq!(nothing.total(&alone), 0);
}

#[test]
fn of_two_equal_nodes_the_one_near_the_group_wins() {
    let near = NodeFacts { group: 4, group_in_zone: 4, group_in_rack: 2, ..reading(100, 0) };
    let far = NodeFacts { group: 4, ..reading(100, 0) };
    let rack = NodeFacts { group: 4, group_in_zone: 4, group_in_rack: 4, ..reading(100, 0) };
    let weights = Weights { zone: 60, rack: 60, ..Weights::default() };
    let total = |node| weights.total(&terms(node));
    assert_eq!([&rack, &near, &far].map(total), [10, 8, 3]);
}

#[test]
fn a_pod_that_fits_into_what_is_broken_already_breaks_nothing() {
    let of = |asked, free| whole(&Devices { asked, all: 8, free, together: 4, awaited: true });
    let cases = [
        // A node with no device taken.
        ((1, 8), 0),
        ((4, 8), 10),
        ((8, 8), 10),
        // One group is whole, and 2 devices of the other are free.
        ((1, 6), 10),
        ((2, 6), 10),
        ((3, 6), 5),
        ((4, 6), 10),
        // All free devices and more.
        ((2, 2), 10),
        ((3, 2), 10),
    ];
    for ((asked, free), tenths) in cases {
        assert_eq!(of(asked, free), Some(tenths), "{asked} of {free}");
    }
    let of_node = |asked| whole(&Devices { asked, all: 8, free: 8, together: 0, awaited: true });
    assert_eq!([of_node(4), of_node(8)], [Some(0), Some(10)]);
    assert_eq!(whole(&Devices { asked: 1, all: 8, free: 8, together: 4, awaited: false }), None);
    assert_eq!(whole(&Devices { asked: 0, all: 8, free: 8, together: 4, awaited: true }), None);
}

fn any_node() -> impl Strategy<Value = NodeFacts> {
    let devices = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<bool>())
        .prop_map(|(asked, all, free, together, awaited)| Devices { asked, all, free, together, awaited });
    let bytes = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    (bytes, any::<(u32, u32, u32)>(), devices).prop_map(|(bytes, group, devices)| NodeFacts {
        wanted_bytes: bytes.0,
        held_bytes: bytes.1,
        coming_bytes: bytes.2,
        shared_bytes: bytes.3,
        shared_near_bytes: bytes.4,
        group: group.0,
        group_in_zone: group.1,
        group_in_rack: group.2,
        devices,
    })
}

proptest! {
    #[test]
    fn a_node_that_holds_more_never_has_less(node in any_node(), more: u64, weights: [u32; 6]) {
        let [data, warming, shared, zone, rack, whole] = weights;
        let weights = Weights { data, warming, shared, zone, rack, whole };
        let fuller = NodeFacts { held_bytes: node.held_bytes.saturating_add(more), ..node };
        let (before, after) = (weights.total(&terms(&node)), weights.total(&terms(&fuller)));
        prop_assert!(before <= after && after <= MOST);
    }
}
