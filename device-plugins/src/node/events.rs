//! Kubernetes Events: on each pod whose device leaves service, returns or has an Xid that concerns the pod, and on the node if a
//! component that limits need is missing or a configuration is refused.
//!
//! The Events follow from two views and the holders of devices alone. An Event's name follows from its content, so retries create it
//! once. Faults that a starting process finds have a name without a time, which exists already after the next start.

use std::collections::BTreeSet;

use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use larder_kube::events::{NOTE_BYTES, Reporter, Severity, event, name, object, within};

use super::holders::Held;
use super::words;
use crate::config::XidAction;
use crate::health::{Fault, Notice, Reason};
use crate::resource::DeviceKey;
use crate::view::View;

/// The reporting controller.
pub const REPORTER: &str = "larder-devices";
/// The object that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum About {
    Pod {
        namespace: String,
        name: String,
        /// Its uid; empty if it is not known.
        uid: String,
    },
    Node(String),
}

/// An Event to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub about: About,
    /// False if a device is back in service.
    pub is_warning: bool,
    /// One word.
    pub reason: &'static str,
    /// What happened, and the condition of recovery.
    pub note: String,
    /// When it happened; `None` if that was before this process started, so an earlier process may have created the same Event.
    pub at: Option<Timestamp>,
}

/// The changes between two views, for the pods that hold devices and for the node. Without an earlier view, all current problems.
pub fn between(node: &str, before: Option<&View>, now: &View, held: &Held, at: Timestamp) -> Vec<Report> {
    let at = before.is_some().then_some(at);
    let mut pending = Vec::new();
    for (key, fault) in reported_faults(now) {
        let was = before.and_then(|view| view.faults.get(key));
        if was.is_some_and(|was| was.reason == fault.reason) {
            continue;
        }
        let device = words::device(&now.machine, key);
        let (reason, message, recovery) = (fault.reason.name(), &fault.message, &fault.recovery);
        let note = format!("{device} is out of service: {message} ({reason}); it returns to service once {recovery}");
        to_holders(&mut pending, held, &[key], at, (true, "DeviceOutOfService", note));
    }
    for (key, fault) in before.into_iter().flat_map(reported_faults) {
        // A removed slice does not return to service.
        if !reported_faults(now).any(|(still, _)| still == key)
            && let Some(device) = words::known(&now.machine, key)
        {
            let note = format!("{device} is back in service; it was out because of {}", fault.reason.name());
            to_holders(&mut pending, held, &[key], at, (false, "DeviceInService", note));
        }
    }
    let mut to_node = |reason, note: String| {
        pending.push(Report {
            about: About::Node(node.to_owned()),
            is_warning: true,
            reason,
            note: within(&note, NOTE_BYTES),
            at,
        });
    };
    let (was, missing) = (before.map(View::missing), now.missing());
    for (number, (part, why)) in missing.all().into_iter().enumerate() {
        if let Some(why) = why
            && was.as_ref().and_then(|was| was.all()[number].1) != Some(why)
        {
            to_node("LimitsMissing", format!("container limits cannot be enforced because {part} is missing: {why}"));
        }
    }
    if let Some(why) = &now.refused_config
        && before.is_none_or(|view| view.refused_config.as_ref() != Some(why))
    {
        to_node(
            "ConfigRefused",
            format!("the new configuration is refused and the previous one stays in force: {why}"),
        );
    }
    pending
}

/// The faults that are reported to the holders of devices. `HeldElsewhere` is not one: the holders cause it, and the device works.
fn reported_faults(view: &View) -> impl Iterator<Item = (&DeviceKey, &Fault)> {
    view.faults.iter().filter(|(_, fault)| fault.reason != Reason::HeldElsewhere)
}

/// The Events of a notice, for the holders of its device.
pub fn noticed(notice: &Notice, view: &View, held: &Held, at: Timestamp) -> Vec<Report> {
    let device = words::device(&view.machine, &notice.device);
    let cut = view.machine.gpus.iter().filter(|gpu| notice.device == DeviceKey::Gpu(gpu.uuid.clone()));
    let slices: Vec<DeviceKey> =
        cut.flat_map(|gpu| gpu.slices()).map(|slice| DeviceKey::Slice(slice.uuid.clone())).collect();
    let recovery = match notice.action {
        XidAction::RestartWorker if !slices.is_empty() => {
            "the driver does not report the slice: restart the pod if its work has failed; the device stays in service"
        }
        XidAction::RestartWorker => "the pod's work on it has failed: restart the pod; the device stays in service",
        XidAction::Ignore | XidAction::Watch => "the device stays in service",
        XidAction::DrainGpu | XidAction::DrainNode => "the device leaves service",
    };
    let mut pending = Vec::new();
    let note = format!("{device}: Xid {}: {}; {recovery}", notice.xid, notice.meaning);
    let devices: Vec<&DeviceKey> = [&notice.device].into_iter().chain(&slices).collect();
    to_holders(&mut pending, held, &devices, Some(at), (true, "DeviceXid", note));
    pending
}

/// One Event for each pod that holds any of these devices, in any number of containers.
fn to_holders(
    pending: &mut Vec<Report>,
    held: &Held,
    devices: &[&DeviceKey],
    at: Option<Timestamp>,
    (is_warning, reason, note): (bool, &'static str, String),
) {
    let pod = |holder: &super::holders::Holder| About::Pod {
        namespace: holder.namespace.clone(),
        name: holder.pod.clone(),
        uid: holder.uid.clone(),
    };
    let pods: BTreeSet<About> = devices.iter().flat_map(|device| held.by(device)).map(pod).collect();
    let note = within(&note, NOTE_BYTES);
    pending.extend(pods.into_iter().map(|about| Report { about, is_warning, reason, note: note.clone(), at }));
}

impl Report {
    /// The Event as the API server takes it, reported by this node.
    pub fn event(&self, node: &str, now: Timestamp) -> Event {
        let (regarding, of) = match &self.about {
            About::Pod { namespace, name, uid } => (object("v1", "Pod", namespace, name, uid), name),
            // kubectl and the kubelet look up a node's Events by its name in place of the uid.
            About::Node(name) => (object("v1", "Node", "", name, name), name),
        };
        let at = self.at.map(|at| at.as_microsecond().to_string()).unwrap_or_default();
        let uid = regarding.uid.as_deref().unwrap_or_default();
        let name = name(of, &[uid, self.reason, &self.note, &at]);
        let severity = if self.is_warning { Severity::Warning } else { Severity::Normal };
        let reporter = Reporter { controller: REPORTER, instance: node, action: "Watching" };
        event(reporter, self.at.unwrap_or(now), name, regarding, (severity, self.reason, &self.note))
    }
}

#[cfg(test)]
mod tests;
