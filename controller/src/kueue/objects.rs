//! Kueue's objects, cut to the fields that decisions need.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use larder_api::names::DatasetKey;

use crate::jobs::kueue::workload::JobWorkload;
use crate::time::Seconds;
use larder_kube::key::{Key, Meta};
use larder_kube::pod::node_affinity::Places;
use larder_kube::store::Stored;

/// A job in a queue that waits, or has waited, for AdmissionChecks, or that is a TrainingJob.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    pub meta: Meta,
    /// When its quota was reserved, in seconds since 1970; `None` without a reservation, and for one that was evicted.
    pub reserved: Option<Seconds>,
    /// The states of all its checks.
    pub checks: Vec<CheckState>,
    /// Its pods, by kind.
    pub pod_sets: Vec<PodSet>,
    /// What a TrainingJob has to do with it.
    pub of_job: Option<Box<JobWorkload>>,
}

/// The state of a check.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckState {
    /// The AdmissionCheck.
    pub name: String,
    /// `Pending`, `Ready`, `Retry` or `Rejected`.
    pub state: String,
    /// Since when, as the API writes times.
    pub since: String,
    /// Its message: the condition that it waits for.
    pub message: String,
}

/// Pods of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSet {
    /// How many.
    pub count: usize,
    /// The claims that they mount.
    pub claims: Vec<String>,
    /// The datasets that their inline volumes and their annotation name, as `NAMESPACE/NAME`.
    pub datasets: Vec<DatasetKey>,
    /// Texts that name none.
    pub wrong: Vec<String>,
    /// The annotations that say how long they wait for data.
    pub patience: Patience,
    /// Where they may run, but for their flavors' part.
    pub places: Places,
    /// The flavors of their quota.
    pub flavors: Vec<String>,
}

/// Annotations that say how long a job waits for data, as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    /// The percentage from which on it starts.
    pub min_warm: Option<String>,
    /// The longest that it waits.
    pub deadline: Option<String>,
}

/// An AdmissionCheck whose states the controller decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Check {
    pub meta: Meta,
    pub generation: i64,
    /// Somebody said that there is a controller for it.
    pub active: bool,
    pub patience: Patience,
}

/// A flavor: nodes of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flavor {
    pub meta: Meta,
    /// Labels that its nodes have.
    pub labels: BTreeMap<String, String>,
    /// Tolerations that its pods get.
    pub tolerations: Vec<Toleration>,
}

/// A WorkloadPriorityClass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Class {
    pub meta: Meta,
    /// The priority.
    pub value: i32,
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

impl Stored for Workload {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    /// Claims and datasets, as for pods.
    fn belongs_to(&self) -> Vec<Key> {
        let namespace = &self.meta.key.namespace;
        let claims = self.pod_sets.iter().flat_map(|set| &set.claims).map(|claim| Key::new(namespace, claim));
        let datasets = self.pod_sets.iter().flat_map(|set| &set.datasets);
        claims.chain(datasets.map(|dataset| Key::new(&dataset.namespace, &dataset.name))).collect()
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
