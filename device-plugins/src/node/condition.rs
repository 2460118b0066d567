//! The node condition `larder.dev/DeviceFault`.

use std::collections::BTreeSet;

use super::words;
use crate::health::{Fault, Reason};
use crate::resource::DeviceKey;
use crate::view::View;

/// The longest message.
const MESSAGE_BYTES: usize = 1024;

/// The condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// True if an offered device has a fault.
    pub status: bool,
    pub reason: &'static str,
    /// The devices and their faults.
    pub message: String,
}

impl Condition {
    /// The status as Kubernetes writes it.
    pub fn status_text(&self) -> &'static str {
        if self.status { "True" } else { "False" }
    }
}

/// The condition of a node. Training jobs leave a node whose condition is true, so only a fault of an offered device itself makes it
/// true. A device that is not prepared or lacks a limit is only unavailable to new pods: pods that hold it keep running.
pub fn of(view: &View) -> Condition {
    let offered: BTreeSet<&DeviceKey> =
        view.resources.iter().flat_map(|resource| &resource.units).flat_map(|unit| &unit.devices).collect();
    let mut faults = view.faults.iter().filter(|(key, fault)| is_of_device(fault.reason) && offered.contains(key));
    let Some(first) = faults.next() else {
        return Condition { status: false, reason: "NoDeviceFault", message: "all devices work".to_owned() };
    };
    let faults: Vec<(&DeviceKey, &Fault)> = std::iter::once(first).chain(faults).collect();
    let is_one_reason = faults.iter().all(|(_, fault)| fault.reason == first.1.reason);
    let sentences = faults.iter().map(|(key, fault)| {
        let device = words::device(&view.machine, key);
        format!("{device}: {}", fault.message)
    });
    let sentences: Vec<String> = sentences.collect();
    let message = format!("{} of {} devices: {}", faults.len(), offered.len(), sentences.join("; "));
    Condition {
        status: true,
        reason: if is_one_reason { first.1.reason.name() } else { "SeveralFaults" },
        message: larder_kube::events::within(&message, MESSAGE_BYTES),
    }
}

/// True if the fault is the device's own, and not a missing component of the node.
fn is_of_device(reason: Reason) -> bool {
    match reason {
        Reason::PortDown | Reason::Gone | Reason::GpuFault | Reason::DriverSilent => true,
        Reason::LimitsMissing | Reason::NotPrepared | Reason::HeldElsewhere => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::node::samples;

    fn fault(reason: Reason, message: &str) -> Fault {
        Fault {
            reason,
            message: message.to_owned(),
            since: SystemTime::UNIX_EPOCH,
            recovery: "it is repaired".to_owned(),
        }
    }

    fn with(faults: &[(&DeviceKey, Fault)]) -> Condition {
        let mut view = samples::view();
        view.faults = std::sync::Arc::new(faults.iter().map(|(key, fault)| ((*key).clone(), fault.clone())).collect());
        of(&view)
    }

    // SEMANTICS: D22
    #[test]
    fn it_names_the_devices_and_their_faults() {
        let down = fault(Reason::PortDown, "port 1 is DOWN");
        let fallen = fault(Reason::GpuFault, "Xid 79: the GPU has fallen off the bus");
        let condition = with(&[(&samples::hca(0), down.clone()), (&samples::hca(1), down.clone())]);
        assert_eq!((condition.status_text(), condition.reason), ("True", "PortDown"));
        let message = "2 of 4 devices: mlx5_0 (0000:20:00.0): port 1 is DOWN; mlx5_1 (0000:21:00.0): port 1 is DOWN";
        assert_eq!(condition.message, message);
        let condition = with(&[(&samples::hca(0), down), (&samples::gpu(1), fallen)]);
        assert_eq!((condition.status_text(), condition.reason), ("True", "SeveralFaults"));
        assert!(condition.message.contains("GPU 1 (GPU-1, 0000:11:00.0): Xid 79"), "{}", condition.message);
    }

    // SEMANTICS: D22
    #[test]
    fn jobs_need_not_leave_a_node_that_lacks_a_limit_or_whose_other_devices_are_down() {
        let unoffered = DeviceKey::Hca("0000:99:00.0".parse().unwrap());
        let condition = with(&[
            (&samples::hca(0), fault(Reason::LimitsMissing, "NRI is not connected")),
            (&samples::hca(1), fault(Reason::NotPrepared, "no CDI file")),
            (&samples::gpu(0), fault(Reason::HeldElsewhere, "a pod holds it")),
            (&unoffered, fault(Reason::PortDown, "port 1 is DOWN")),
        ]);
        assert_eq!((condition.status_text(), condition.reason), ("False", "NoDeviceFault"));
    }

    #[test]
    fn a_long_message_is_cut() {
        let long = fault(Reason::Gone, &"ä".repeat(2000));
        let condition = with(&[(&samples::hca(0), long)]);
        assert!(condition.message.len() <= MESSAGE_BYTES && condition.message.ends_with('…'));
    }
}
