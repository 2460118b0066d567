//! The inputs of device health, and its notices.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use crate::config::XidAction;
use crate::machine::{Machine, PhysState, Port, PortState};
pub use crate::nvml::RecoveryAction;
use crate::resource::DeviceKey;

/// A moment, on both clocks: intervals are measured on the first, and people are told the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// For intervals.
    pub instant: Instant,
    /// For people, and for what outlives the process.
    pub wall: SystemTime,
}

/// Something that was seen.
#[derive(Clone, Debug)]
pub enum Event {
    /// The inventory was read. It holds every device that is there, and the GPUs that NVML named last.
    Machine(Machine),
    /// All ports of these HCAs were read, which have the names that the inventory told.
    Ports(BTreeMap<String, Vec<PortSeen>>),
    /// The driver reported an Xid.
    Xid {
        /// The GPU's UUID.
        gpu: String,
        /// The GPU instance and, if only one is concerned, the compute instance.
        slice: Option<(u32, Option<u32>)>,
        /// The Xid.
        xid: u64,
    },
    /// A GPU answers, and the driver tells what it needs. It must be sent when NVML starts to answer, when the GPU appears, on
    /// every change, and after [`Self::GpuFailed`]: a GPU with a fault is not back before its recovery action is known.
    Recovery {
        /// The GPU's UUID.
        gpu: String,
        /// What the driver asks for.
        action: RecoveryAction,
    },
    /// NVML answers.
    DriverAnswered,
    /// NVML failed, did not answer in time, or is not there.
    DriverFailed {
        /// Why.
        why: String,
    },
    /// A query of this one GPU failed. [`Self::Recovery`] ends it.
    GpuFailed {
        /// The GPU's UUID.
        gpu: String,
        /// Why.
        why: String,
    },
    /// All devices to which a condition that is not their own applies, and why; all others are free of it.
    Marks(Mark, BTreeMap<DeviceKey, String>),
}

/// A condition that comes from outside of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mark {
    /// A pod still holds it from another way of handing it out.
    HeldElsewhere,
    /// A required limit cannot be kept.
    LimitsMissing,
}

/// What of a port decides about its HCA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSeen {
    /// From 1 on.
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

/// What follows from a recovery action, if anything is asked for.
pub(super) fn action_of(recovery: RecoveryAction) -> Option<XidAction> {
    match recovery {
        RecoveryAction::None => None,
        RecoveryAction::NodeReboot => Some(XidAction::DrainNode),
        RecoveryAction::GpuReset
        | RecoveryAction::DrainP2p
        | RecoveryAction::DrainAndReset
        | RecoveryAction::Other(_) => Some(XidAction::DrainGpu),
    }
}

/// A recovery action for people.
pub(super) fn words(recovery: RecoveryAction) -> String {
    match recovery {
        RecoveryAction::None => "nothing".to_owned(),
        RecoveryAction::GpuReset => "a reset of the GPU".to_owned(),
        RecoveryAction::NodeReboot => "a reboot of the node".to_owned(),
        RecoveryAction::DrainP2p => "an end of the traffic between GPUs".to_owned(),
        RecoveryAction::DrainAndReset => "a drain and a reset of the GPU".to_owned(),
        RecoveryAction::Other(action) => format!("recovery action {action}"),
    }
}

/// An Xid to report, whether or not it takes a device out of service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// The GPU, or the slice that a worker's fault belongs to.
    pub device: DeviceKey,
    /// The Xid.
    pub xid: u64,
    /// What it means.
    pub meaning: &'static str,
    /// What follows.
    pub action: XidAction,
}
