//! The file: the state of the fake driver.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// The file's name in the folder of the library.
pub const FILE_NAME: &str = "machine.json";

/// The environment variable with the path of the file, if the file is not in the library's folder.
pub const FILE_VARIABLE: &str = "LARDER_FAKE_NVML";

/// Return codes of NVML's functions.
pub mod code {
    pub const SUCCESS: u32 = 0;
    pub const UNINITIALIZED: u32 = 1;
    /// A pointer, an index or a handle is wrong.
    pub const INVALID_ARGUMENT: u32 = 2;
    pub const NOT_SUPPORTED: u32 = 3;
    pub const NOT_FOUND: u32 = 6;
    pub const INSUFFICIENT_SIZE: u32 = 7;
    pub const DRIVER_NOT_LOADED: u32 = 9;
    pub const TIMEOUT: u32 = 10;
    /// The GPU fell off the bus.
    pub const GPU_IS_LOST: u32 = 15;
    pub const UNKNOWN: u32 = 999;
}

/// A machine with a driver. Without the file, the driver is not loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Machine {
    /// Every call returns this code, such as [`code::DRIVER_NOT_LOADED`].
    pub error: Option<u32>,
    /// Counts loads of the driver since boot. A session that was opened under another load gets [`code::UNKNOWN`].
    pub load: u32,
    /// Every call takes this long, or until the file changes this value.
    pub hang_ms: u64,
    /// Freeing an event set takes this long, or until the file changes this value.
    pub free_hang_ms: u64,
    /// True: each event set reports every Xid after the registration of its GPU, even if another set has reported it.
    /// False: the sets of a session report each Xid once among them, however late the GPU was registered.
    pub sets_report_independently: bool,
    /// A session that once got [`code::GPU_IS_LOST`] for a GPU never reaches that GPU again; a new session does.
    pub lost_for_good: bool,
    pub driver: String,
    /// The GPUs; the position is NVML's index.
    pub gpus: Vec<Gpu>,
    /// All Xids so far, oldest first.
    pub xids: Vec<Xid>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Gpu {
    /// The UUID, `GPU-…`.
    pub uuid: String,
    pub name: String,
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
    /// The NUMA node, if the library reports it.
    pub numa: Option<u32>,
    /// The PCI address, as sysfs writes it.
    pub pci: String,
    pub memory_bytes: u64,
    /// Major and minor version.
    pub compute_capability: (i32, i32),
    /// Whether the GPU is in MIG mode; `None` if it does not support MIG.
    pub mig: Option<bool>,
    pub slices: Vec<Slice>,
    /// The active NVLinks.
    pub links: Vec<Link>,
    /// The value of field 230; `None` if the driver does not support the field.
    pub recovery_action: Option<u32>,
    /// Whether row remapping is pending.
    pub remapping_pending: bool,
    /// Every query of this GPU returns this code, such as [`code::GPU_IS_LOST`], except for queries of its handle and
    /// UUID.
    pub error: Option<u32>,
    /// The query of its handle returns this code.
    pub handle_error: Option<u32>,
    /// Whether the GPU supports events.
    pub events: bool,
}

/// A MIG slice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Slice {
    /// The UUID, `MIG-…`.
    pub uuid: String,
    /// The profile, such as `1g.10gb`.
    pub profile: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    pub memory_bytes: u64,
    /// Every query of this slice returns this code, except for queries of its handle and UUID.
    #[serde(default)]
    pub error: Option<u32>,
}

/// The other end of an NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Link {
    /// The GPU with this PCI address.
    Gpu(String),
    /// An NVSwitch.
    Switch,
}

/// An Xid. Each session that was opened before the Xid reports it once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Xid {
    /// The UUID of its GPU.
    pub gpu: String,
    pub xid: u64,
    /// The GPU instance that it concerns.
    #[serde(default)]
    pub gpu_instance: Option<u32>,
    /// The compute instance that it concerns.
    #[serde(default)]
    pub compute_instance: Option<u32>,
}

impl Default for Machine {
    fn default() -> Self {
        let driver = "580.95.05".to_owned();
        Self {
            error: None,
            load: 1,
            hang_ms: 0,
            free_hang_ms: 0,
            sets_report_independently: false,
            lost_for_good: false,
            driver,
            gpus: Vec::new(),
            xids: Vec::new(),
        }
    }
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            uuid: String::new(),
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            minor: 0,
            numa: None,
            pci: "0000:00:00.0".to_owned(),
            memory_bytes: 80 << 30,
            compute_capability: (9, 0),
            mig: Some(false),
            slices: Vec::new(),
            links: Vec::new(),
            recovery_action: Some(0),
            remapping_pending: false,
            error: None,
            handle_error: None,
            events: true,
        }
    }
}

impl Machine {
    /// `count` H100s, half of them on each of two NUMA nodes, each with 18 links to the switches.
    pub fn h100s(count: u32) -> Self {
        let gpu = |index: u32| Gpu {
            uuid: format!("GPU-00000000-0000-0000-0000-{index:012}"),
            minor: index,
            numa: Some(index * 2 / count),
            pci: format!("0000:{:02x}:00.0", 0x13 + 0x10 * index),
            links: vec![Link::Switch; 18],
            ..Gpu::default()
        };
        Self { gpus: (0..count).map(gpu).collect(), ..Self::default() }
    }

    /// Replaces the file atomically, so that no call reads a partial one.
    pub fn write(&self, file: &Path) -> std::io::Result<()> {
        let next = file.with_extension("next");
        std::fs::write(&next, serde_json::to_vec_pretty(self)?)?;
        std::fs::rename(&next, file)
    }
}
