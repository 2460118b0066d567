use proptest::prelude::*;

use super::*;

fn reading(held: u64, coming: u64) -> Standing {
    let mut standing = Standing { coming_bytes: coming, ..Standing::default() };
    standing.reads(held, 100);
    standing
}

#[test]
fn what_is_there_counts_more_than_what_comes_and_both_more_than_nothing() {
    let total = |standing: &Standing| Weights::default().total(&terms(standing));
    let all = [reading(100, 0), reading(50, 50), reading(0, 100), reading(0, 0)];
    assert_eq!(all.map(|standing| total(&standing)), [10, 6, 3, 0]);
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
    let near = Standing { group: 4, group_in_zone: 4, group_in_rack: 2, ..reading(100, 0) };
    let far = Standing { group: 4, ..reading(100, 0) };
    let rack = Standing { group: 4, group_in_zone: 4, group_in_rack: 4, ..reading(100, 0) };
    let weights = Weights { zone: 60, rack: 60, ..Weights::default() };
    let total = |standing| weights.total(&terms(standing));
    assert_eq!([&rack, &near, &far].map(total), [10, 8, 3]);
}

#[test]
fn a_pod_that_fits_into_what_is_broken_already_breaks_nothing() {
    let of = |asked, free| whole(&Devices { asked, all: 8, free, together: 4, awaited: true });
    let cases = [
        // A node of which nothing is taken.
        ((1, 8), 0),
        ((4, 8), 10),
        ((8, 8), 10),
        // One part is whole, of the other 2 are free.
        ((1, 6), 10),
        ((2, 6), 10),
        ((3, 6), 5),
        ((4, 6), 10),
        // All that is free, and more.
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

fn any_standing() -> impl Strategy<Value = Standing> {
    let devices = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<bool>())
        .prop_map(|(asked, all, free, together, awaited)| Devices { asked, all, free, together, awaited });
    let bytes = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    (bytes, any::<(u32, u32, u32)>(), devices).prop_map(|(bytes, group, devices)| Standing {
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
    fn a_node_that_holds_more_never_has_less(standing in any_standing(), more: u64, weights: [u32; 6]) {
        let [data, warming, shared, zone, rack, whole] = weights;
        let weights = Weights { data, warming, shared, zone, rack, whole };
        let fuller = Standing { held_bytes: standing.held_bytes.saturating_add(more), ..standing };
        let (before, after) = (weights.total(&terms(&standing)), weights.total(&terms(&fuller)));
        prop_assert!(before <= after && after <= MOST);
    }
}
