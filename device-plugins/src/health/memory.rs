//! The GPU health state that is stored across restarts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::event::Now;
use super::gpu::GpuFault;
use crate::config::XidAction;

/// The state that a process stores for the next one. Times are in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The GPUs that are out of service by a fault of their own.
    pub faults: Vec<Remembered>,
    /// The GPUs that had a fault lately, those of `faults` included.
    pub history: Vec<History>,
}

/// The recent faults of a GPU, which extend its quiet time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// The GPU's UUID.
    pub gpu: String,
    /// When each began, oldest first.
    pub begun: Vec<u64>,
}

impl History {
    pub(super) fn new(gpu: &str, begun: &[SystemTime]) -> Option<Self> {
        let begun: Vec<u64> = begun.iter().map(|at| seconds(*at)).collect();
        (!begun.is_empty()).then(|| Self { gpu: gpu.to_owned(), begun })
    }

    pub(super) fn begun(&self) -> Vec<SystemTime> {
        self.begun.iter().filter_map(|at| time(*at)).collect()
    }
}

/// A stored GPU fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Remembered {
    /// The GPU's UUID.
    pub gpu: String,
    /// DrainGpu or DrainNode.
    pub action: XidAction,
    /// The last observation.
    pub what: String,
    /// When the fault began.
    pub since: u64,
    /// When the last problem was observed.
    pub last: u64,
    /// True until the GPU was seen to be reset.
    #[serde(default = "unknown")]
    pub awaits_reset: bool,
    /// True if the driver waited for a reset to repair the GPU's memory.
    #[serde(default)]
    pub repair_pending: bool,
}

/// Version 0.1 did not store whether the GPU was reset.
fn unknown() -> bool {
    true
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn time(seconds: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

impl Remembered {
    pub(super) fn new(gpu: &str, fault: &GpuFault) -> Self {
        Self {
            gpu: gpu.to_owned(),
            action: fault.action,
            what: fault.what.clone(),
            since: seconds(fault.since),
            last: seconds(fault.last.wall),
            awaits_reset: fault.awaits_reset,
            repair_pending: fault.repair_pending,
        }
    }

    /// Restores the fault; `None` if the action does not take a GPU out of service. If the clocks do not show the age
    /// of the last problem, for example because the wall clock was set back, it counts as observed now.
    pub(super) fn fault(&self, now: Now) -> Option<GpuFault> {
        let wall = time(self.last).unwrap_or(now.wall);
        let age = now.wall.duration_since(wall).unwrap_or_default();
        let last = now.instant.checked_sub(age).map_or(now, |instant| Now { instant, wall });
        let fault = GpuFault {
            action: self.action,
            what: self.what.clone(),
            since: time(self.since).unwrap_or(now.wall),
            last,
            awaits_reset: self.awaits_reset,
            repair_pending: self.repair_pending,
        };
        (self.action >= XidAction::DrainGpu).then_some(fault)
    }
}
