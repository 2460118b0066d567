//! GPUs and their slices.

use std::collections::BTreeMap;

use serde::Serialize;

use super::place::Place;

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// NVML's UUID, such as `GPU-8f3…`, which is the same after every reboot.
    pub uuid: String,
    /// The model, as NVML names it.
    pub model: String,
    /// What Xids mean depends on it.
    pub family: GpuFamily,
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Where it is.
    pub place: Place,
    /// NVLinks to other GPUs, by their UUIDs; those to a switch count for every GPU that has links to one.
    pub nvlinks: BTreeMap<String, u32>,
    /// True if the GPU is cut into slices and cannot be given as a whole.
    pub mig: bool,
    /// Its slices.
    pub slices: Vec<MigSlice>,
}

/// A generation of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum GpuFamily {
    /// A100 and its relatives.
    Ampere,
    /// L4, L40 and their relatives.
    Ada,
    /// H100, H200 and their relatives.
    Hopper,
    /// B200, GB200 and their relatives.
    Blackwell,
    /// Any other.
    #[default]
    Other,
}

/// A MIG slice (a compute instance).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MigSlice {
    /// NVML's UUID, such as `MIG-…`.
    pub uuid: String,
    /// The profile, such as `1g.10gb`.
    pub profile: String,
    /// The number of its GPU instance.
    pub gpu_instance: u32,
    /// The number of its compute instance.
    pub compute_instance: u32,
    /// Its memory.
    pub memory_bytes: u64,
}
