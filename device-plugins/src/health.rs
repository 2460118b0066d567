//! Decides which devices are in service: a state machine without I/O and without a clock of its own. Callers pass the
//! time in.
//!
//! [`Health`] applies [`Event`]s and holds the resulting [`Faults`]. [`Health::next`] returns the next time at which
//! the faults change without an event. The parts: `hca` (ports, with hysteresis), `gpu` (Xids and recovery), `silence`
//! (a driver that does not answer), `roster` (devices that were removed), [`xid`] (the table), [`capabilities`] (limits
//! that cannot be enforced).
//!
//! Invariant: after [`Health::apply`], every device of [`Health::machine`] to which a condition applies is in
//! [`Health::faults`], and no other.

pub mod capabilities;
pub mod event;
mod fault;
mod gpu;
mod hca;
mod memory;
mod roster;
mod silence;
pub mod xid;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use crate::config::{HealthConfig, XidAction};
use crate::machine::{Gpu, Hca, Machine, MigSlice, PciAddress};
use crate::resource::DeviceKey;
pub use event::{Event, Mark, Notice, Now, PortSeen, RecoveryAction};
pub use fault::{Fault, Faults, Reason, fault_of};
use gpu::{GpuFault, GpuHealth};
use hca::HcaHealth;
pub use memory::{History, Memory, Remembered};
use silence::Silence;

/// The health of all devices of a node.
#[derive(Clone, Debug)]
pub struct Health {
    config: HealthConfig,
    /// The machine as last read, without removed devices.
    told: Arc<Machine>,
    machine: Arc<Machine>,
    /// The devices of `machine` that were removed, and when.
    gone: BTreeMap<DeviceKey, SystemTime>,
    hcas: BTreeMap<PciAddress, HcaHealth>,
    /// Keyed by UUID. Includes GPUs that no inventory has named.
    gpus: BTreeMap<String, GpuHealth>,
    driver: Silence,
    marks: BTreeMap<Mark, BTreeMap<DeviceKey, (String, SystemTime)>>,
    faults: Arc<Faults>,
}

impl Health {
    /// Starts without devices, but with the GPU faults that an earlier process stored.
    pub fn new(config: HealthConfig, remembered: &Memory, now: Now) -> Self {
        let mut faults: BTreeMap<&String, GpuFault> =
            remembered.faults.iter().filter_map(|one| Some((&one.gpu, one.fault(now)?))).collect();
        let mut begun: BTreeMap<&String, Vec<SystemTime>> =
            remembered.history.iter().map(|one| (&one.gpu, one.begun())).collect();
        let uuids: BTreeSet<&String> = faults.keys().chain(begun.keys()).copied().collect();
        let gpus = uuids.into_iter().map(|uuid| {
            let gpu = GpuHealth::remembered(faults.remove(uuid), begun.remove(uuid).unwrap_or_default());
            (uuid.clone(), gpu)
        });
        Self {
            config,
            told: Arc::default(),
            machine: Arc::default(),
            gone: BTreeMap::new(),
            hcas: BTreeMap::new(),
            gpus: gpus.collect(),
            driver: Silence::default(),
            marks: BTreeMap::new(),
            faults: Arc::default(),
        }
    }

    /// Applies an event. Returns the notices to report.
    pub fn apply(&mut self, event: Event, now: Now) -> Vec<Notice> {
        // Apply expired deadlines first: a port that was down for too long must count as down, even if this event
        // reports it up.
        self.settle(now);
        let notices = self.take(event, now);
        self.settle(now);
        self.faults = self.all_faults().into();
        notices
    }

    /// Applies the deadlines that have expired by now.
    pub fn tick(&mut self, now: Now) {
        self.settle(now);
        self.faults = self.all_faults().into();
    }

    /// Applies new settings, also to intervals that have already begun.
    pub fn configure(&mut self, config: HealthConfig, now: Now) {
        self.settle(now);
        self.config = config;
        self.tick(now);
    }

    /// When the faults next change without an event. Always later than the time of the last call.
    pub fn next(&self) -> Option<Instant> {
        let answers = self.driver.answers();
        let hcas = self.hcas.values().filter_map(|hca| hca.next(&self.config));
        let gpus = self.gpus.values().filter_map(|gpu| gpu.next(&self.config, answers));
        hcas.chain(gpus).chain(self.driver.next(self.config.nvml_unknown)).min()
    }

    /// The devices that are out of service.
    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// All devices that were seen since the process started. A removed device stays as it was last seen, with a fault.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// The GPU faults to store for the next process.
    pub fn remember(&self) -> Memory {
        let faults = self.gpus.iter().filter_map(|(uuid, gpu)| Some(Remembered::new(uuid, gpu.standing()?)));
        let history = self.gpus.iter().filter_map(|(uuid, gpu)| History::new(uuid, gpu.begun()));
        Memory { faults: faults.collect(), history: history.collect() }
    }

    fn take(&mut self, event: Event, now: Now) -> Vec<Notice> {
        match event {
            Event::Machine(machine) => self.take_machine(machine, now),
            Event::Ports(ports) => {
                let there = self.machine.hcas.iter().filter_map(|hca| Some((ports.get(&hca.name)?, hca.place.pci)));
                for (ports, pci) in there {
                    if let Some(hca) = self.hcas.get_mut(&pci) {
                        hca.see(ports.clone(), now);
                    }
                }
            }
            Event::Xid { gpu, slice, xid } => return self.take_xid(&gpu, slice, xid, now),
            Event::Recovery { gpu, action } => self.gpus.entry(gpu).or_default().answer(action, now),
            Event::DriverAnswered if self.driver.answers() => {}
            Event::DriverAnswered => {
                self.driver.answer();
                // Only now is it known that GPUs missing from the last inventory were removed.
                self.count(now);
            }
            Event::DriverFailed { why } => self.driver.fail(why, now),
            Event::GpuFailed { gpu, why } => self.gpus.entry(gpu).or_default().silence.fail(why, now),
            Event::Marks(mark, devices) => {
                let before = self.marks.remove(&mark).unwrap_or_default();
                let since = |device: &DeviceKey| before.get(device).map_or(now.wall, |(_, since)| *since);
                let marked = devices.into_iter().map(|(device, why)| {
                    let since = since(&device);
                    (device, (why, since))
                });
                self.marks.insert(mark, marked.collect());
            }
        }
        Vec::new()
    }

    fn take_machine(&mut self, told: Machine, now: Now) {
        self.told = Arc::new(told);
        self.count(now);
        for hca in &self.told.hcas {
            if let Some(health) = self.hcas.get_mut(&hca.place.pci) {
                health.see(ports(hca), now);
            }
        }
    }

    /// Determines which devices are present, and which were removed.
    fn count(&mut self, now: Now) {
        let mut seen = Machine::clone(&self.told);
        if !self.driver.answers() {
            // While NVML does not answer, a missing GPU does not mean that it was removed.
            let named: BTreeSet<String> = seen.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
            let is_there = |gpu: &&Gpu| !self.gone.contains_key(&DeviceKey::Gpu(gpu.uuid.clone()));
            let others = self.machine.gpus.iter().filter(|gpu| !named.contains(&gpu.uuid));
            seen.gpus.extend(others.filter(is_there).cloned());
        }
        let gone = roster::complete(&mut seen, &self.machine);
        self.gone = gone
            .into_iter()
            .map(|device| {
                let since = self.gone.get(&device).copied().unwrap_or(now.wall);
                (device, since)
            })
            .collect();

        let is_there = |device: &DeviceKey| !self.gone.contains_key(device);
        let hcas = seen.hcas.iter().filter(|hca| is_there(&DeviceKey::Hca(hca.place.pci)));
        let hcas: BTreeMap<PciAddress, &Hca> = hcas.map(|hca| (hca.place.pci, hca)).collect();
        self.hcas.retain(|pci, _| hcas.contains_key(pci));
        for (pci, hca) in hcas {
            self.hcas.entry(pci).or_insert_with(|| HcaHealth::new(ports(hca), now));
        }
        let gpus: BTreeSet<&String> =
            seen.gpus.iter().map(|gpu| &gpu.uuid).filter(|uuid| is_there(&DeviceKey::Gpu((*uuid).clone()))).collect();
        for uuid in &gpus {
            self.gpus.entry((*uuid).clone()).or_default();
        }
        for (uuid, gpu) in &mut self.gpus {
            gpu.there(gpus.contains(uuid));
        }
        if *self.machine != seen {
            self.machine = Arc::new(seen);
        }
    }

    fn take_xid(&mut self, uuid: &str, slice: Option<(u32, Option<u32>)>, xid: u64, now: Now) -> Vec<Notice> {
        let gpu: Option<&Gpu> = self.machine.gpus.iter().find(|gpu| gpu.uuid == uuid);
        let family = gpu.map(|gpu| gpu.family).unwrap_or_default();
        let (meaning, action) = xid::look_up(xid, family, &self.config.xids);
        let is_workers = matches!(action, XidAction::Watch | XidAction::RestartWorker);
        let is_meant = |one: &&MigSlice| {
            slice.is_some_and(|(gi, ci)| gi == one.gpu_instance && ci.is_none_or(|ci| ci == one.compute_instance))
        };
        let slices = gpu.into_iter().filter(|_| is_workers).flat_map(|gpu| gpu.slices()).filter(is_meant);
        let mut devices: Vec<DeviceKey> = slices.map(|slice| DeviceKey::Slice(slice.uuid.clone())).collect();
        if devices.is_empty() {
            devices.push(DeviceKey::Gpu(uuid.to_owned()));
        }
        match action {
            XidAction::Ignore => return Vec::new(),
            XidAction::Watch | XidAction::RestartWorker => {}
            XidAction::DrainGpu | XidAction::DrainNode => {
                let what = format!("Xid {xid}: {meaning}");
                self.gpus.entry(uuid.to_owned()).or_default().drain(action, what, now);
            }
        }
        devices.into_iter().map(|device| Notice { device, xid, meaning, action }).collect()
    }

    fn settle(&mut self, now: Now) {
        self.driver.settle(self.config.nvml_unknown, now);
        let answers = self.driver.answers();
        self.hcas.values_mut().for_each(|hca| hca.settle(&self.config, now));
        self.gpus.values_mut().for_each(|gpu| gpu.settle(&self.config, answers, now));
    }

    fn all_faults(&self) -> Faults {
        let mut faults = Faults::new();
        let node = self.node_fault();
        for gpu in &self.machine.gpus {
            let key = DeviceKey::Gpu(gpu.uuid.clone());
            let health = self.gpus.get(&gpu.uuid);
            let own = health.and_then(|health| health.fault(&self.config));
            let fault = self.gone(&key, "NVML no longer names it").or(own).or_else(|| node.clone());
            let fault = fault.or_else(|| self.driver.fault("NVML does not answer"));
            for device in gpu.slices().iter().map(|slice| DeviceKey::Slice(slice.uuid.clone())).chain([key]) {
                let fault = fault.clone().or_else(|| self.mark(&device));
                faults.extend(fault.map(|fault| (device, fault)));
            }
        }
        for hca in &self.machine.hcas {
            let key = DeviceKey::Hca(hca.place.pci);
            let ports = self.hcas.get(&hca.place.pci).and_then(|health| health.fault(&self.config));
            let fault = self.gone(&key, "sysfs no longer lists it").or(ports).or_else(|| self.mark(&key));
            faults.extend(fault.map(|fault| (key, fault)));
        }
        faults
    }

    fn gone(&self, device: &DeviceKey, message: &str) -> Option<Fault> {
        let since = *self.gone.get(device)?;
        let recovery = "it is present again".to_owned();
        Some(Fault { reason: Reason::Gone, message: message.to_owned(), since, recovery })
    }

    /// A GPU fault that takes all GPUs of the node out of service.
    fn node_fault(&self) -> Option<Fault> {
        let standing = self.gpus.iter().filter_map(|(uuid, gpu)| Some((uuid, gpu, gpu.standing()?)));
        let (uuid, gpu, fault) = standing
            .filter(|(.., fault)| fault.action == XidAction::DrainNode)
            .min_by_key(|(.., fault)| fault.since)?;
        Some(Fault {
            reason: Reason::GpuFault,
            message: format!("the node must be rebooted: {} on {uuid}", fault.what),
            since: fault.since,
            recovery: gpu.node_recovery(&self.config, uuid),
        })
    }

    fn mark(&self, device: &DeviceKey) -> Option<Fault> {
        let (mark, (message, since)) =
            self.marks.iter().find_map(|(mark, devices)| Some((mark, devices.get(device)?)))?;
        let (reason, recovery) = match mark {
            Mark::HeldElsewhere => (Reason::HeldElsewhere, "the pod or the kubelet releases it"),
            Mark::LimitsMissing => (Reason::LimitsMissing, "the node can enforce the limits"),
        };
        Some(Fault { reason, message: message.clone(), since: *since, recovery: recovery.to_owned() })
    }
}

fn ports(hca: &Hca) -> Vec<PortSeen> {
    hca.ports.iter().map(PortSeen::from).collect()
}
