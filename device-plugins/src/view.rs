//! All that the program knows at one moment. One task makes views (`state`), and everything that talks to the kubelet, to
//! containerd, to the API server or to people reads the newest one.

use std::sync::Arc;

use crate::health::Faults;
use crate::health::capabilities::Capabilities;
use crate::machine::Machine;
pub use crate::resource::Excluded;
use crate::resource::Resource;

/// A moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The node's devices.
    pub machine: Arc<Machine>,
    /// What is offered of them, in the order of the configuration.
    pub resources: Arc<[Resource]>,
    /// Devices that a resource selects and does not offer, and why.
    pub excluded: Arc<[Excluded]>,
    /// Devices that are out of service.
    pub faults: Arc<Faults>,
    /// Why the newest configuration is not in force, if it is not.
    pub refused_config: Option<Arc<str>>,
    /// What limits need of the node.
    pub capabilities: Capabilities,
}

impl View {
    /// What the node lacks of what the limits of its devices need.
    pub fn missing(&self) -> Capabilities {
        let offered = self.resources.iter().filter(|it| !it.units.is_empty());
        let limits: Vec<_> = offered.filter_map(|it| it.config.limits).collect();
        let of_objects = limits.iter().any(|it| it.hca_handles.is_some() || it.hca_objects.is_some());
        let of_memory = limits.iter().any(|it| it.memlock.is_some());
        let missing = |why: &Option<String>, is_needed: bool| why.clone().filter(|_| is_needed);
        let Capabilities { controller, hook, nri, unified } = &self.capabilities;
        Capabilities {
            controller: missing(controller, of_objects),
            hook: missing(hook, of_objects),
            nri: missing(nri, of_memory),
            unified: *unified,
        }
    }
}
