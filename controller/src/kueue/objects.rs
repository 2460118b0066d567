//! AdmissionChecks, ResourceFlavors, WorkloadPriorityClasses and MultiKueueConfigs, reduced to the fields that decisions need.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use larder_kube::key::{Key, Meta};
use larder_kube::store::Stored;

/// Annotations that set how long a job waits for data, unparsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    /// The percentage from which on it starts.
    pub min_warm: Option<String>,
    /// The longest wait.
    pub deadline: Option<String>,
}

/// An AdmissionCheck whose state this controller decides, or one of MultiKueue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Check {
    pub meta: Meta,
    pub generation: i64,
    /// Its condition `Active` is true, so its ClusterQueues may use it.
    pub active: bool,
    pub patience: Patience,
    /// The MultiKueueConfig of a check of MultiKueue; `None`: this controller decides the check.
    pub config: Option<String>,
}

/// A ResourceFlavor: nodes of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flavor {
    pub meta: Meta,
    /// The labels of its nodes.
    pub labels: BTreeMap<String, String>,
    /// The tolerations that its pods get.
    pub tolerations: Vec<Toleration>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Class {
    pub meta: Meta,
    pub value: i32,
}

/// A MultiKueueConfig: clusters that Workloads may be moved to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    pub meta: Meta,
    /// The names of its clusters.
    pub clusters: Vec<String>,
    /// This controller nominates clusters for its Workloads.
    pub is_dispatched: bool,
}

impl Stored for Config {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn belongs_to(&self) -> Vec<Key> {
        Vec::new()
    }
}

impl Stored for Class {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn belongs_to(&self) -> Vec<Key> {
        Vec::new()
    }
}

impl Stored for Check {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn belongs_to(&self) -> Vec<Key> {
        Vec::new()
    }
}

impl Stored for Flavor {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    fn belongs_to(&self) -> Vec<Key> {
        Vec::new()
    }
}
