//! Faults: why a device is out of service, since when, and how it recovers.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::config::Give;
use crate::resource::{DeviceKey, Unit};

/// Why a device is out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The reason from a closed set, for metrics and conditions.
    pub reason: Reason,
    /// What was observed, for users, such as `Xid 79: GPU has fallen off the bus`.
    pub message: String,
    /// When the fault began.
    pub since: SystemTime,
    /// The condition of recovery, such as `a port is ACTIVE and LinkUp for 30 s`.
    pub recovery: String,
}

/// Why a device can be out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No port is up.
    PortDown,
    /// The device is no longer in sysfs or NVML.
    Gone,
    /// An Xid or NVML's recovery action takes the GPU out of service.
    GpuFault,
    /// NVML has not answered for too long.
    DriverSilent,
    /// The node cannot enforce a limit of the device's resource.
    LimitsMissing,
    /// A file that containers need for the device is missing, or could not be written.
    NotPrepared,
    /// A pod still holds the device through the other interface (device plugin or DRA).
    HeldElsewhere,
}

impl Reason {
    pub const ALL: [Self; 7] = [
        Self::PortDown,
        Self::Gone,
        Self::GpuFault,
        Self::DriverSilent,
        Self::LimitsMissing,
        Self::NotPrepared,
        Self::HeldElsewhere,
    ];

    /// The name in metric labels and event reasons.
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

/// The fault that takes a unit out of service: the fault of its first faulty device. A unit is in service only if all
/// its devices are, since a rail is useless without its GPU or its HCA. A unit that stands for all devices of its
/// resource is in service while any of them is.
pub fn fault_of<'a>(give: Give, unit: &Unit, faults: &'a Faults) -> Option<(&'a DeviceKey, &'a Fault)> {
    let mut found = unit.devices.iter().filter_map(|device| faults.get_key_value(device));
    let is_out = match give {
        Give::One => true,
        Give::All => found.clone().count() == unit.devices.len(),
    };
    found.next().filter(|_| is_out)
}
