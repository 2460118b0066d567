//! Resources that move between the device plugin and DRA: a device is offered the new way only after the old way has
//! released it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;

use crate::config::{Mode, ResourceName};
use crate::node::holders::Held;
use crate::resource::{DeviceKey, Resource};
use crate::view::View;

/// The devices that are not offered, and why.
pub type HeldBack = BTreeMap<DeviceKey, String>;

/// The state of all moves.
#[derive(Debug, Default)]
pub struct Moves {
    /// Each resource as it was when the device plugin last offered it.
    plugin: BTreeMap<ResourceName, Resource>,
    /// The devices that the device plugin has released, and the resources that offer them through DRA.
    free: BTreeSet<(DeviceKey, ResourceName)>,
}

impl Moves {
    /// Applies a newer view. Returns true if [`Self::settle`] needs the state of the kubelet and of the Node object.
    pub fn see(&mut self, view: &View) -> bool {
        for resource in view.resources.iter().filter(|resource| resource.config.mode == Mode::Plugin) {
            self.plugin.insert(resource.config.name.clone(), resource.clone());
        }
        let wanted: BTreeSet<(DeviceKey, ResourceName)> = by_dra(view).collect();
        self.free.retain(|pair| wanted.contains(pair));
        self.free.len() < wanted.len()
    }

    /// The resources whose IDs a pod may hold.
    pub fn resources(&self, view: &View) -> Vec<Resource> {
        view.resources.iter().chain(self.plugin.values()).cloned().collect()
    }

    /// The DRA devices that the device plugin has not released. `held` has the IDs of [`Self::resources`] that pods
    /// hold.
    pub fn settle(&mut self, view: &View, node: &Node, held: &Held) -> HeldBack {
        let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
        let is_counted = |name: &ResourceName| {
            let count = capacity.and_then(|capacity| capacity.get(name.as_str()));
            count.is_some_and(|count| count.0 != "0")
        };
        let mut held_back = HeldBack::new();
        for (device, name) in by_dra(view) {
            if self.free.contains(&(device.clone(), name.clone())) {
                continue;
            }
            let holder = held.by(&device).next().cloned();
            let why = match holder {
                Some(holder) => {
                    let (namespace, pod, resource) = (&holder.namespace, &holder.pod, &holder.resource);
                    format!("pod {namespace}/{pod} holds it as {resource} through the device plugin")
                }
                None if is_counted(&name) => {
                    format!(
                        "the kubelet still counts {name} of the device plugin, for up to five minutes or until it restarts"
                    )
                }
                None => {
                    self.free.insert((device, name));
                    continue;
                }
            };
            held_back.insert(device, why);
        }
        held_back
    }
}

fn by_dra(view: &View) -> impl Iterator<Item = (DeviceKey, ResourceName)> {
    let resources = view.resources.iter().filter(|resource| resource.config.mode == Mode::Dra);
    resources.flat_map(|resource| {
        let devices = resource.units.iter().flat_map(|unit| &unit.devices);
        devices.map(|device| (device.clone(), resource.config.name.clone()))
    })
}

#[cfg(test)]
mod tests;
