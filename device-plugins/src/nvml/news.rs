//! What NVML reports, and how often it is asked.

use std::path::PathBuf;
use std::time::Duration;

use crate::machine::{Gpu, Warning};

/// How NVML is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The library, a path or a name for the dynamic linker.
    pub library: PathBuf,
    /// How often the health and the slices of GPUs are read.
    pub every: Duration,
    /// How often all attributes are read: they hardly change, and take hundreds of calls.
    pub everything_every: Duration,
    /// How often an absent library or driver is tried again.
    pub absent_every: Duration,
    /// The longest delay of an Xid.
    pub listen_every: Duration,
    /// A driver that does not answer for this long counts as hanging.
    pub silent_after: Duration,
    /// While a GPU fails, the session is replaced after this time, and later after longer times: an old session may never reach
    /// the GPU again.
    pub reopen_every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            library: PathBuf::from("libnvidia-ml.so.1"),
            every: Duration::from_secs(5),
            everything_every: Duration::from_secs(60),
            absent_every: Duration::from_secs(30),
            listen_every: Duration::from_millis(400),
            silent_after: Duration::from_secs(10),
            reopen_every: Duration::from_secs(30),
        }
    }
}

/// A report of the GPU driver.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverNews {
    /// The GPUs, at first and after a change. A GPU that fails stays in the list as last read. Their locations have only the PCI
    /// address.
    Gpus {
        driver: String,
        /// Sorted by PCI address.
        gpus: Vec<Gpu>,
        /// GPUs and slices that could not be read.
        warnings: Vec<Warning>,
    },
    /// A GPU error. It is reported once, or twice if it happens while the GPU moves to another event set.
    Xid {
        /// The GPU's UUID.
        gpu: String,
        /// The GPU instance and, if only one is concerned, the compute instance.
        slice: Option<(u32, Option<u32>)>,
        xid: u64,
    },
    /// A GPU answers with its recovery action: at first, after a change, and after [`Self::GpuFailed`].
    Recovery {
        /// The GPU's UUID.
        gpu: String,
        action: RecoveryAction,
    },
    /// Queries of one GPU fail although the driver answers, until [`Self::Recovery`].
    GpuFailed {
        /// The GPU's UUID.
        gpu: String,
        /// The driver's message.
        why: String,
    },
    /// The driver has answered a round of queries, which ends [`Self::Failed`] and [`Self::Absent`].
    Answered,
    /// The driver hangs or fails as a whole; the state of its GPUs is unknown until it has [answered](Self::Answered).
    Failed {
        /// The call, and the driver's message.
        why: String,
    },
    /// There is no library or no driver. If there was one before, it was unloaded.
    Absent {
        /// The error of loading it.
        why: String,
    },
}

/// What a GPU needs before it can be used again (NVML's field 230).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryAction {
    #[default]
    None,
    /// The driver does not report recovery actions, and no repair of the GPU's memory waits for a reset. Whether the
    /// GPU needs anything is unknown.
    Unsupported,
    GpuReset,
    NodeReboot,
    /// End all work that uses links to other GPUs.
    DrainP2p,
    /// End all work on the GPU, and then reset it.
    DrainAndReset,
    /// Unknown to this program.
    Other(u32),
}

impl From<u32> for RecoveryAction {
    fn from(action: u32) -> Self {
        match action {
            0 => Self::None,
            1 => Self::GpuReset,
            2 => Self::NodeReboot,
            3 => Self::DrainP2p,
            4 => Self::DrainAndReset,
            other => Self::Other(other),
        }
    }
}
