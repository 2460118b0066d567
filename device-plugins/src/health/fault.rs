//! Faults: why a device is out of service, since when, and how it recovers.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::config::Give;
use crate::resource::{DeviceKey, Unit};

/// Why a device is out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The reason, of a closed set: for metrics and conditions.
    pub reason: Reason,
    /// What was seen, for people, such as `Xid 79: GPU has fallen off the bus`.
    pub message: String,
    /// Since when.
    pub since: SystemTime,
    /// The condition of recovery, such as `a port is ACTIVE and LinkUp for 30 s`.
    pub recovery: String,
}

/// Why a device can be out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No port is up.
    PortDown,
    /// It is no longer in sysfs or NVML.
    Gone,
    /// An Xid that takes the GPU out of service, or NVML's recovery action.
    GpuFault,
    /// NVML has not answered for too long.
    DriverSilent,
    /// The node cannot keep a limit of its resource.
    LimitsMissing,
    /// A file that containers need for it could not be written, or is missing.
    NotPrepared,
    /// A pod still holds it from another way of handing it out.
    HeldElsewhere,
}

impl Reason {
    /// Every one.
    pub const ALL: [Self; 7] = [
        Self::PortDown,
        Self::Gone,
        Self::GpuFault,
        Self::DriverSilent,
        Self::LimitsMissing,
        Self::NotPrepared,
        Self::HeldElsewhere,
    ];

    /// For labels of metrics and reasons of events.
    pub fn name(self) -> &'static str {
        match self {
            Self::PortDown => "PortDown",
            Self::Gone => "Gone",
            Self::GpuFault => "GpuFault",
            Self::DriverSilent => "DriverSilent",
            Self::LimitsMissing => "LimitsMissing",
            Self::NotPrepared => "NotPrepared",
            Self::HeldElsewhere => "HeldElsewhere",
        }
    }
}

/// The devices that are out of service; all others are in service.
pub type Faults = BTreeMap<DeviceKey, Fault>;

/// Why a unit is out of service: the first of its devices that is. A unit is in service if all of its devices are, since a rail
/// is useless without either of them; but if it stands for all devices of its resource, as long as any of them is.
pub fn fault_of<'a>(give: Give, unit: &Unit, faults: &'a Faults) -> Option<(&'a DeviceKey, &'a Fault)> {
    let mut found = unit.devices.iter().filter_map(|device| faults.get_key_value(device));
    let is_out = match give {
        Give::One => true,
        Give::All => found.clone().count() == unit.devices.len(),
    };
    found.next().filter(|_| is_out)
}
