//! The containers that have HCAs of ours.

use std::collections::BTreeMap;

/// A container of a pod. A container that is started again replaces the one before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The pod's UID.
    pub pod_uid: String,
    /// The container's name in the pod.
    pub container: String,
}

/// A container with HCAs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The runtime's name of it.
    pub id: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// Its cgroup, as the runtime writes it: a path, or `SLICE:PREFIX:NAME` with systemd.
    pub cgroups_path: String,
    /// The kernel's names of its HCAs, of those that this machine has.
    pub hcas: Vec<String>,
}

/// All of a node.
pub type Containers = BTreeMap<Key, Held>;
