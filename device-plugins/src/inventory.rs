//! What a node has, read from sysfs: its HCAs with their ports, and the places of all devices.
//!
//! The cast: [`Roots`] says where a node's files are; `hca` reads the class of HCAs, `pci` finds the place of a function,
//! and both do it through `folder`, which is wary of what it opens, and `attribute`, which decodes; [`ports`] rereads the states
//! of ports; [`netlink`] asks the kernel for the mode of network namespaces.
//! The invariant: a broken entry costs one device or one attribute of it, and is reported as a warning. No content is a panic or
//! a wait. Everything here blocks: it is not for the runtime's threads.

mod attribute;
mod folder;
mod hca;
pub mod netlink;
mod pci;
pub mod ports;
mod roots;

pub use roots::Roots;

use std::io;

use folder::{Folder, Warnings};

use crate::machine::{Gpu, Machine, RdmaMode};

/// The GPUs that NVML has told of, of whose places the addresses count alone. Of one that sysfs does not know, the address is all
/// that is told. No device's firmware is asked.
pub fn gpus(roots: &Roots, gpus: &[Gpu]) -> Vec<Gpu> {
    placed(roots, gpus, &mut Warnings::default())
}

fn placed(roots: &Roots, gpus: &[Gpu], warnings: &mut Warnings) -> Vec<Gpu> {
    let mut gpus = gpus.to_vec();
    for gpu in &mut gpus {
        gpu.place = pci::place(roots, gpu.place.pci, warnings);
    }
    gpus.sort_by(|a, b| (a.place.pci, &a.uuid).cmp(&(b.place.pci, &b.uuid)));
    gpus
}

/// The machine: its HCAs, and its [GPUs](gpus()).
pub fn read(roots: &Roots, gpus: &[Gpu], gpu_driver: Option<String>) -> Machine {
    read_with(roots, gpus, gpu_driver, netlink::mode())
}

/// The same, a pure function of the files and of what NVML and the kernel's netlink have answered.
pub fn read_with(roots: &Roots, gpus: &[Gpu], gpu_driver: Option<String>, kernel: io::Result<RdmaMode>) -> Machine {
    let mut warnings = Warnings::default();
    let hcas = hca::read(roots, &mut warnings);
    let gpus = placed(roots, gpus, &mut warnings);
    let rdma_mode = rdma_mode(roots, kernel, !hcas.is_empty(), &mut warnings);
    let gpu_functions = pci::nvidia_gpus(roots);
    let (gpu_warnings, warnings) = (Vec::new(), warnings.into_vec());
    Machine { gpus, hcas, gpu_driver, gpu_warnings, gpu_functions, rdma_mode, warnings }
}

/// The mode that the kernel reports by netlink. Where it does not, the setting of its module counts, which follows the mode; and
/// kernels without that setting know no other mode than `Shared`.
fn rdma_mode(roots: &Roots, kernel: io::Result<RdmaMode>, has_hcas: bool, warnings: &mut Warnings) -> RdmaMode {
    match kernel {
        Ok(mode @ (RdmaMode::Shared | RdmaMode::Exclusive)) => return mode,
        Ok(RdmaMode::None) => {}
        Err(error) => warnings.add("netlink".as_ref(), format!("the kernel does not report its RDMA mode: {error}")),
    }
    let setting = Folder::open(roots.sysfs.join("module/ib_core/parameters")).ok();
    let is_shared = setting.and_then(|setting| setting.optional("netns_mode", attribute::flag, warnings));
    match is_shared {
        Some(true) => RdmaMode::Shared,
        Some(false) => RdmaMode::Exclusive,
        None if has_hcas => RdmaMode::Shared,
        None => RdmaMode::None,
    }
}
