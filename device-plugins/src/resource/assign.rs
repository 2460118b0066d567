//! Assigns each device to one resource.

use std::collections::BTreeSet;

use super::device::{Candidate, Device, candidates};
use super::rail::pair;
use super::units::{DeviceKey, Excluded, Exclusion, Resource, Unit};
use crate::config::{Config, Give, Kind, ResourceConfig};
use crate::machine::{Machine, PciAddress};

/// Which devices the resources of a node offer.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// In the order of the configuration.
    pub resources: Vec<Resource>,
    /// The devices that they select but do not offer.
    pub excluded: Vec<Excluded>,
}

/// Assigns the devices of a machine to the resources of a configuration.
///
/// Rails come first, and a device in a rail is in no other resource. If several resources select a device, the first one in the
/// configuration gets it. A physical function is excluded if a resource selects any of its virtual functions, because both share a
/// port; only `give: all` hands them out together. An HCA that a rail selects is excluded while its PCIe root has a GPU that NVML
/// does not list yet: offered alone, it would belong to two containers once the GPU appears.
pub fn assign(machine: &Machine, config: &Config) -> Assignment {
    let configs = &config.resources;
    let mut draft = Draft { configs, units: vec![Vec::new(); configs.len()], excluded: Vec::new() };
    let candidates = candidates(machine, configs);
    let candidates = draft.retain_offerable(candidates);
    let in_rails = draft.make_rails(&candidates);
    for candidate in candidates.iter().filter(|candidate| !in_rails.contains(&candidate.key)) {
        let mut resources = candidate.resources.iter().filter(|nth| configs[**nth].kind != Kind::Rail);
        let Some(first) = resources.next() else { continue };
        if let Some(gpu) = draft.awaited(candidate, machine) {
            let resources = std::iter::once(first).chain(resources);
            resources.for_each(|nth| draft.exclude(*nth, &candidate.key, Exclusion::AwaitedGpu(gpu)));
            continue;
        }
        let unit = Unit {
            id: candidate.key.to_string(),
            devices: vec![candidate.key.clone()],
            numa: candidate.device.numa().into_iter().collect(),
        };
        draft.units[*first].push(unit);
        for nth in resources {
            draft.exclude(*nth, &candidate.key, selected_before(&configs[*first]));
        }
    }
    draft.finish()
}

fn selected_before(first: &ResourceConfig) -> Exclusion {
    Exclusion::SelectedBefore { resource: first.name.clone(), line: first.line }
}

/// The assignment in the making.
struct Draft<'c> {
    configs: &'c [ResourceConfig],
    /// By resource.
    units: Vec<Vec<Unit>>,
    excluded: Vec<Excluded>,
}

impl Draft<'_> {
    fn exclude(&mut self, resource: usize, device: &DeviceKey, why: Exclusion) {
        let resource = self.configs[resource].name.clone();
        self.excluded.push(Excluded { device: device.clone(), resource, why });
    }

    /// Removes devices that no container can have, and physical functions whose virtual functions are offered.
    fn retain_offerable<'m>(&mut self, mut candidates: Vec<Candidate<'m>>) -> Vec<Candidate<'m>> {
        for candidate in &candidates {
            let Some(obstacle) = &candidate.obstacle else { continue };
            for nth in &candidate.resources {
                self.exclude(*nth, &candidate.key, obstacle.clone());
            }
        }
        candidates.retain(|candidate| candidate.obstacle.is_none());
        // The physical functions of virtual ones, by the resources that select the virtual ones.
        let mut physical: BTreeSet<(DeviceKey, usize)> = BTreeSet::new();
        for candidate in &candidates {
            if let Device::Hca(hca) = candidate.device
                && let Some(function) = hca.physical_function
            {
                physical.extend(candidate.resources.iter().map(|nth| (DeviceKey::Hca(function), *nth)));
            }
        }
        for candidate in &mut candidates {
            let Candidate { key, resources, .. } = candidate;
            let configs = self.configs;
            resources.retain(|nth| {
                let goes_together = |other: usize| other == *nth && configs[*nth].give == Give::All;
                let other = physical.iter().find(|(function, other)| function == key && !goes_together(*other));
                if let Some((_, other)) = other {
                    self.exclude(*nth, key, Exclusion::VirtualFunctions(configs[*other].name.clone()));
                }
                other.is_none()
            });
        }
        candidates
    }

    /// Adds the units of rails, and returns the devices in them.
    fn make_rails(&mut self, candidates: &[Candidate]) -> BTreeSet<DeviceKey> {
        // The rail of a GPU is the first one that selects it.
        let (mut gpus, mut hcas) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let mut rails = candidate.resources.iter().copied().filter(|nth| self.configs[*nth].kind == Kind::Rail);
            match candidate.device {
                Device::Gpu(gpu) => {
                    let Some(first) = rails.next() else { continue };
                    gpus.push((gpu, first, &candidate.key));
                    for nth in rails {
                        self.exclude(nth, &candidate.key, selected_before(&self.configs[first]));
                    }
                }
                Device::Hca(hca) => hcas.push((hca, rails.collect::<Vec<usize>>(), &candidate.key)),
                Device::Slice(..) => {}
            }
        }
        gpus.sort_by_key(|(gpu, ..)| gpu.place.pci);
        hcas.sort_by_key(|(hca, ..)| hca.place.pci);
        let pairs = pair(
            &gpus.iter().map(|(gpu, ..)| *gpu).collect::<Vec<_>>(),
            &hcas.iter().map(|(hca, ..)| *hca).collect::<Vec<_>>(),
            |gpu, hca| hcas[hca].1.contains(&gpus[gpu].1),
        );
        let mut taken = BTreeSet::new();
        for ((gpu, rail, gpu_key), hca) in gpus.into_iter().zip(pairs) {
            let Some((hca, _, hca_key)) = hca.map(|hca| &hcas[hca]) else {
                self.exclude(rail, gpu_key, Exclusion::NoHcaForRail);
                continue;
            };
            self.units[rail].push(Unit {
                id: gpu_key.to_string(),
                devices: vec![gpu_key.clone(), (*hca_key).clone()],
                numa: gpu.place.numa.into_iter().chain(hca.place.numa).collect(),
            });
            taken.extend([gpu_key.clone(), (*hca_key).clone()]);
        }
        taken
    }

    /// The GPU that a rail may pair this device with later.
    fn awaited(&self, candidate: &Candidate, machine: &Machine) -> Option<PciAddress> {
        let Device::Hca(hca) = candidate.device else { return None };
        candidate.resources.iter().find(|nth| self.configs[**nth].kind == Kind::Rail)?;
        let is_named = |pci| machine.gpus.iter().any(|gpu| gpu.place.pci == pci);
        let unnamed = machine.gpu_functions.iter().filter(|function| !is_named(function.pci));
        unnamed.filter(|function| function.distance(&hca.place).is_some()).map(|function| function.pci).next()
    }

    fn finish(mut self) -> Assignment {
        for (config, units) in self.configs.iter().zip(&mut self.units) {
            units.sort_by(|a, b| a.id.cmp(&b.id));
            if config.give == Give::All && !units.is_empty() {
                *units = vec![Unit {
                    id: Unit::ALL.to_owned(),
                    devices: units.iter().flat_map(|unit| unit.devices.iter().cloned()).collect(),
                    numa: units.iter().flat_map(|unit| unit.numa.iter().copied()).collect(),
                }];
            }
        }
        let resources = self.configs.iter().cloned().zip(self.units);
        let resources = resources.map(|(config, units)| Resource { config, units }).collect();
        Assignment { resources, excluded: self.excluded }
    }
}
