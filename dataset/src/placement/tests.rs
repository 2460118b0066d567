use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const ORIGIN: &str = "s3://bucket/images";

fn member(name: impl Into<String>, weight: u32, zone: impl Into<String>) -> Member {
    Member { name: name.into(), weight, zone: zone.into() }
}

/// Nodes with names as in a cluster: they differ in one or two digits.
fn nodes(count: u32, weight: impl Fn(u32) -> u32) -> Members {
    Members::new((0..count).map(|node| member(format!("node-{node:04}"), weight(node), "")))
}

fn replicated(copies: u8) -> Placement {
    Placement::Replicated(NonZeroU8::new(copies).unwrap())
}

/// The block of one of many files whose names differ in a digit or two, as in a dataset.
fn block(number: u32) -> PlaceKey {
    let folder = format!("class-{:03}", number / 1000);
    PlaceKey::of_origin(ORIGIN).name(format!("image-{number:07}.jpg").as_bytes()).name(folder.as_bytes()).number(0)
}

fn names(members: &Members, placement: Placement, key: PlaceKey) -> Vec<&str> {
    members.owners(placement, key).iter().map(|at| members.get(*at).name.as_str()).collect()
}

/// The number of keys that each member owns.
fn owned(members: &Members, placement: Placement, keys: u32) -> Vec<u32> {
    let mut owned = vec![0; members.len()];
    for number in 0..keys {
        for at in members.owners(placement, block(number)).iter() {
            owned[*at as usize] += 1;
        }
    }
    owned
}

/// Finds the owners by sorting all members: a literal implementation of the promise of `owners`.
fn owners_by_sorting(members: &Members, placement: Placement, key: PlaceKey) -> Vec<u32> {
    let mut all: Vec<(f64, u32)> = Vec::new();
    for (member, at) in members.iter().zip(0..) {
        let seed = first_word(&Sha256::digest(&member.name).into());
        if member.weight > 0 {
            all.push((exponential(chance(seed, key)) * (1.0 / f64::from(member.weight)), at));
        }
    }
    all.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let mut zones = BTreeSet::new();
    let (best_of_zones, others): (Vec<u32>, Vec<u32>) =
        all.iter().map(|(_, at)| *at).partition(|at| zones.insert(&members.get(*at).zone));
    best_of_zones.into_iter().chain(others).take(placement.copies().into()).collect()
}

#[test]
fn every_placement_reads_back_as_written() {
    let all = (1..=u8::MAX).map(replicated).chain([Placement::Local, Placement::Partitioned]);
    for placement in all {
        assert_eq!(placement.to_string().parse(), Ok(placement));
    }
    assert_eq!("local".parse(), Ok(Placement::default()));
    assert_eq!("replicated:1".parse(), Ok(replicated(1)));
    assert_eq!("replicated:2".parse(), Ok(replicated(2)));
}

#[test]
fn other_placements_are_refused_in_words() {
    let odd =
        ["", "Local", " local", "local ", "partition", "replicated", "replicated:", "replicated:0", "replicated:256"];
    for text in
        odd.into_iter().chain(["replicated:-1", "replicated:+2", "replicated:02", "replicated: 2", "replicated:2:3"])
    {
        let refused = text.parse::<Placement>().unwrap_err();
        assert_eq!(refused, PlacementError { given: text.to_owned() });
        let words = refused.to_string();
        for form in ["local", "partitioned", "replicated:N", &format!("{text:?}")] {
            assert!(words.contains(form), "{words}");
        }
    }
}

#[test]
fn nobody_owns_what_is_local() {
    assert!(nodes(10, |_| 1).owners(Placement::Local, block(0)).is_empty());
}

#[test]
fn too_few_members_own_everything() {
    assert!(Members::new([]).is_empty());
    assert!(Members::new([]).owners(replicated(3), block(0)).is_empty());
    let two = nodes(2, |_| 1);
    for number in 0..100 {
        let owners: BTreeSet<u32> = two.owners(replicated(3), block(number)).iter().copied().collect();
        assert_eq!(owners, BTreeSet::from([0, 1]));
    }
}

#[test]
fn without_weight_a_member_owns_nothing() {
    let members = Members::new([member("a", 0, "z0"), member("b", 1, "z1"), member("c", 0, "z2")]);
    for number in 0..100 {
        assert_eq!(*members.owners(replicated(3), block(number)), [1]);
    }
    assert_eq!(members.len(), 3);
}

#[test]
fn of_members_with_one_name_the_heaviest_counts_wherever_it_stands() {
    let three = [member("a", 2, "z1"), member("a", 3, "z0"), member("a", 3, "z1")];
    for start in 0..3 {
        let mut given = three.to_vec();
        given.rotate_left(start);
        let members = Members::new(given);
        assert_eq!(members.iter().collect::<Vec<_>>(), [&member("a", 3, "z1")]);
    }
}

#[test]
fn positions_are_those_of_the_names_in_order() {
    let members = Members::new(["c", "a", "b"].map(|name| member(name, 1, "")));
    assert_eq!(members.iter().map(|member| member.name.as_str()).collect::<String>(), "abc");
    for (at, name) in (0..).zip(["a", "b", "c"]) {
        assert_eq!(members.position(name), Some(at));
        assert_eq!(members.get(at).name, name);
    }
    assert_eq!(members.position("d"), None);
}

#[test]
fn keys_of_origins_names_and_numbers_are_apart() {
    let mut keys = BTreeSet::new();
    let mut count = 0;
    let mut add = |key: PlaceKey| {
        keys.insert(key.0);
        count += 1;
    };
    for origin in [ORIGIN, "s3://bucket/images2", "file:///"].map(PlaceKey::of_origin) {
        add(origin);
        // Zero bytes count, and so does the position where a name ends.
        for name in [&b""[..], b"\0", b"\0\0", b"a", b"a\0", b"12345678", b"12345678\0", b"1234567", b"123456789"] {
            add(origin.name(name));
            add(origin.name(b"12345678").name(name));
            for number in 0..1000 {
                add(origin.name(name).number(number));
            }
        }
    }
    assert_eq!(keys.len(), count);
}

#[test]
fn the_mixing_is_that_of_splitmix64() {
    // The first numbers of the published generator for the seeds 0 and 1234567.
    assert_eq!([absorb(0, 1), absorb(0, 2)], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    assert_eq!([absorb(1_234_567, 1), absorb(1_234_567, 2)], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
}

#[test]
fn exponential_is_the_logarithm_and_never_less_than_the_chance() {
    let smallest = 0.5 / (1_u64 << 52) as f64;
    let powers = (0..53).map(|power| smallest * (1_u64 << power) as f64);
    let drawn = (0..1_000_000).map(|number| chance(0, block(number)));
    for x in powers.clone().chain(powers.map(|x| 1.0 - x)).chain(drawn) {
        let (is, should) = (exponential(x), -(-x).ln_1p());
        assert!((is - should).abs() <= 1e-8 * should, "{x:e}: {is:e} is not {should:e}");
        assert!(is >= x, "{x:e}: {is:e}");
    }
}

/// A change of the function moves all data of all clusters, and nodes disagree during a rolling upgrade.
#[test]
fn owners_are_these_for_ever() {
    let members = Members::new([
        member("node-a", 1, "zone-1"),
        member("node-b", 1, "zone-1"),
        member("node-c", 2, "zone-2"),
        member("node-d", 3, "zone-2"),
        member("node-e", 7, "zone-3"),
        member("10.0.0.17", 5, ""),
        member("knoten-ä", 4, "zone-3"),
    ]);
    let (origin, other) = (PlaceKey::of_origin("s3://bucket/imagenet"), PlaceKey::of_origin("file:///data"));
    let file = origin.name(b"n01440764_10026.JPEG").name(b"n01440764");
    let pack = origin.name(b"packs/000000-0011aabb.pack");
    let table = [
        (origin, 0x574f_711a_ada3_57e5, "10.0.0.17 node-e node-d node-b knoten-ä"),
        (file.number(0), 0x40eb_b35a_c43e_45b3, "knoten-ä node-c 10.0.0.17 node-a node-e"),
        (file.number(1), 0x6340_75fa_67d7_84cb, "node-a knoten-ä 10.0.0.17 node-d node-e"),
        (file.number(u64::MAX), 0x64b2_fb9b_bfbf_067b, "node-b node-d knoten-ä 10.0.0.17 node-e"),
        (
            origin.name(b"n01440764_10026.JPEG").number(0),
            0x9ccf_8ede_f4b1_986c,
            "node-e 10.0.0.17 node-c node-b knoten-ä",
        ),
        (origin.name(&[0xff]).number(0), 0xd202_fdce_2951_0212, "10.0.0.17 node-d knoten-ä node-a node-e"),
        (pack.number(0), 0x05c9_3d99_0ea8_1469, "node-a knoten-ä node-d 10.0.0.17 node-e"),
        (pack.number(1), 0xbce9_7d07_03ef_11c8, "10.0.0.17 knoten-ä node-d node-a node-e"),
        (
            origin.name(b"packs/000001-0011aabb.pack").number(0),
            0x757e_5704_0bfb_f510,
            "node-d node-e 10.0.0.17 node-b node-c",
        ),
        (other.name(b"a").number(0), 0x91b3_f97f_8784_4e3b, "node-e node-d 10.0.0.17 node-b node-c"),
        (other.name(b"b").number(0), 0x25e5_40b0_1521_db32, "10.0.0.17 node-c node-a node-e knoten-ä"),
    ];
    for (key, hash, owners) in table {
        assert_eq!(names(&members, replicated(5), key).join(" "), owners, "{key:?}");
        assert_eq!(key.0, hash);
    }
}

/// Of n keys, a member whose share is p owns n p on average, with a standard deviation of sqrt(n p (1 - p)) by chance
/// alone. For 800,000 keys and a thousand nodes that is 3.5 %, and of a thousand nodes some are always three deviations
/// off. Therefore each key has eight owners here, which gives 1.2 %.
#[test]
fn a_thousand_nodes_own_the_same_to_five_percent() {
    const NODES: u32 = 1000;
    const COPIES: u8 = 8;
    const KEYS: u32 = 800_000;
    let members = nodes(NODES, |_| 1);
    let (mut first, mut any) = (vec![0_u32; NODES as usize], vec![0_u32; NODES as usize]);
    for number in 0..KEYS {
        let owners = members.owners(replicated(COPIES), block(number));
        first[owners[0] as usize] += 1;
        for at in owners.iter() {
            any[*at as usize] += 1;
        }
    }

    let mean = f64::from(KEYS) * f64::from(COPIES) / f64::from(NODES);
    let (least, most) = (f64::from(*any.iter().min().unwrap()) / mean, f64::from(*any.iter().max().unwrap()) / mean);
    println!("of {mean}: {:.2} % to {:.2} %", 100.0 * least, 100.0 * most);
    assert!(least > 0.95 && most < 1.05, "{least} to {most}");

    // The counts scatter by chance and no wider. If the nodes' true shares differed by 1 % (standard deviation), this
    // sum would be larger by 640 for all owners and by 80 for the first owners, which are too few to be tested to 5 %.
    for (counts, copies) in [(first, 1.0), (any, f64::from(COPIES))] {
        let share = copies / f64::from(NODES);
        let mean = f64::from(KEYS) * share;
        let sum: f64 = counts.iter().map(|count| (f64::from(*count) - mean).powi(2) / (mean * (1.0 - share))).sum();
        let (expected, deviation) = (f64::from(NODES), (2.0 * f64::from(NODES)).sqrt());
        println!("chi squared {sum:.0}, expected {expected} ± {deviation:.0}");
        assert!((sum - expected).abs() < 4.0 * deviation, "{sum} for {copies} copies");
    }
}

#[test]
fn what_a_node_leaves_behind_is_spread_evenly_over_the_others() {
    const NODES: usize = 32;
    const KEYS: u32 = 1_000_000;
    let members = nodes(NODES as u32, |_| 1);
    let mut counts = vec![0_u32; NODES * NODES];
    for number in 0..KEYS {
        let owners = members.owners(replicated(2), block(number));
        counts[owners[0] as usize * NODES + owners[1] as usize] += 1;
    }
    let pairs = (NODES * (NODES - 1)) as f64;
    let mean = f64::from(KEYS) / pairs;
    let others = |pair: usize| pair / NODES != pair % NODES;
    let sum: f64 = (0..counts.len())
        .filter(|pair| others(*pair))
        .map(|pair| (f64::from(counts[pair]) - mean).powi(2) / mean)
        .sum();
    println!("chi squared {sum:.0}, expected {pairs} ± {:.0}", (2.0 * pairs).sqrt());
    assert!((sum - pairs).abs() < 4.0 * (2.0 * pairs).sqrt(), "{sum}");
}

#[test]
fn shares_are_in_proportion_to_weights() {
    const KEYS: u32 = 1_000_000;
    for weights in [&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10][..], &[1, 1000, 30], &[u32::MAX, u32::MAX / 2, 1], &[1; 16]] {
        let members = nodes(weights.len() as u32, |node| weights[node as usize]);
        let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        for (owned, weight) in owned(&members, Placement::Partitioned, KEYS).into_iter().zip(weights) {
            let share = f64::from(*weight) / total;
            let mean = f64::from(KEYS) * share;
            let deviation = (mean * (1.0 - share)).sqrt();
            assert!((f64::from(owned) - mean).abs() <= 4.5 * deviation + 1.0, "{weights:?}: {weight} owns {owned}");
        }
    }
}

fn any_member() -> impl Strategy<Value = Member> {
    // Few names, so that some occur twice. Weights far apart, and weight 0.
    let weight = prop_oneof![Just(1_u32), 0..4_u32, 1..100_u32, 1..=u32::MAX];
    (0..60_u32, weight, 0..5_u32).prop_map(|(name, weight, zone)| {
        member(format!("node-{name}"), weight, if zone == 0 { String::new() } else { format!("zone-{zone}") })
    })
}

fn any_members() -> impl Strategy<Value = Vec<Member>> {
    proptest::collection::vec(any_member(), 1..40)
}

fn any_placement() -> impl Strategy<Value = Placement> {
    prop_oneof![Just(Placement::Partitioned), (1..20_u8).prop_map(replicated)]
}

/// The members, each name once, with their zones or without.
fn one_name_each(mut given: Vec<Member>, zones: bool) -> Members {
    for member in &mut given {
        if !zones {
            member.zone.clear();
        }
    }
    Members::new(given)
}

const KEYS: u32 = 50;

proptest! {
    #[test]
    fn the_order_in_which_members_are_given_does_not_matter(
        (given, shuffled) in any_members().prop_flat_map(|given| (Just(given.clone()), Just(given).prop_shuffle())),
        placement in any_placement(),
    ) {
        let (members, other) = (Members::new(given), Members::new(shuffled));
        prop_assert_eq!(&members, &other);
        for number in 0..KEYS {
            prop_assert_eq!(&*members.owners(placement, block(number)), &*other.owners(placement, block(number)));
        }
    }

    #[test]
    fn owners_are_those_that_sorting_gives(
        given in any_members(), placement in any_placement(), first in any::<u32>(),
    ) {
        let members = Members::new(given);
        for number in 0..KEYS {
            let key = block(first.wrapping_add(number));
            prop_assert_eq!(&*members.owners(placement, key), owners_by_sorting(&members, placement, key));
        }
    }

    // SEMANTICS: S3
    #[test]
    fn who_leaves_or_joins_moves_only_its_own(
        given in any_members(), placement in any_placement(), zones: bool, who: prop::sample::Index,
    ) {
        let with = one_name_each(given, zones);
        let who = with.get(who.index(with.len()) as u32).name.clone();
        let without = Members::new(with.iter().filter(|member| member.name != who).cloned());
        for number in 0..KEYS {
            let (before, after) = (names(&with, placement, block(number)), names(&without, placement, block(number)));
            if before.contains(&who.as_str()) {
                // The others stay, and at most one takes its place.
                prop_assert!(before.iter().filter(|name| !after.contains(name)).eq([&who]));
                prop_assert!(after.iter().filter(|name| !before.contains(name)).count() <= 1);
            } else {
                prop_assert_eq!(before, after);
            }
        }
    }

    #[test]
    fn who_grows_only_gains(
        given in any_members(), placement in any_placement(), zones: bool, who: prop::sample::Index,
        more in 1..=u32::MAX,
    ) {
        let before = one_name_each(given, zones);
        let who = before.get(who.index(before.len()) as u32).name.clone();
        let after = Members::new(before.iter().cloned().map(|mut member| {
            if member.name == who {
                member.weight = member.weight.saturating_add(more);
            }
            member
        }));
        for number in 0..KEYS {
            let (small, large) = (names(&before, placement, block(number)), names(&after, placement, block(number)));
            if small.contains(&who.as_str()) || !large.contains(&who.as_str()) {
                prop_assert_eq!(BTreeSet::from_iter(small), BTreeSet::from_iter(large));
            } else {
                prop_assert!(large.iter().filter(|name| !small.contains(name)).eq([&who]));
                prop_assert!(small.iter().filter(|name| !large.contains(name)).count() <= 1);
            }
        }
    }

    // SEMANTICS: S2
    #[test]
    fn copies_lie_in_different_zones_as_long_as_there_are_zones(given in any_members(), copies in 1..20_u8) {
        let members = Members::new(given);
        let weighted: Vec<&Member> = members.iter().filter(|member| member.weight > 0).collect();
        let zones = weighted.iter().map(|member| &member.zone).collect::<BTreeSet<_>>().len();
        for number in 0..KEYS {
            let owners = members.owners(replicated(copies), block(number));
            let owners_zones: BTreeSet<&String> = owners.iter().map(|at| &members.get(*at).zone).collect();
            prop_assert_eq!(owners.len(), weighted.len().min(copies.into()));
            prop_assert_eq!(owners.iter().collect::<BTreeSet<_>>().len(), owners.len(), "no one twice");
            prop_assert_eq!(owners_zones.len(), owners.len().min(zones));
            let owner = members.owners(Placement::Partitioned, block(number));
            prop_assert_eq!(owners.first(), owner.first());
        }
    }
}
