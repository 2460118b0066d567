//! Events of Kubernetes: on each pod that holds a device which leaves service, comes back or has a fault that the pod should know
//! of, and on the node where something that limits need is missing or a configuration is refused.
//!
//! What to tell follows from two views and the holders of devices alone. An Event's name follows from what it tells, so it is made
//! once however often it is tried; faults that a starting process finds are told under a name that the next start finds taken.

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

/// Who says it.
pub const REPORTER: &str = "larder-devices";
/// Whom an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum About {
    /// A pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its uid; empty if it is not known.
        uid: String,
    },
    /// This node.
    Node(String),
}

/// An event to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// About whom.
    pub about: About,
    /// False if it is good news.
    pub is_warning: bool,
    /// One word.
    pub reason: &'static str,
    /// What happened, and what ends it.
    pub note: String,
    /// When it happened. `None`: before this process looked, so the same event may have been made by the one before it.
    pub at: Option<Timestamp>,
}

/// What changed from one view to the next, for the pods that hold devices and for the node. Without a view before it, what is
/// wrong.
pub fn between(node: &str, before: Option<&View>, now: &View, held: &Held, at: Timestamp) -> Vec<Told> {
    let at = before.is_some().then_some(at);
    let mut told = Vec::new();
    for (key, fault) in told_of(now) {
        let was = before.and_then(|view| view.faults.get(key));
        if was.is_some_and(|was| was.reason == fault.reason) {
            continue;
        }
        let device = words::device(&now.machine, key);
        let (reason, message, recovery) = (fault.reason.name(), &fault.message, &fault.recovery);
        let note = format!("{device} is out of service: {message} ({reason}); it returns to service once {recovery}");
        to_holders(&mut told, held, &[key], at, (true, "DeviceOutOfService", note));
    }
    for (key, fault) in before.into_iter().flat_map(told_of) {
        // A slice that was taken away is not back.
        if !told_of(now).any(|(still, _)| still == key)
            && let Some(device) = words::known(&now.machine, key)
        {
            let note = format!("{device} is back in service; it was out because of {}", fault.reason.name());
            to_holders(&mut told, held, &[key], at, (false, "DeviceInService", note));
        }
    }
    let mut to_node = |reason, note: String| {
        told.push(Told {
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
            to_node("LimitsMissing", format!("limits of containers cannot be kept, {part} is missing: {why}"));
        }
    }
    if let Some(why) = &now.refused_config
        && before.is_none_or(|view| view.refused_config.as_ref() != Some(why))
    {
        to_node("ConfigRefused", format!("the configuration is refused, and the one before it stays in force: {why}"));
    }
    told
}

/// The faults that holders of devices are told of. A device that is held elsewhere is so by them, and nothing is wrong with it.
fn told_of(view: &View) -> impl Iterator<Item = (&DeviceKey, &Fault)> {
    view.faults.iter().filter(|(_, fault)| fault.reason != Reason::HeldElsewhere)
}

/// What the holders of a device are told of a notice.
pub fn noticed(notice: &Notice, view: &View, held: &Held, at: Timestamp) -> Vec<Told> {
    let device = words::device(&view.machine, &notice.device);
    let cut = view.machine.gpus.iter().filter(|gpu| notice.device == DeviceKey::Gpu(gpu.uuid.clone()));
    let slices: Vec<DeviceKey> =
        cut.flat_map(|gpu| gpu.slices()).map(|slice| DeviceKey::Slice(slice.uuid.clone())).collect();
    let recovery = match notice.action {
        XidAction::RestartWorker if !slices.is_empty() => {
            "the driver does not say on which of its slices: if the pod's work has failed, start the pod again; the device \
             stays in service"
        }
        XidAction::RestartWorker => "the pod's work on it has failed: start the pod again; the device stays in service",
        XidAction::Ignore | XidAction::Watch => "the device stays in service",
        XidAction::DrainGpu | XidAction::DrainNode => "the device leaves service",
    };
    let mut told = Vec::new();
    let note = format!("{device}: Xid {}: {}; {recovery}", notice.xid, notice.meaning);
    let devices: Vec<&DeviceKey> = [&notice.device].into_iter().chain(&slices).collect();
    to_holders(&mut told, held, &devices, Some(at), (true, "DeviceXid", note));
    told
}

/// One event for each pod that holds any of these devices, of however many containers.
fn to_holders(
    told: &mut Vec<Told>,
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
    told.extend(pods.into_iter().map(|about| Told { about, is_warning, reason, note: note.clone(), at }));
}

impl Told {
    /// The event as the API takes it, from the reporter on this node.
    pub fn event(&self, node: &str, now: Timestamp) -> Event {
        let (regarding, of) = match &self.about {
            About::Pod { namespace, name, uid } => (object("v1", "Pod", namespace, name, uid), name),
            // kubectl and the kubelet find the events of a node by its name in place of the uid.
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
