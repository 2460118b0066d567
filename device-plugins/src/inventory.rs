//! The devices of a node, read from sysfs: its HCAs with their ports, and the attach points of all devices.
//!
//! The parts: [`Roots`] holds the paths of a node's `/sys` and `/dev`. `hca` reads the class of HCAs, and `pci` finds
//! the attach point of a PCI function. Both use `folder`, which opens files safely, and `attribute`, which decodes
//! their text. [`ports`] polls the port states. [`netlink`] asks the kernel for the mode of RDMA network namespaces.
//! Invariant: a broken entry loses one device or one attribute, and is reported as a warning. No file content causes a
//! panic or an unbounded wait. All functions block, so they must not run on the async runtime's threads.

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

/// The GPUs that NVML reported, with their attach points from sysfs. Of each input's place, only the PCI address is
/// used. A GPU that sysfs does not list keeps only its address. No device firmware is queried.
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

/// Reads the whole machine: its HCAs, and its [GPUs](gpus()).
pub fn read(roots: &Roots, gpus: &[Gpu], gpu_driver: Option<String>) -> Machine {
    read_with(roots, gpus, gpu_driver, netlink::mode())
}

/// As [`read`], but a pure function of the files and of the answers of NVML and the kernel's netlink.
pub fn read_with(roots: &Roots, gpus: &[Gpu], gpu_driver: Option<String>, kernel: io::Result<RdmaMode>) -> Machine {
    let mut warnings = Warnings::default();
    let hcas = hca::read(roots, &mut warnings);
    let gpus = placed(roots, gpus, &mut warnings);
    let rdma_mode = rdma_mode(roots, kernel, !hcas.is_empty(), &mut warnings);
    let gpu_functions = pci::nvidia_gpus(roots);
    let (gpu_warnings, warnings) = (Vec::new(), warnings.into_vec());
    Machine { gpus, hcas, gpu_driver, gpu_warnings, gpu_functions, rdma_mode, warnings }
}

/// The mode that the kernel reports over netlink. If netlink does not report it, the module parameter `netns_mode`
/// decides, which follows the mode. Kernels without that parameter support only `Shared`.
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
