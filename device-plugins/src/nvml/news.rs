//! What NVML tells, and how often it is asked.

use std::path::PathBuf;
use std::time::Duration;

use crate::machine::{Gpu, Warning};

/// How NVML is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The library, a path or a name for the dynamic linker.
    pub library: PathBuf,
    /// How often the GPUs are asked for their health, and their slices are read.
    pub every: Duration,
    /// How often everything else is read: it hardly changes, and costs hundreds of calls.
    pub everything_every: Duration,
    /// How often a library or a driver that is absent is looked for.
    pub absent_every: Duration,
    /// An Xid is told at most so long after the driver knows of it.
    pub listen_every: Duration,
    /// A driver that does not answer for so long hangs.
    pub silent_after: Duration,
    /// While a GPU fails, a new session with the driver is begun after so long, and later ones after ever longer: an old one may
    /// not see the GPU again.
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

/// What the GPUs' driver tells.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverNews {
    /// The GPUs, first and whenever something of them has changed. A GPU that fails stays among them as it was last seen. Of a
    /// place, only the PCI address is told.
    Gpus {
        /// The driver's version.
        driver: String,
        /// By PCI address.
        gpus: Vec<Gpu>,
        /// GPUs and slices that could not be read.
        warnings: Vec<Warning>,
    },
    /// A GPU has reported an error. It is told once, or twice if it comes in the moment in which the GPU gets another event set.
    Xid {
        /// The GPU's UUID.
        gpu: String,
        /// The GPU instance and, if only one is concerned, the compute instance.
        slice: Option<(u32, Option<u32>)>,
        /// The number.
        xid: u64,
    },
    /// A GPU answers, and says how it recovers: first, whenever that has changed, and after [`Self::GpuFailed`].
    Recovery {
        /// The GPU's UUID.
        gpu: String,
        /// The way.
        action: RecoveryAction,
    },
    /// Queries of one GPU fail, while the driver answers. [`Self::Recovery`] ends it.
    GpuFailed {
        /// The GPU's UUID.
        gpu: String,
        /// The driver's words.
        why: String,
    },
    /// The driver has answered a round of queries. It ends [`Self::Failed`] and [`Self::Absent`].
    Answered,
    /// The driver hangs or fails as a whole, and nothing is known of its GPUs until it has [answered](Self::Answered).
    Failed {
        /// What was tried, and the driver's words.
        why: String,
    },
    /// There is no library or no driver. If there was one before, it was unloaded.
    Absent {
        /// What was tried.
        why: String,
    },
}

/// What a GPU needs before it can be used again (NVML's field 230).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Nothing.
    #[default]
    None,
    /// A reset.
    GpuReset,
    /// A reboot of the node.
    NodeReboot,
    /// The end of all work that uses its links to other GPUs.
    DrainP2p,
    /// The end of all work on it, and then a reset.
    DrainAndReset,
    /// One that this program does not know.
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
