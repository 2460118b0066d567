//! What of the health of GPUs outlives the process.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::event::Now;
use super::gpu::GpuFault;
use crate::config::XidAction;

/// A fault of a GPU. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Remembered {
    /// The GPU's UUID.
    pub gpu: String,
    /// DrainGpu or DrainNode.
    pub action: XidAction,
    /// What was seen.
    pub what: String,
    /// When it began.
    pub since: u64,
    /// When something was wrong for the last time.
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

    /// `None` if the action is none of a fault. Where the clocks do not tell how long ago it was, it was just now.
    pub(super) fn fault(&self, now: Now) -> Option<GpuFault> {
        let time = |seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(now.wall);
        let wall = time(self.last);
        let age = now.wall.duration_since(wall).unwrap_or_default();
        let last = now.instant.checked_sub(age).map_or(now, |instant| Now { instant, wall });
        let fault = GpuFault { action: self.action, what: self.what.clone(), since: time(self.since), last };
        (self.action >= XidAction::DrainGpu).then_some(fault)
    }
}
