//! A node with a simulated clock.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use crate::config::{HealthConfig, XidAction};
use crate::health::{Event, Health, Mark, Memory, Notice, Now, PortSeen, Reason, RecoveryAction};
use crate::machine::{Gpu, GpuFamily, Hca, Machine, MigSlice, PciAddress, PhysState, Place, Port, PortState};
use crate::resource::DeviceKey;

pub(super) fn pci(bus: u8) -> PciAddress {
    PciAddress { domain: 0, bus, device: 0, function: 0 }
}

pub(super) fn hca(bus: u8) -> DeviceKey {
    DeviceKey::Hca(pci(bus))
}

pub(super) fn gpu(n: u8) -> DeviceKey {
    DeviceKey::Gpu(format!("GPU-{n}"))
}

pub(super) fn slice(n: u8, instance: u32) -> DeviceKey {
    DeviceKey::Slice(format!("MIG-{n}-{instance}"))
}

pub(super) fn ports(up: &[bool]) -> Vec<PortSeen> {
    let port = |(at, up): (usize, &bool)| {
        let (state, phys_state) =
            if *up { (PortState::Active, PhysState::LinkUp) } else { (PortState::Down, PhysState::Polling) };
        PortSeen { number: at as u32 + 1, state, phys_state }
    };
    up.iter().enumerate().map(port).collect()
}

/// HCAs on buses 1 and 2 with two ports each; the second port is not cabled. GPU-0 to GPU-2; GPU-2 has two slices.
pub(super) fn machine() -> Machine {
    let hca = |bus: u8| Hca {
        name: format!("mlx5_{bus}"),
        place: Place { pci: pci(bus), ..Place::default() },
        ports: ports(&[true, false])
            .into_iter()
            .map(|port| Port { number: port.number, state: port.state, phys_state: port.phys_state, ..Port::default() })
            .collect(),
        ..Hca::default()
    };
    let gpu = |n: u8| Gpu {
        uuid: format!("GPU-{n}"),
        family: GpuFamily::Hopper,
        place: Place { pci: pci(0x10 + n), ..Place::default() },
        mig: (n == 2).then(|| {
            let slice = |instance: u32| MigSlice {
                uuid: format!("MIG-{n}-{instance}"),
                gpu_instance: instance + 7,
                ..MigSlice::default()
            };
            (0..2).map(slice).collect()
        }),
        ..Gpu::default()
    };
    Machine { hcas: vec![hca(1), hca(2)], gpus: (0..3).map(gpu).collect(), ..Machine::default() }
}

pub(super) struct World {
    /// The first ports of the HCAs on these buses are down.
    pub(super) down: BTreeSet<u8>,
    pub(super) health: Health,
    pub(super) start: Now,
    pub(super) now: Now,
}

impl World {
    /// A node whose devices are all in service: 5 s, 30 s, 60 s and 30 s, as by default.
    pub(super) fn new() -> Self {
        let mut world = Self::with(&Memory::default());
        assert_eq!(world.out(), []);
        for n in 0..3 {
            world.recovery(n, RecoveryAction::None);
        }
        world
    }

    pub(super) fn with(remembered: &Memory) -> Self {
        let now = Now { instant: Instant::now(), wall: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000) };
        Self::at(now, remembered)
    }

    pub(super) fn at(now: Now, remembered: &Memory) -> Self {
        let health = Health::new(HealthConfig::default(), remembered, now);
        let mut world = Self { down: BTreeSet::new(), health, start: now, now };
        world.see(Event::Machine(machine()));
        world
    }

    pub(super) fn see(&mut self, event: Event) -> Vec<Notice> {
        let notices = self.health.apply(event, self.now);
        self.check();
        notices
    }

    /// Advances the time, with a tick whenever one is due, as the state task does.
    pub(super) fn pass(&mut self, seconds: f64) {
        let end = self.now.instant + Duration::from_secs_f64(seconds);
        loop {
            let due = self.health.next().map_or(end, |due| due.min(end));
            let passed = due - self.now.instant;
            self.now = Now { instant: due, wall: self.now.wall + passed };
            self.health.tick(self.now);
            self.check();
            if due == end {
                return;
            }
        }
    }

    fn check(&self) {
        assert!(self.health.next().is_none_or(|due| due > self.now.instant), "a deadline that has passed");
    }

    /// The time of [`Health::next`], in seconds since the start.
    pub(super) fn next(&self) -> Option<f64> {
        self.health.next().map(|due| (due - self.start.instant).as_secs_f64())
    }

    /// The devices that are out of service.
    pub(super) fn out(&self) -> Vec<(DeviceKey, Reason)> {
        self.health.faults().iter().map(|(device, fault)| (device.clone(), fault.reason)).collect()
    }

    pub(super) fn is_out(&self, device: &DeviceKey) -> bool {
        self.health.faults().contains_key(device)
    }

    pub(super) fn message(&self, device: &DeviceKey) -> &str {
        &self.health.faults()[device].message
    }

    pub(super) fn ports(&mut self, bus: u8, up: &[bool]) {
        self.see(Event::Ports([(format!("mlx5_{bus}"), ports(up)), ("mlx5_9".to_owned(), ports(up))].into()));
    }

    pub(super) fn xid(&mut self, n: u8, xid: u64) -> Option<XidAction> {
        self.see(Event::Xid { gpu: format!("GPU-{n}"), slice: None, xid }).first().map(|notice| notice.action)
    }

    pub(super) fn recovery(&mut self, n: u8, action: RecoveryAction) {
        self.see(Event::Recovery { gpu: format!("GPU-{n}"), action });
    }

    pub(super) fn fails(&mut self) {
        self.see(Event::DriverFailed { why: "timed out".to_owned() });
    }

    pub(super) fn gpu_fails(&mut self, n: u8) {
        self.see(Event::GpuFailed { gpu: format!("GPU-{n}"), why: "GPU is lost".to_owned() });
    }

    /// Sends the machine without these devices.
    pub(super) fn machine_without(&mut self, devices: &[DeviceKey]) {
        let mut seen = machine();
        for hca in seen.hcas.iter_mut().filter(|hca| self.down.contains(&hca.place.pci.bus)) {
            hca.ports[0] = Port { number: 1, ..hca.ports[1].clone() };
        }
        seen.hcas.retain(|hca| !devices.contains(&DeviceKey::Hca(hca.place.pci)));
        seen.gpus.retain(|gpu| !devices.contains(&DeviceKey::Gpu(gpu.uuid.clone())));
        for slices in seen.gpus.iter_mut().filter_map(|gpu| gpu.mig.as_mut()) {
            slices.retain(|slice| !devices.contains(&DeviceKey::Slice(slice.uuid.clone())));
        }
        self.see(Event::Machine(seen));
    }

    pub(super) fn marks(&mut self, mark: Mark, devices: &[DeviceKey]) {
        self.see(Event::Marks(mark, devices.iter().map(|device| (device.clone(), "why".to_owned())).collect()));
    }
}
