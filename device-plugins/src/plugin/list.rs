//! The list of a resource's devices, as the kubelet receives it.

use larder_kubelet::deviceplugin::{Device, NumaNode, TopologyInfo};

use crate::config::ResourceName;
use crate::health::fault_of;
use crate::view::View;

const HEALTHY: &str = "Healthy";
const UNHEALTHY: &str = "Unhealthy";

/// All device IDs of a resource; empty if the view has no such resource.
pub fn devices(view: &View, name: &ResourceName) -> Vec<Device> {
    let Some(resource) = view.resources.iter().find(|resource| resource.config.name == *name) else {
        return Vec::new();
    };
    let share = resource.config.share;
    let of_unit = |unit| {
        let health = if fault_of(resource.config.give, unit, &view.faults).is_some() { UNHEALTHY } else { HEALTHY };
        let nodes: Vec<NumaNode> = unit.numa.iter().map(|node| NumaNode { id: i64::from(*node) }).collect();
        let topology = (!nodes.is_empty()).then_some(TopologyInfo { nodes });
        let device =
            move |nth| Device { id: unit.shared_id(share, nth), health: health.to_owned(), topology: topology.clone() };
        (0..share).map(device)
    };
    resource.units.iter().flat_map(of_unit).collect()
}
