//! The controller's view of Kueue.

use std::collections::{BTreeMap, BTreeSet};

use crate::kueue::objects::{Check, Class, Config, Flavor};
use crate::kueue::workload::{CheckState, JobWorkload, Workload};
use crate::optional_api::Presence;
use crate::time::Seconds;
use crate::warm_request::{Progress, Requester};
use larder_kube::fields::seconds;
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
    pub(crate) configs: Store<Config>,
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

    /// The AdmissionCheck of this name, if this controller decides it.
    pub fn data_check(&self, name: &str) -> Option<&Check> {
        self.checks.get(&Key::cluster(name)).filter(|check| check.config.is_none())
    }

    /// True if the Workload has quota and waits, or has waited, for one of Larder's checks.
    pub(crate) fn wants_data(&self, workload: &Workload) -> bool {
        workload.reserved.is_some() && workload.checks.iter().any(|check| self.data_check(&check.name).is_some())
    }

    /// The clusters of which this controller nominates some for the Workload, and since when it waits for nothing else;
    /// `None` if it needs no nomination now.
    pub(crate) fn dispatched(&self, workload: &Workload) -> Option<(&Config, Seconds)> {
        let reserved = workload.reserved.filter(|_| !workload.is_moved)?;
        let config = |check: &CheckState| {
            let name = self.checks.get(&Key::cluster(&check.name))?.config.as_ref()?;
            self.configs.get(&Key::cluster(name)).filter(|config| config.is_dispatched)
        };
        let (check, config) = workload.checks.iter().find_map(|check| Some((check, config(check)?)))?;
        let is_pending = check.state.is_empty() || check.state == "Pending";
        let mut others = workload.checks.iter().filter(|other| other.name != check.name);
        if !is_pending || others.any(|other| other.state != "Ready") {
            return None;
        }
        let since = workload.checks.iter().map(|check| Seconds(seconds(&check.since))).chain([reserved]).max()?;
        Some((config, since))
    }
}
