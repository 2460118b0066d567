//! Any machine, any configuration.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::*;
use super::config;
use super::machines::{gpu, hca, machine, place, slice, virtual_function};
use crate::machine::Machine;

prop_compose! {
    fn machines()(
        gpus in prop::collection::btree_set((0..2_u32, 0..3_u8, 0..3_u8), 0..7),
        hcas in prop::collection::btree_set((0..2_u32, 0..3_u8, 3..6_u8), 0..7),
        cut in 0..7_usize,
        functions in 0..3_usize,
    ) -> Machine {
        let mut gpus: Vec<_> =
            gpus.iter().map(|(root, switch, slot)| gpu(&format!("{root}{switch}{slot}"), place(*root, *switch, *slot))).collect();
        if let Some(gpu) = gpus.get_mut(cut) {
            gpu.mig = Some(vec![slice("a", "1g.10gb"), slice("b", "2g.20gb")]);
        }
        let mut hcas: Vec<_> =
            hcas.iter().map(|(root, switch, slot)| hca(&format!("h{root}{switch}{slot}"), place(*root, *switch, *slot))).collect();
        for _ in 0..functions {
            let function = hcas.first_mut().map(|hca| virtual_function(hca, "vf"));
            hcas.extend(function);
        }
        machine(gpus, hcas)
    }
}

fn configs() -> impl Strategy<Value = String> {
    let resource = prop::sample::select(vec![
        "kind: rail",
        "kind: rail, select: {models: [h100], deviceIDs: ['1021']}",
        "kind: rail, select: {uuids: [GPU-000, GPU-111]}",
        "kind: gpu",
        "kind: gpu, share: 4",
        "kind: mig, share: 2",
        "kind: rdma, share: 256",
        "kind: rdma, give: all, share: 2",
        "kind: rdma, select: {deviceIDs: [101e]}",
    ]);
    prop::collection::vec(resource, 1..5).prop_map(|list| {
        let line = |(nth, text): (usize, &&str)| format!("- {{name: a/r{nth}, {text}}}\n");
        format!("resources:\n{}", list.iter().enumerate().map(line).collect::<String>())
    })
}

proptest! {
    // SEMANTICS: D4, D5
    #[test]
    fn no_device_is_given_twice_and_each_id_stands_for_one_unit(machine in machines(), text in configs()) {
        let config = config(&text);
        let assignment = assign(&machine, &config);
        let mut devices = BTreeSet::new();
        for resource in &assignment.resources {
            let mut ids = BTreeSet::new();
            for unit in &resource.units {
                for device in &unit.devices {
                    prop_assert!(devices.insert(device), "{device} twice");
                }
            }
            for id in resource.ids() {
                prop_assert!(id.len() <= 63 && ids.insert(id.clone()), "{id}");
                prop_assert!(resource.unit_of(&id).is_some(), "{id}");
            }
            prop_assert_eq!(ids.len(), resource.units.len() * usize::from(resource.config.share));
        }
        let mut turned = machine.clone();
        turned.gpus.reverse();
        turned.hcas.reverse();
        prop_assert_eq!(&assign(&turned, &config).resources, &assignment.resources);
    }
}
