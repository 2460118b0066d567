//! The GPUs and HCAs of a node and their places in it: plain data, which `inventory` reads and everything else uses.
//!
//! Invariant: the devices are sorted (GPUs and HCAs by PCI address, ports and GIDs by number), so equal machines are equal values.

mod gpu;
mod hca;
mod place;

pub use gpu::{Gpu, GpuFamily, MigSlice};
pub use hca::{CharDevice, Gid, GidType, Hca, LinkLayer, PhysState, Port, PortState, RdmaMode};
pub use place::{PciAddress, Place};

use serde::Serialize;

/// All devices of a node that the program knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// By PCI address.
    pub gpus: Vec<Gpu>,
    /// By PCI address.
    pub hcas: Vec<Hca>,
    /// The version of the GPUs' driver, if there is one.
    pub gpu_driver: Option<String>,
    /// What NVML could not tell of GPUs and slices.
    pub gpu_oddities: Vec<Oddity>,
    /// Where sysfs has GPUs of NVIDIA that no other driver serves. NVML names them late, or never if they are dead.
    pub gpu_functions: Vec<Place>,
    /// How HCAs belong to network namespaces.
    pub rdma_mode: RdmaMode,
    /// Entries of sysfs that could not be read as they should be, in the order in which they were met.
    pub oddities: Vec<Oddity>,
}

/// Something in sysfs or NVML that is not as it should be. It costs the device an attribute, or one device; without NVML all GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Oddity {
    /// The file or the call.
    pub at: String,
    /// What is wrong with it.
    pub why: String,
}
