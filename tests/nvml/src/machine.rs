//! The file: what the made-up driver knows.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// The file's name in the folder of the library.
pub const FILE_NAME: &str = "machine.json";

/// Names the file if it is elsewhere.
pub const FILE_VARIABLE: &str = "LARDER_MADE_UP_NVML";

/// Answers of NVML's functions.
pub mod code {
    /// It was done.
    pub const SUCCESS: u32 = 0;
    /// There is no session.
    pub const UNINITIALIZED: u32 = 1;
    /// A pointer, an index or a handle is wrong.
    pub const INVALID_ARGUMENT: u32 = 2;
    /// The GPU or the driver does not have that.
    pub const NOT_SUPPORTED: u32 = 3;
    /// Nothing of that name or number is there.
    pub const NOT_FOUND: u32 = 6;
    /// The buffer is too small.
    pub const INSUFFICIENT_SIZE: u32 = 7;
    /// The driver is not loaded.
    pub const DRIVER_NOT_LOADED: u32 = 9;
    /// No event came in time.
    pub const TIMEOUT: u32 = 10;
    /// The GPU fell off the bus.
    pub const GPU_IS_LOST: u32 = 15;
    /// Anything else.
    pub const UNKNOWN: u32 = 999;
}

/// A machine with a driver. Without the file, the driver is not loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Machine {
    /// The answer of every call, such as [`code::DRIVER_NOT_LOADED`].
    pub error: Option<u32>,
    /// The driver's number since the machine was started. A session that was begun with another one gets [`code::UNKNOWN`].
    pub load: u32,
    /// Every call takes so long, or until the file says otherwise.
    pub hang_ms: u64,
    /// To free an event set takes so long, or until the file says otherwise.
    pub free_hang_ms: u64,
    /// An event set tells the Xids that come after its GPU was registered with it, and what one set has told, another tells, too.
    /// Else the sets of a session tell each Xid once, whenever their GPUs were registered.
    pub sets_hear_apart: bool,
    /// A session that has once met a GPU with [`code::GPU_IS_LOST`] never sees it again; a new one does.
    pub lost_for_good: bool,
    /// The driver's version.
    pub driver: String,
    /// By index.
    pub gpus: Vec<Gpu>,
    /// All that has happened, in this order.
    pub xids: Vec<Xid>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Gpu {
    /// `GPU-…`.
    pub uuid: String,
    /// The model.
    pub name: String,
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
    /// The NUMA node, if the library tells it.
    pub numa: Option<u32>,
    /// The PCI address, as sysfs writes it.
    pub pci: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Major and minor version.
    pub compute_capability: (i32, i32),
    /// True in MIG mode; `None` if the GPU knows no MIG.
    pub mig: Option<bool>,
    /// Its slices.
    pub slices: Vec<Slice>,
    /// Its active NVLinks.
    pub links: Vec<Link>,
    /// Field 230; `None` if the driver does not know it.
    pub recovery_action: Option<u32>,
    /// Rows of memory wait to be remapped.
    pub remapping_pending: bool,
    /// The answer of every query of this GPU but those of its handle and its UUID, such as [`code::GPU_IS_LOST`].
    pub error: Option<u32>,
    /// The answer when its handle is asked for.
    pub handle_error: Option<u32>,
    /// False if the GPU cannot tell events.
    pub events: bool,
}

/// A MIG slice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Slice {
    /// `MIG-…`.
    pub uuid: String,
    /// Such as `1g.10gb`.
    pub profile: String,
    /// The number of its GPU instance.
    pub gpu_instance: u32,
    /// The number of its compute instance.
    pub compute_instance: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// The answer of every query of this slice but those of its handle and its UUID.
    #[serde(default)]
    pub error: Option<u32>,
}

/// The other end of an NVLink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Link {
    /// The GPU with this PCI address.
    Gpu(String),
    /// A switch.
    Switch,
}

/// An Xid. Each is told once to a session that was begun before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Xid {
    /// The UUID of its GPU.
    pub gpu: String,
    /// Its number.
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
            sets_hear_apart: false,
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
    /// As many H100s, each with 18 links to the switches; half of them on each of two NUMA nodes.
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

    /// Writes the file in one step, so that no call sees a part of it.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, file: &Path) -> std::io::Result<()> {
        let next = file.with_extension("next");
        std::fs::write(&next, serde_json::to_vec_pretty(self)?)?;
        std::fs::rename(&next, file)
    }
}
