//! The inputs of the health state machine, and its notices.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use crate::config::XidAction;
use crate::machine::{Machine, PhysState, Port, PortState};
pub use crate::nvml::RecoveryAction;
use crate::resource::DeviceKey;

/// A point in time on two clocks: the monotonic clock measures intervals, and the wall clock is shown to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time, for intervals.
    pub instant: Instant,
    /// Wall-clock time, for display and for stored state.
    pub wall: SystemTime,
}

/// An observation.
#[derive(Clone, Debug)]
pub enum Event {
    /// The inventory was read. It has every present device, and the GPUs that NVML last named.
    Machine(Machine),
    /// All ports of these HCAs were read. The keys are the HCA names from the inventory.
    Ports(BTreeMap<String, Vec<PortSeen>>),
    /// The driver reported an Xid.
    Xid {
        /// The UUID of the GPU.
        gpu: String,
        /// The GPU instance, and the compute instance if only one is affected.
        slice: Option<(u32, Option<u32>)>,
        xid: u64,
    },
    /// A GPU answered, with the recovery action that the driver asks for. This event must be sent when NVML starts to
    /// answer, when the GPU appears, when the action changes, and after [`Self::GpuFailed`]: a GPU with a fault does
    /// not return to service before its recovery action is known.
    Recovery {
        /// The UUID of the GPU.
        gpu: String,
        action: RecoveryAction,
    },
    /// NVML answers.
    DriverAnswered,
    /// NVML failed, did not answer in time, or is not installed.
    DriverFailed { why: String },
    /// A query of this GPU failed. [`Self::Recovery`] clears the failure.
    GpuFailed {
        /// The UUID of the GPU.
        gpu: String,
        why: String,
    },
    /// The complete set of devices with this external condition, and why. The condition no longer applies to other
    /// devices.
    Marks(Mark, BTreeMap<DeviceKey, String>),
}

/// A condition that does not come from the device itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mark {
    /// A pod still holds the device through the other interface (device plugin or DRA).
    HeldElsewhere,
    /// A required limit cannot be enforced.
    LimitsMissing,
}

/// The state of a port, from which the HCA's health follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSeen {
    /// The port number, starting at 1.
    pub number: u32,
    /// The logical state.
    pub state: PortState,
    /// The physical state.
    pub phys_state: PhysState,
}

impl PortSeen {
    /// True if traffic can flow.
    pub fn is_up(&self) -> bool {
        self.state == PortState::Active && self.phys_state == PhysState::LinkUp
    }
}

impl From<&Port> for PortSeen {
    fn from(port: &Port) -> Self {
        Self { number: port.number, state: port.state, phys_state: port.phys_state }
    }
}

/// The action that a recovery action requires; `None` if the driver asks for nothing.
pub(super) fn action_of(recovery: RecoveryAction) -> Option<XidAction> {
    match recovery {
        RecoveryAction::None | RecoveryAction::Unsupported => None,
        RecoveryAction::NodeReboot => Some(XidAction::DrainNode),
        RecoveryAction::GpuReset
        | RecoveryAction::DrainP2p
        | RecoveryAction::DrainAndReset
        | RecoveryAction::Other(_) => Some(XidAction::DrainGpu),
    }
}

/// The text of a recovery action for messages.
pub(super) fn words(recovery: RecoveryAction) -> String {
    match recovery {
        RecoveryAction::None | RecoveryAction::Unsupported => "nothing".to_owned(),
        RecoveryAction::GpuReset => "a reset of the GPU".to_owned(),
        RecoveryAction::NodeReboot => "a reboot of the node".to_owned(),
        RecoveryAction::DrainP2p => "an end of the traffic between GPUs".to_owned(),
        RecoveryAction::DrainAndReset => "a drain and a reset of the GPU".to_owned(),
        RecoveryAction::Other(action) => format!("recovery action {action}"),
    }
}

/// An Xid to report. It does not always take a device out of service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// The GPU, or the slice if the Xid is a fault of the worker on that slice.
    pub device: DeviceKey,
    pub xid: u64,
    /// The Xid's meaning in the table.
    pub meaning: &'static str,
    /// The action that was taken.
    pub action: XidAction,
}
