//! What sysfs shows, looked at again and again. A look blocks for as long as the firmware of the devices takes.

use std::collections::BTreeMap;

use crate::health::PortSeen;
use crate::inventory::Roots;
use crate::inventory::ports::PortWatch;
use crate::machine::{Gpu, Machine};

/// Reads all of sysfs.
pub(super) type Read = fn(&Roots, &[Gpu], Option<String>) -> Machine;

/// What is remembered from look to look.
pub(super) struct Sysfs {
    roots: Roots,
    read: Read,
    ports: PortWatch,
}

/// What was seen.
pub(super) struct Look {
    /// Everything, if it was read.
    pub(super) machine: Option<Machine>,
    /// The ports of each HCA; none if nothing but them was read, and nothing changed.
    pub(super) ports: BTreeMap<String, Vec<PortSeen>>,
    /// True if HCAs came or went or ports are in other states than at the look before.
    pub(super) is_changed: bool,
}

impl Sysfs {
    pub(super) fn new(roots: Roots, read: Read) -> Self {
        Self { ports: PortWatch::new(&roots), roots, read }
    }

    /// Reads the ports, and everything if that is wanted or HCAs came or went.
    pub(super) fn look(&mut self, gpus: &[Gpu], driver: Option<String>, everything: bool) -> Look {
        if everything {
            self.ports.relist();
        }
        let changes = self.ports.poll();
        let everything = everything || !changes.vanished.is_empty() || !changes.appeared.is_empty();
        let machine = everything.then(|| (self.read)(&self.roots, gpus, driver));
        let is_changed = !changes.is_empty();
        let ports = if is_changed || everything { self.ports_seen() } else { BTreeMap::new() };
        Look { machine, ports, is_changed }
    }

    fn ports_seen(&self) -> BTreeMap<String, Vec<PortSeen>> {
        let mut ports: BTreeMap<String, Vec<PortSeen>> = BTreeMap::new();
        for port in self.ports.readings() {
            let seen = PortSeen { number: port.port, state: port.state, phys_state: port.phys_state };
            ports.entry(port.hca.clone()).or_default().push(seen);
        }
        ports
    }
}
