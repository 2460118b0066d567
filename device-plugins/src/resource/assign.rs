//! Gives each device to one resource.

use std::collections::BTreeSet;

use super::device::{Candidate, Device, candidates};
use super::rail::pair;
use super::units::{DeviceKey, Resource, Unit, Withheld};
use crate::config::{Config, Give, Kind, ResourceConfig};
use crate::machine::{Machine, PciAddress};

/// Which devices the resources of a node offer.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// In the order of the configuration.
    pub resources: Vec<Resource>,
    /// What they select and do not offer.
    pub withheld: Vec<Withheld>,
}

/// Gives the devices of a machine to the resources of a configuration.
///
/// Rails come first, and a device in a rail is in no other resource. Of several resources that select a device, the first one of the
/// configuration has it. A physical function gives way to its virtual functions if a resource selects any of them, as both share a
/// port; only `give: all` hands them out together. An HCA that a rail selects is withheld while there is a GPU on its PCIe root that
/// NVML has not named: were it offered alone, two containers would have it once the GPU is there.
pub fn assign(machine: &Machine, config: &Config) -> Assignment {
    let configs = &config.resources;
    let mut desk = Desk { configs, units: vec![Vec::new(); configs.len()], withheld: Vec::new() };
    let candidates = candidates(machine, configs);
    let candidates = desk.leave_out(candidates);
    let in_rails = desk.make_rails(&candidates);
    for candidate in candidates.iter().filter(|candidate| !in_rails.contains(&candidate.key)) {
        let mut resources = candidate.resources.iter().filter(|nth| configs[**nth].kind != Kind::Rail);
        let Some(first) = resources.next() else { continue };
        if let Some(gpu) = desk.awaited(candidate, machine) {
            let why = format!("a rail may need it for the GPU at {gpu}, which NVML does not name (yet)");
            std::iter::once(first).chain(resources).for_each(|nth| desk.withhold(*nth, &candidate.key, &why));
            continue;
        }
        let unit = Unit {
            id: candidate.key.to_string(),
            devices: vec![candidate.key.clone()],
            numa: candidate.device.numa().into_iter().collect(),
        };
        desk.units[*first].push(unit);
        for nth in resources {
            let (name, line) = (&configs[*first].name, configs[*first].line);
            desk.withhold(*nth, &candidate.key, &format!("{name} (line {line}) selects it too and comes first"));
        }
    }
    desk.close()
}

struct Desk<'c> {
    configs: &'c [ResourceConfig],
    /// By resource.
    units: Vec<Vec<Unit>>,
    withheld: Vec<Withheld>,
}

impl Desk<'_> {
    fn withhold(&mut self, resource: usize, device: &DeviceKey, why: &str) {
        let why = format!("{} does not offer it: {why}", self.configs[resource].name);
        self.withheld.push(Withheld { device: device.clone(), why });
    }

    /// Leaves out what no container can have, and physical functions whose virtual ones are offered.
    fn leave_out<'m>(&mut self, mut candidates: Vec<Candidate<'m>>) -> Vec<Candidate<'m>> {
        for candidate in &candidates {
            let Some(obstacle) = &candidate.obstacle else { continue };
            for nth in &candidate.resources {
                self.withhold(*nth, &candidate.key, obstacle);
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
                    let name = &configs[*other].name;
                    let why = format!("{name} selects virtual functions of it; choose one or the other by `deviceIDs`");
                    self.withhold(*nth, key, &why);
                }
                other.is_none()
            });
        }
        candidates
    }

    /// Makes the units of rails, and returns the devices in them.
    fn make_rails(&mut self, candidates: &[Candidate]) -> BTreeSet<DeviceKey> {
        // A GPU and its rail: the first one that selects it.
        let (mut gpus, mut hcas) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let mut rails = candidate.resources.iter().copied().filter(|nth| self.configs[*nth].kind == Kind::Rail);
            match candidate.device {
                Device::Gpu(gpu) => {
                    let Some(first) = rails.next() else { continue };
                    gpus.push((gpu, first, &candidate.key));
                    for nth in rails {
                        let (name, line) = (&self.configs[first].name, self.configs[first].line);
                        self.withhold(
                            nth,
                            &candidate.key,
                            &format!("{name} (line {line}) selects it too and comes first"),
                        );
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
                let why = "no HCA that it selects is left on the GPU's PCIe switch or root";
                self.withhold(rail, gpu_key, why);
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

    /// The GPU for which a rail may need this device later.
    fn awaited(&self, candidate: &Candidate, machine: &Machine) -> Option<PciAddress> {
        let Device::Hca(hca) = candidate.device else { return None };
        candidate.resources.iter().find(|nth| self.configs[**nth].kind == Kind::Rail)?;
        let is_named = |pci| machine.gpus.iter().any(|gpu| gpu.place.pci == pci);
        let unnamed = machine.gpu_functions.iter().filter(|function| !is_named(function.pci));
        unnamed.filter(|function| function.distance(&hca.place).is_some()).map(|function| function.pci).next()
    }

    fn close(mut self) -> Assignment {
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
        Assignment { resources, withheld: self.withheld }
    }
}
