//! GPUs and their slices.

use std::collections::BTreeMap;

use super::place::Place;

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// NVML's UUID, such as `GPU-8f3…`, which is the same after every reboot.
    pub uuid: String,
    /// The model, as NVML names it.
    pub model: String,
    /// The meaning of some Xids depends on it.
    pub family: GpuFamily,
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
    /// Its total memory.
    pub memory_bytes: u64,
    /// Its location.
    pub place: Place,
    /// The number of NVLinks to each other GPU, by UUID. Links to an NVSwitch count for every GPU that also has some.
    pub nvlinks: BTreeMap<String, u32>,
    /// Its slices in MIG mode, in which no container can have the whole GPU; `None` outside of MIG mode.
    pub mig: Option<Vec<MigSlice>>,
}

impl Gpu {
    /// Its MIG slices; none outside of MIG mode.
    pub fn slices(&self) -> &[MigSlice] {
        self.mig.as_deref().unwrap_or_default()
    }
}

/// A generation of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuFamily {
    Ampere,
    Ada,
    Hopper,
    Blackwell,
    #[default]
    Other,
}

impl GpuFamily {
    /// The family in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ampere => "ampere",
            Self::Ada => "ada",
            Self::Hopper => "hopper",
            Self::Blackwell => "blackwell",
            Self::Other => "other",
        }
    }
}

/// A MIG slice (a compute instance).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MigSlice {
    /// NVML's UUID, such as `MIG-…`.
    pub uuid: String,
    /// The profile, such as `1g.10gb`.
    pub profile: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    pub memory_bytes: u64,
}
