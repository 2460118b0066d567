//! What of the limits of containers can be kept on a node.

use crate::config::Limits;

/// Why each part that limits depend on is missing; `None` if it is there.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Capabilities {
    /// The kernel's rdma controller.
    pub controller: Option<String>,
    /// The hook that writes `rdma.max`.
    pub hook: Option<String>,
    /// The connection to NRI, which raises RLIMIT_MEMLOCK.
    pub nri: Option<String>,
    /// True if the controller is that of cgroup v2, so that the runtime writes limits, too, if NRI says so. It refuses them on v1.
    #[serde(skip)]
    pub unified: bool,
}

impl Default for Capabilities {
    /// Before anything was probed, nothing is there.
    fn default() -> Self {
        let missing = |what: &str| Some(format!("{what} is not known yet"));
        Self {
            controller: missing("the rdma controller"),
            hook: missing("the hook"),
            nri: missing("NRI"),
            unified: false,
        }
    }
}

impl Capabilities {
    /// Their names, which are a closed set, each with why it is missing.
    pub fn all(&self) -> [(&'static str, Option<&str>); 3] {
        let parts = [("controller", &self.controller), ("hook", &self.hook), ("nri", &self.nri)];
        parts.map(|(name, why)| (name, why.as_deref()))
    }

    /// Why devices with these limits are out of service. Containers with limits of RDMA objects could not start where the controller
    /// or the hook is missing, so these always count; NRI does where the limit of locked memory is `required`.
    pub fn missing(&self, limits: &Limits) -> Option<String> {
        let rdma = limits.hca_handles.is_some() || limits.hca_objects.is_some();
        let memlock = limits.memlock.is_some() && limits.required;
        let parts = [(rdma, &self.controller), (rdma, &self.hook), (memlock, &self.nri)];
        let missing: Vec<&str> =
            parts.into_iter().filter(|(wanted, _)| *wanted).filter_map(|(_, why)| why.as_deref()).collect();
        (!missing.is_empty()).then(|| missing.join("; "))
    }
}
