//! The components of a node that container limits depend on.

use crate::config::Limits;

/// Why each component that limits depend on is missing; `None` if it is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The kernel's rdma controller.
    pub controller: Option<String>,
    /// The hook that writes `rdma.max`.
    pub hook: Option<String>,
    /// The connection to NRI, which raises RLIMIT_MEMLOCK.
    pub nri: Option<String>,
    /// True if the controller belongs to cgroup v2. The runtime then also writes limits that NRI requests; on v1 it
    /// rejects them.
    pub unified: bool,
}

impl Default for Capabilities {
    /// Each component counts as missing until it was probed.
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
    /// The name of each component, from a closed set, and why it is missing.
    pub fn all(&self) -> [(&'static str, Option<&str>); 3] {
        let parts = [("controller", &self.controller), ("hook", &self.hook), ("nri", &self.nri)];
        parts.map(|(name, why)| (name, why.as_deref()))
    }

    /// Why devices with these limits are out of service. Containers with RDMA limits could not start without the controller or the
    /// hook, so these always count; NRI counts where the limit of locked memory is `required`.
    pub fn missing(&self, limits: &Limits) -> Option<String> {
        let rdma = limits.hca_handles.is_some() || limits.hca_objects.is_some();
        let memlock = limits.memlock.is_some() && limits.required;
        let parts = [(rdma, &self.controller), (rdma, &self.hook), (memlock, &self.nri)];
        let missing: Vec<&str> =
            parts.into_iter().filter(|(wanted, _)| *wanted).filter_map(|(_, why)| why.as_deref()).collect();
        (!missing.is_empty()).then(|| missing.join("; "))
    }
}
