//! The inventory of intact, changing and broken fake machines.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod broken;
mod machines;
mod rails;
mod watching;

use larder_devices::inventory::{self, Roots};
use larder_devices::machine::{Gpu, Hca, Machine, Place, RdmaMode};
use larder_testkit::machine::{FakeMachine, GpuPlan};

fn roots(machine: &FakeMachine) -> Roots {
    Roots { sysfs: machine.sysfs(), dev: machine.dev() }
}

/// A GPU as NVML reports it: of its attach point, NVML reports only the PCI address.
fn from_nvml(gpu: &GpuPlan) -> Gpu {
    Gpu {
        uuid: gpu.uuid.clone(),
        model: gpu.model.clone(),
        minor: gpu.minor,
        memory_bytes: gpu.memory_bytes,
        place: Place { pci: gpu.slot.pci.parse().unwrap(), ..Place::default() },
        ..Gpu::default()
    }
}

/// Reads the machine, with unsorted GPUs, as on a kernel without RDMA.
fn read(machine: &FakeMachine) -> Machine {
    let gpus: Vec<Gpu> = machine.plan().gpus.iter().rev().map(from_nvml).collect();
    inventory::read_with(&roots(machine), &gpus, None, Ok(RdmaMode::None))
}

/// The warnings: the path below the machine's folder, and the reason.
fn warnings(machine: &FakeMachine, read: &Machine) -> Vec<(String, String)> {
    let sysfs = machine.sysfs();
    let root = format!("{}/", sysfs.parent().unwrap().display());
    read.warnings.iter().map(|odd| (odd.at.replace(&root, ""), odd.why.clone())).collect()
}

fn hca<'a>(machine: &'a Machine, name: &str) -> &'a Hca {
    machine.hcas.iter().find(|hca| hca.name == name).unwrap()
}
