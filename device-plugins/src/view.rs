//! The program's knowledge at one moment. One task makes views (`state`); every part that talks to the kubelet, containerd, the API
//! server or users reads the newest one.

use std::sync::Arc;

use crate::health::Faults;
use crate::health::capabilities::Capabilities;
use crate::machine::Machine;
pub use crate::resource::Excluded;
use crate::resource::Resource;

/// An immutable snapshot of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    pub machine: Arc<Machine>,
    /// The offered devices, in the order of the configuration.
    pub resources: Arc<[Resource]>,
    /// The devices that a resource selects but does not offer.
    pub excluded: Arc<[Excluded]>,
    pub faults: Arc<Faults>,
    /// Why the newest configuration is not in force, if it is not.
    pub refused_config: Option<Arc<str>>,
    /// The components that limits depend on.
    pub capabilities: Capabilities,
}

impl View {
    /// The missing components that the limits of this node's devices need.
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
