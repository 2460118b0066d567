//! The controller's view of Kueue.

use std::collections::{BTreeMap, BTreeSet};

use crate::kueue::objects::{Check, Class, Flavor};
use crate::kueue::workload::{JobWorkload, Workload};
use crate::optional_api::Presence;
use crate::time::Seconds;
use crate::warm_request::{Progress, Requester};
use larder_kube::key::Key;
use larder_kube::kinds::{Kind, KueueKind, KueueVersion};
use larder_kube::store::Store;

#[derive(Debug, Default)]
pub struct Kueue {
    /// The version of Kueue's API.
    pub version: KueueVersion,
    pub checks: Store<Check>,
    pub(crate) workloads: Store<Workload>,
    pub(crate) flavors: Store<Flavor>,
    pub(crate) classes: Store<Class>,
    /// The Workloads of TrainingJobs, by the job's uid.
    pub(crate) of_jobs: BTreeMap<String, BTreeSet<Key>>,
    pub(crate) presence: Presence,
    /// The progress of the last decision, by dataset and requester.
    pub(crate) progress: BTreeMap<Key, BTreeMap<Requester, Progress>>,
    /// When the states of a Workload were last written.
    pub written: BTreeMap<Key, Seconds>,
}

impl Kueue {
    pub(crate) fn all_listed(&mut self, kind: KueueKind, version: KueueVersion) {
        self.version = version;
        self.presence.listed(Kind::Kueue(kind, version), KueueKind::ALL.len());
    }

    /// The reduced Workload for its TrainingJob.
    pub(crate) fn of_job(&self, key: &Key) -> Option<&JobWorkload> {
        self.workloads.get(key)?.of_job.as_deref()
    }

    /// Applies a change of a job's Workload.
    pub(crate) fn of_job_changed(&mut self, key: &Key, before: Option<&JobWorkload>) {
        let owner = |workload: &JobWorkload| workload.owner.as_ref().map(|owner| owner.uid.clone());
        if let Some(uid) = before.and_then(owner)
            && let Some(keys) = self.of_jobs.get_mut(&uid)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.of_jobs.remove(&uid);
            }
        }
        if let Some(uid) = self.of_job(key).and_then(owner) {
            self.of_jobs.entry(uid).or_default().insert(key.clone());
        }
    }

    /// True if the Workload has quota and waits, or has waited, for one of Larder's checks.
    pub(crate) fn wants_data(&self, workload: &Workload) -> bool {
        let ours = |name: &str| self.checks.get(&Key::cluster(name)).is_some();
        workload.reserved.is_some() && workload.checks.iter().any(|check| ours(&check.name))
    }
}
