//! The GPUs and HCAs of a node and their locations: plain data, which `inventory` reads and everything else uses.
//!
//! Invariant: the devices are sorted (GPUs and HCAs by PCI address, ports and GIDs by number), so equal machines are equal values.

mod gpu;
mod hca;
mod place;

pub use gpu::{Gpu, GpuFamily, MigSlice};
pub use hca::{CharDevice, Gid, GidType, Hca, LinkLayer, PhysState, Port, PortState, RdmaMode};
pub use place::{PciAddress, Place};

/// All known devices of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    pub gpus: Vec<Gpu>,
    pub hcas: Vec<Hca>,
    /// The version of the GPUs' driver, if there is one.
    pub gpu_driver: Option<String>,
    /// What NVML failed to report about GPUs and slices.
    pub gpu_warnings: Vec<Warning>,
    /// The locations of NVIDIA GPUs in sysfs that no other driver has bound. NVML lists them late, or never if they are dead.
    pub gpu_functions: Vec<Place>,
    /// How HCAs relate to network namespaces.
    pub rdma_mode: RdmaMode,
    /// Entries of sysfs that are not as expected, in the order of reading.
    pub warnings: Vec<Warning>,
}

/// Something in sysfs or NVML that is not as expected. It costs a device one attribute, or the node one device; without NVML, all
/// GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file or the NVML call.
    pub at: String,
    pub why: String,
}
