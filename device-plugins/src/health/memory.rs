//! The GPU health state that is stored across restarts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::event::Now;
use super::gpu::GpuFault;
use crate::config::XidAction;

/// A stored GPU fault. Times are in seconds since 1970.
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
}

impl Remembered {
    pub(super) fn new(gpu: &str, fault: &GpuFault) -> Self {
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            gpu: gpu.to_owned(),
            action: fault.action,
            what: fault.what.clone(),
            since: seconds(fault.since),
            last: seconds(fault.last.wall),
        }
    }

    /// Restores the fault; `None` if the action does not take a GPU out of service. If the clocks do not show the age
    /// of the last problem, for example because the wall clock was set back, it counts as observed now.
    pub(super) fn fault(&self, now: Now) -> Option<GpuFault> {
        let time = |seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(now.wall);
        let wall = time(self.last);
        let age = now.wall.duration_since(wall).unwrap_or_default();
        let last = now.instant.checked_sub(age).map_or(now, |instant| Now { instant, wall });
        let fault = GpuFault { action: self.action, what: self.what.clone(), since: time(self.since), last };
        (self.action >= XidAction::DrainGpu).then_some(fault)
    }
}
