use proptest::prelude::*;

use super::*;
use crate::machine::Gpu;
use crate::resource::assign;
use crate::resource::tests::config;
use crate::resource::tests::machines::{eight, gpu, hca, machine, place};

fn resource(machine: &Machine, text: &str) -> Resource {
    assign(machine, &config(&format!("resources:\n- {{name: a/b, {text}}}\n"))).resources.remove(0)
}

fn owned(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

/// The first IDs of all that are available.
fn chosen(machine: &Machine, text: &str, available: &[&str], must_include: &[&str], size: usize) -> Vec<String> {
    choose(machine, &resource(machine, text), &owned(available), &owned(must_include), size)
}

fn link(gpus: &mut [Gpu], a: usize, b: usize, links: u32) {
    let uuid = gpus[b].uuid.clone();
    gpus[a].nvlinks.insert(uuid, links);
}

// SEMANTICS: D6
#[test]
fn gpus_on_one_root_go_together_and_the_first_when_all_is_equal() {
    let all: Vec<String> = (0..8).map(|nth| format!("GPU-{nth}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(chosen(&eight(), "kind: gpu", &all, &[], 4), ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]);
    assert_eq!(chosen(&eight(), "kind: rail", &all[1..], &[], 4), ["GPU-4", "GPU-5", "GPU-6", "GPU-7"]);
    assert_eq!(chosen(&eight(), "kind: gpu", &all, &["GPU-6"], 2), ["GPU-6", "GPU-4"]);
}

#[test]
fn nvlinks_count_before_pcie() {
    let mut machine = eight();
    link(&mut machine.gpus, 0, 7, 1);
    link(&mut machine.gpus, 1, 2, 2);
    let available = ["GPU-0", "GPU-1", "GPU-2", "GPU-7"];
    assert_eq!(chosen(&machine, "kind: gpu", &available, &[], 2), ["GPU-1", "GPU-2"]);
    assert_eq!(chosen(&machine, "kind: gpu", &available, &["GPU-0"], 2), ["GPU-0", "GPU-7"]);
    // Only one of the two GPUs reports the link.
    assert_eq!(chosen(&machine, "kind: gpu", &available, &["GPU-7"], 2), ["GPU-7", "GPU-0"]);
}

#[test]
fn numa_nodes_count_where_there_is_no_common_root() {
    let gpus: Vec<Gpu> = (0..4).map(|nth| gpu(&nth.to_string(), place(nth, 0, 0))).collect();
    let mut machine = machine(gpus, Vec::new());
    for (gpu, numa) in machine.gpus.iter_mut().zip([Some(0), Some(1), None, Some(1)]) {
        gpu.place.numa = numa;
    }
    assert_eq!(chosen(&machine, "kind: gpu", &["GPU-0", "GPU-1", "GPU-2", "GPU-3"], &[], 2), ["GPU-1", "GPU-3"]);
}

// SEMANTICS: D6
#[test]
fn one_gpu_is_taken_where_it_leaves_the_others_nearest_to_each_other() {
    let mut machine = eight();
    link(&mut machine.gpus, 0, 1, 4);
    link(&mut machine.gpus, 2, 3, 4);
    // GPU-0 is in use: its partner is chosen, and the other pair stays whole.
    assert_eq!(chosen(&machine, "kind: gpu", &["GPU-1", "GPU-2", "GPU-3"], &[], 1), ["GPU-1"]);
    assert_eq!(chosen(&machine, "kind: gpu", &["GPU-3", "GPU-2", "GPU-1"], &[], 1), ["GPU-1"]);
}

#[test]
fn links_among_those_that_are_chosen_do_not_count_as_links_to_what_is_left() {
    let mut gpus: Vec<Gpu> = (0..5).map(|nth| gpu(&nth.to_string(), place(0, 0, nth))).collect();
    link(&mut gpus, 0, 1, 2);
    link(&mut gpus, 4, 2, 1);
    link(&mut gpus, 4, 3, 1);
    let available = ["GPU-0", "GPU-1", "GPU-2", "GPU-3"];
    let chosen = chosen(&machine(gpus, Vec::new()), "kind: gpu", &available, &["GPU-4"], 3);
    assert_eq!(chosen, ["GPU-4", "GPU-0", "GPU-1"]);
}

// SEMANTICS: D6
#[test]
fn shared_hcas_are_chosen_by_least_use_and_apart() {
    let machine = machine(Vec::new(), (0..3).map(|nth| hca(&nth.to_string(), place(0, nth, 1))).collect());
    // Of four IDs each, three, two and none are in use.
    let available = [
        "0000:30:01.0::3",
        "0000:31:01.0::2",
        "0000:31:01.0::0",
        "0000:32:01.0::3",
        "0000:32:01.0::1",
        "0000:32:01.0::0",
        "0000:32:01.0::2",
    ];
    let chosen = |must: &[&str], size| chosen(&machine, "kind: rdma, share: 4", &available, must, size);
    assert_eq!(chosen(&[], 1), ["0000:32:01.0::0"]);
    assert_eq!(chosen(&[], 2), ["0000:32:01.0::0", "0000:31:01.0::0"]);
    assert_eq!(chosen(&["0000:32:01.0::2"], 2), ["0000:32:01.0::2", "0000:31:01.0::0"]);
    assert_eq!(
        chosen(&[], 5),
        ["0000:32:01.0::0", "0000:31:01.0::0", "0000:30:01.0::3", "0000:32:01.0::1", "0000:31:01.0::2"]
    );
    assert_eq!(chosen(&[], 99).len(), available.len());
}

// SEMANTICS: D6
#[test]
fn ids_of_others_are_never_chosen() {
    let available = ["GPU-9", "GPU-3", "GPU-3", "GPU-3::0", "", "GPU-5"];
    assert_eq!(chosen(&eight(), "kind: gpu", &available, &[], 3), ["GPU-3", "GPU-5"]);
    assert_eq!(chosen(&eight(), "kind: gpu", &available, &["GPU-9", "GPU-9"], 2), ["GPU-9", "GPU-3"]);
    assert_eq!(chosen(&eight(), "kind: gpu", &available, &["GPU-3", "GPU-5"], 1), ["GPU-3", "GPU-5"]);
    assert_eq!(chosen(&eight(), "kind: gpu", &[], &[], 1), [""; 0]);
    assert_eq!(chosen(&eight(), "kind: gpu", &available, &[], 0), [""; 0]);
}

/// GPUs on two roots of three switches, and the NVLinks between some of them.
fn linked(places: &[(u32, u8, u8)], links: &[(usize, usize, u32)]) -> Machine {
    let gpus = places.iter().enumerate();
    let mut gpus: Vec<Gpu> =
        gpus.map(|(nth, (root, switch, slot))| gpu(&nth.to_string(), place(*root, *switch, *slot))).collect();
    for (a, b, count) in links.iter().copied() {
        if a < gpus.len() && b < gpus.len() && a != b {
            link(&mut gpus, a, b, count);
            link(&mut gpus, b, a, count);
        }
    }
    machine(gpus, Vec::new())
}

/// The NVLinks, the closeness on PCIe and the shared NUMA nodes of all pairs, summed one after the other.
fn quality(machine: &Machine, ids: &[String]) -> (u32, usize, usize) {
    let find = |id: &String| machine.gpus.iter().find(|gpu| gpu.uuid == *id).unwrap();
    let gpus: Vec<&Gpu> = ids.iter().map(find).collect();
    let pairs = || gpus.iter().enumerate().flat_map(|(nth, a)| gpus[..nth].iter().map(move |b| (a, b)));
    (
        pairs().map(|(a, b)| a.nvlinks.get(&b.uuid).copied().unwrap_or_default()).sum(),
        pairs().map(|(a, b)| a.place.distance(&b.place).map_or(0, |distance| 64 - distance)).sum(),
        pairs().filter(|(a, b)| a.place.numa == b.place.numa).count(),
    )
}

proptest! {
    // SEMANTICS: D6
    #[test]
    fn no_other_choice_is_nearer(
        places in prop::collection::btree_set((0..2_u32, 0..3_u8, 0..3_u8), 1..10),
        links in prop::collection::vec((0..10_usize, 0..10_usize, 1..5_u32), 0..12),
        free in 0..1024_u32,
        must in 0..1024_u32,
        size in 0..8_usize,
    ) {
        let places: Vec<_> = places.into_iter().collect();
        let machine = linked(&places, &links);
        let resource = resource(&machine, "kind: gpu");
        let of = |bits: u32| -> Vec<String> {
            (0..places.len()).filter(|nth| bits & (1 << nth) != 0).map(|nth| format!("GPU-{nth}")).collect()
        };
        let (free, must) = (of(free), of(free & must));
        let must = must[..must.len().min(size)].to_vec();
        let chosen = choose(&machine, &resource, &free, &must, size);
        prop_assert_eq!(chosen.len(), size.min(free.len()));
        prop_assert!(chosen.iter().all(|id| free.contains(id)) && must.iter().all(|id| chosen.contains(id)));
        let mut turned = free.clone();
        turned.reverse();
        prop_assert_eq!(&choose(&machine, &resource, &turned, &must, size), &chosen);
        let others = (0..1_u32 << places.len()).map(of).filter(|set| {
            set.len() == chosen.len() && set.iter().all(|id| free.contains(id)) && must.iter().all(|id| set.contains(id))
        });
        // The chosen units are also as far from the remaining units as possible.
        let of_both = |set: &[String]| {
            let (left, new): (Vec<String>, Vec<String>) =
                free.iter().filter(|id| !must.contains(id)).cloned().partition(|id| !set.contains(id));
            let (all, left, new) = (
                quality(&machine, &[&left[..], &new[..]].concat()),
                quality(&machine, &left),
                quality(&machine, &new),
            );
            let between = (all.0 - left.0 - new.0, all.1 - left.1 - new.1, all.2 - left.2 - new.2);
            (quality(&machine, set), std::cmp::Reverse(between))
        };
        prop_assert_eq!(others.map(|set| of_both(&set)).max(), Some(of_both(&chosen)));
    }

    #[test]
    fn no_other_choice_among_sixteen_is_nearer(
        links in prop::collection::vec((0..16_usize, 0..16_usize, 1..9_u32), 0..60),
        must in prop::collection::vec(0..16_usize, 0..4),
        size in 1..16_usize,
    ) {
        let places: Vec<(u32, u8, u8)> = (0..16).map(|nth| (u32::from(nth / 8), nth % 8 / 3, nth % 3)).collect();
        let machine = linked(&places, &links);
        let available: Vec<String> = (0..16).map(|nth| format!("GPU-{nth}")).collect();
        let index = |id: &String| available.iter().position(|other| other == id).unwrap();
        let mut must: Vec<String> = must.into_iter().map(|nth| available[nth].clone()).collect();
        must.sort();
        must.dedup();
        must.truncate(size);
        let chosen = choose(&machine, &resource(&machine, "kind: gpu"), &available, &must, size);
        prop_assert_eq!(chosen.len(), size);
        let bits = |ids: &[String]| ids.iter().fold(0_u32, |bits, id| bits | 1 << index(id));
        let pairs: Vec<(u32, (u32, usize, usize))> = (0..16)
            .flat_map(|a| (0..a).map(move |b| (a, b)))
            .map(|(a, b)| (1 << a | 1 << b, quality(&machine, &[available[a].clone(), available[b].clone()])))
            .collect();
        let within = |set: u32| {
            let found = pairs.iter().filter(|(pair, _)| set & pair == *pair);
            found.fold((0, 0, 0), |sum, (_, one)| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2))
        };
        let others = (0..1_u32 << 16).filter(|set| set.count_ones() as usize == size && set & bits(&must) == bits(&must));
        prop_assert_eq!(others.map(within).max(), Some(within(bits(&chosen))));
    }

    // SEMANTICS: D6
    #[test]
    fn no_exchange_among_many_gpus_is_better(links in prop::collection::vec((0..18_usize, 0..18_usize, 1..9_u32), 20..80)) {
        let places: Vec<(u32, u8, u8)> = (0..18).map(|nth| (u32::from(nth / 9), nth % 9 / 3, nth % 3)).collect();
        let machine = linked(&places, &links);
        let available: Vec<String> = (0..18).map(|nth| format!("GPU-{nth}")).collect();
        let chosen = choose(&machine, &resource(&machine, "kind: gpu"), &available, &[], 8);
        prop_assert_eq!(chosen.len(), 8);
        for nth in 0..8 {
            for other in available.iter().filter(|id| !chosen.contains(id)) {
                let mut exchanged = chosen.clone();
                exchanged[nth].clone_from(other);
                prop_assert!(quality(&machine, &exchanged) <= quality(&machine, &chosen));
            }
        }
    }
}

#[test]
fn linked_gpus_are_found_among_many() {
    // 32 GPUs. Every third GPU is linked to every other third one. There are more sets of 10 than can be tried.
    let places: Vec<(u32, u8, u8)> = (0..32).map(|nth| (nth / 16, (nth / 4 % 4) as u8, (nth % 4) as u8)).collect();
    let linked_ones = || (0..32).filter(|nth| nth % 3 == 1);
    let links: Vec<_> = linked_ones().flat_map(|a| linked_ones().map(move |b| (a, b, 4))).collect();
    let machine = linked(&places, &links);
    let available: Vec<String> = (0..32).map(|nth| format!("GPU-{nth}")).collect();
    let chosen = choose(&machine, &resource(&machine, "kind: gpu"), &available, &[], 10);
    // Ten of the eleven: one of the five on the first root is left out, and not one of the two that share a switch.
    let expected = linked_ones().filter(|nth| *nth != 13).map(|nth| format!("GPU-{nth}"));
    assert_eq!(chosen, expected.collect::<Vec<String>>());
}
