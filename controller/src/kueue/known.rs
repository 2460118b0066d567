//! Kueue's state as the controller knows it.

use std::collections::{BTreeMap, BTreeSet};

use crate::key::Key;
use crate::kinds::{Kind, KueueKind, KueueVersion};
use crate::kueue::objects::{Check, Flavor, Workload};
use crate::kueue::wish::{Progress, Wisher};
use crate::presence::Presence;
use crate::store::Store;

/// Kueue's state as the controller knows it.
#[derive(Debug, Default)]
pub struct Kueue {
    /// The version of its API.
    pub version: KueueVersion,
    /// Larder's AdmissionChecks.
    pub checks: Store<Check>,
    pub(crate) workloads: Store<Workload>,
    pub(crate) flavors: Store<Flavor>,
    pub(crate) presence: Presence,
    /// By dataset and who wishes it, as decided last.
    pub(crate) progress: BTreeMap<Key, BTreeMap<Wisher, Progress>>,
    /// When the state of a Workload was written last.
    pub written: BTreeMap<Key, i64>,
}

impl Kueue {
    pub(crate) fn keys(&self, kind: KueueKind) -> BTreeSet<Key> {
        match kind {
            KueueKind::Workload => self.workloads.keys(),
            KueueKind::AdmissionCheck => self.checks.keys(),
            KueueKind::ResourceFlavor => self.flavors.keys(),
        }
    }

    pub(crate) fn all_listed(&mut self, kind: KueueKind, version: KueueVersion) {
        self.version = version;
        self.presence.listed(Kind::Kueue(kind, version), KueueKind::ALL.len());
    }

    /// The Workload has quota and waits, or has waited, for one of Larder's checks.
    pub(crate) fn wants_data(&self, workload: &Workload) -> bool {
        let ours = |name: &str| self.checks.get(&Key::cluster(name)).is_some();
        workload.reserved.is_some() && workload.checks.iter().any(|check| ours(&check.name))
    }
}
