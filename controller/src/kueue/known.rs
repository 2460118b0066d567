//! Kueue's state as the controller knows it.

use std::collections::{BTreeMap, BTreeSet};

use crate::key::Key;
use crate::kinds::{KueueKind, KueueVersion};
use crate::kueue::objects::{Check, Flavor, Workload};
use crate::kueue::wish::Progress;
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
    listed: BTreeSet<KueueKind>,
    /// It was once known whether there is Kueue, and if so what it has.
    is_settled: bool,
    /// There is Kueue, and what it has was never known.
    is_unknown: bool,
    /// By dataset and Workload, as decided last.
    pub(crate) progress: BTreeMap<Key, BTreeMap<Key, Progress>>,
    /// When the state of a Workload was written last.
    pub written: BTreeMap<Key, i64>,
}

impl Kueue {
    /// True once datasets can be decided about: before, what a Workload wants may only be unknown.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }

    pub(crate) fn keys(&self, kind: KueueKind) -> BTreeSet<Key> {
        match kind {
            KueueKind::Workload => self.workloads.keys(),
            KueueKind::AdmissionCheck => self.checks.keys(),
            KueueKind::ResourceFlavor => self.flavors.keys(),
        }
    }

    pub(crate) fn all_listed(&mut self, kind: KueueKind, version: KueueVersion) {
        self.version = version;
        self.listed.insert(kind);
        if self.listed.len() == KueueKind::ALL.len() {
            (self.is_settled, self.is_unknown) = (true, false);
        }
    }

    /// True while it is not known which Workloads there are, and datasets are decided about nevertheless: what was promised
    /// to Workloads stays.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Its objects cannot be listed: nothing waits for them any longer.
    pub(crate) fn is_silent(&mut self) {
        self.is_unknown |= !self.is_settled;
        self.is_settled = true;
    }

    /// This cluster has no Kueue.
    pub(crate) fn becomes_absent(&mut self) {
        self.listed.clear();
        (self.is_settled, self.is_unknown) = (true, false);
    }

    /// The Workload has quota and waits, or has waited, for one of Larder's checks.
    pub(crate) fn wants_data(&self, workload: &Workload) -> bool {
        let ours = |name: &str| self.checks.get(&Key::cluster(name)).is_some();
        workload.reserved.is_some() && workload.checks.iter().any(|check| ours(&check.name))
    }
}
