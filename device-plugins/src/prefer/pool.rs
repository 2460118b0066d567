//! The IDs to choose from.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::{Gpu, Machine, Place};
use crate::resource::{DeviceKey, Resource};

/// The units of a resource that have an available or an already chosen ID, sorted by PCI address.
pub(super) struct Pool<'m> {
    resource: &'m Resource,
    pub(super) units: Vec<Choice<'m>>,
}

/// A unit to choose from.
pub(super) struct Choice<'m> {
    /// The unit's index in the resource.
    nth: usize,
    gpu: Option<&'m Gpu>,
    place: Option<&'m Place>,
    /// The numbers of the unit's free IDs, sorted.
    free: Vec<u16>,
    /// How many IDs of the unit are already chosen.
    pub(super) chosen: usize,
}

impl Choice<'_> {
    /// How many IDs are free.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// How near two units are to each other: higher is nearer. NVLinks outweigh PCIe distance, and PCIe distance
    /// outweighs NUMA nodes, even in a sum over thousands of pairs.
    pub(super) fn nearness(&self, other: &Self) -> u64 {
        let links = |from: Option<&Gpu>, to: Option<&Gpu>| {
            from.zip(to).and_then(|(from, to)| from.nvlinks.get(&to.uuid)).copied().unwrap_or_default()
        };
        let nvlinks = links(self.gpu, other.gpu).max(links(other.gpu, self.gpu));
        let places = self.place.zip(other.place);
        let distance = places.and_then(|(a, b)| a.distance(b));
        let on_pcie = distance.map_or(0, |distance| 64_usize.saturating_sub(distance).max(1));
        let on_numa = places.is_some_and(|(a, b)| a.numa.is_some() && a.numa == b.numa);
        u64::from(nvlinks.min(1 << 12)) << 40 | (on_pcie as u64) << 20 | u64::from(on_numa)
    }
}

impl<'m> Pool<'m> {
    pub(super) fn new(machine: &'m Machine, resource: &'m Resource, available: &[String], chosen: &[String]) -> Self {
        let mut free: BTreeMap<usize, BTreeSet<u16>> = BTreeMap::new();
        let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
        for (unit, nth) in available.iter().filter_map(|id| resource.nth_unit_of(id)) {
            free.entry(unit).or_default().insert(nth);
        }
        for (unit, nth) in chosen.iter().filter_map(|id| resource.nth_unit_of(id)) {
            free.entry(unit).or_default().remove(&nth);
            *taken.entry(unit).or_default() += 1;
        }
        let mut units: Vec<Choice<'m>> = free
            .into_iter()
            .map(|(nth, free)| {
                let (gpu, place) = find(machine, &resource.units[nth].devices);
                let chosen = taken.get(&nth).copied().unwrap_or_default();
                Choice { nth, gpu, place, free: free.into_iter().collect(), chosen }
            })
            .collect();
        units.sort_by_key(|unit| (unit.place.map(|place| place.pci), unit.nth));
        Self { resource, units }
    }

    /// How many IDs of a unit are neither free nor chosen for this container.
    pub(super) fn in_use(&self, unit: &Choice) -> usize {
        usize::from(self.resource.config.share).saturating_sub(unit.free.len() + unit.chosen)
    }

    /// The first free IDs of these units. A unit that is listed n times gives its first n IDs.
    pub(super) fn ids(&self, units: &[usize]) -> Vec<String> {
        let mut used: BTreeMap<usize, usize> = BTreeMap::new();
        let id = |unit: &usize| {
            let (choice, count) = (&self.units[*unit], used.entry(*unit).or_default());
            *count += 1;
            self.resource.units[choice.nth].shared_id(self.resource.config.share, choice.free[*count - 1])
        };
        units.iter().map(id).collect()
    }
}

/// The GPU of a unit, if it has one, and where the unit is.
fn find<'m>(machine: &'m Machine, devices: &[DeviceKey]) -> (Option<&'m Gpu>, Option<&'m Place>) {
    let gpu = devices.iter().find_map(|device| match device {
        DeviceKey::Gpu(uuid) => machine.gpus.iter().find(|gpu| gpu.uuid == *uuid),
        DeviceKey::Slice(uuid) => machine.gpus.iter().find(|gpu| gpu.slices().iter().any(|slice| slice.uuid == *uuid)),
        DeviceKey::Hca(_) => None,
    });
    let hca = devices.iter().find_map(|device| match device {
        DeviceKey::Hca(pci) => machine.hcas.iter().find(|hca| hca.place.pci == *pci),
        DeviceKey::Gpu(_) | DeviceKey::Slice(_) => None,
    });
    (gpu, gpu.map(|gpu| &gpu.place).or(hca.map(|hca| &hca.place)))
}
