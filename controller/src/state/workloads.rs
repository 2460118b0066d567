//! Which events concern Kueue's Workloads, and the inputs of decisions about them.

use std::collections::{BTreeMap, BTreeSet};

use crate::kueue::check::Situation;
use crate::kueue::objects::{Check, Class, Config, Flavor};
use crate::kueue::read;
use crate::kueue::workload::{self, JobWorkload, PodSet, Workload};
use crate::objects::Claim;
use crate::state::State;
use crate::state::affected::{put_into, take_from};
use crate::state::watched::{Watched, kept};
use crate::time::Seconds;
use crate::warm_request::{Progress, Requester, WarmRequest};
use crate::work_queue::Work;
use larder_kube::api::DynamicObject;
use larder_kube::key::Key;
use larder_kube::kinds::{Kind, KueueKind};
use larder_kube::store::{Put, Store, Stored};
use serde_json::Error;

impl Watched for Workload {
    kept!(kueue.workloads, workload::workload);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        let key = self.meta.key.clone();
        let before = state.kueue.of_job(&key).cloned();
        work.push(Work::Workload(key.clone()));
        if state.kueue.dispatched(&self).is_some() {
            work.push(Work::Jobs);
        }
        put_into(&mut state.kueue.workloads, self, &state.datasets, &state.claims, work);
        state.of_job_changed(&key, before, work);
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        state.kueue.written.remove(key);
        let before = state.kueue.of_job(key).cloned();
        take_from(&mut state.kueue.workloads, key, &state.datasets, &state.claims, work);
        state.of_job_changed(key, before, work);
    }

    fn leaves(state: &mut State, key: &Key, _: &str, work: &mut Vec<Work>) {
        if let Some(mut workload) = state.kueue.workloads.get(key).cloned() {
            workload.meta.deleting = true;
            workload.of_job.iter_mut().for_each(|of_job| of_job.meta.deleting = true);
            Watched::put(workload, state, work);
        }
    }
}

impl Watched for Check {
    kept!(kueue.checks, read::check);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        let name = self.meta.key.name.clone();
        if let Put::Changed(_) = state.kueue.checks.put(self) {
            work.extend([Work::AdmissionCheck(name), Work::Jobs]);
            state.wake_all_workloads(work);
        }
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        if state.kueue.checks.take(key).is_some() {
            state.wake_all_workloads(work);
        }
    }
}

impl Watched for Flavor {
    kept!(kueue.flavors, read::flavor);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        if let Put::Changed(_) = state.kueue.flavors.put(self) {
            state.wake_all_workloads(work);
            work.push(Work::Jobs);
        }
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        state.kueue.flavors.take(key);
        state.wake_all_workloads(work);
        work.push(Work::Jobs);
    }
}

impl Watched for Class {
    kept!(kueue.classes, read::class);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        if let Put::Changed(_) = state.kueue.classes.put(self) {
            work.push(Work::Jobs);
        }
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        state.kueue.classes.take(key);
        work.push(Work::Jobs);
    }
}

impl Watched for Config {
    kept!(kueue.configs, read::config);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        if let Put::Changed(_) = state.kueue.configs.put(self) {
            work.push(Work::Jobs);
        }
    }

    fn remove(state: &mut State, key: &Key, _: &mut Vec<Work>) {
        state.kueue.configs.take(key);
    }
}

impl State {
    /// Removes everything known about Kueue, because the cluster no longer has it.
    pub(super) fn forget_kueue(&mut self, work: &mut Vec<Work>) {
        for kind in KueueKind::ALL.map(|kind| Kind::Kueue(kind, self.kueue.version)) {
            for key in self.keys(kind) {
                self.remove(kind, &key, work);
            }
        }
        self.kueue.presence.becomes_absent();
    }

    fn of_job_changed(&mut self, key: &Key, before: Option<JobWorkload>, work: &mut Vec<Work>) {
        if before.as_ref() != self.kueue.of_job(key) {
            self.kueue.of_job_changed(key, before.as_ref());
            let owner = self.kueue.of_job(key).and_then(|workload| workload.owner.as_ref());
            if let Some(job) = owner.map(|owner| Key::new(&key.namespace, &owner.name)) {
                self.jobs.wake(&job);
            }
            work.push(Work::Jobs);
        }
    }

    /// Checks and flavors change rarely, so all Workloads are woken.
    pub(super) fn wake_all_workloads(&self, work: &mut Vec<Work>) {
        for workload in self.kueue.workloads.iter() {
            work.push(Work::Workload(workload.meta.key.clone()));
            let sets = workload.pod_sets.iter();
            work.extend(sets.flat_map(|set| self.datasets_of(workload, set)).map(Work::Dataset));
        }
    }

    /// The datasets that the pods of a Workload read.
    pub(super) fn datasets_of(&self, workload: &Workload, set: &PodSet) -> BTreeSet<Key> {
        if set.count == 0 {
            return BTreeSet::new();
        }
        let mut found: BTreeSet<Key> =
            set.datasets.iter().map(|dataset| Key::new(&dataset.namespace, &dataset.name)).collect();
        for name in &set.claims {
            let claim = Key::new(&workload.meta.key.namespace, name);
            match self.claims.get(&claim) {
                // A claim without the annotation is for the dataset of the same name.
                Some(Claim { wants: None, .. }) => found.extend([claim]),
                Some(known) => found.extend(known.wanted()),
                // The claim of a dataset may be created only after its nodes are warm.
                None => found.extend(self.datasets.get(&claim).map(|_| claim)),
            }
        }
        found
    }

    /// All warm requests for a dataset.
    pub(super) fn warm_requests(&self, key: &Key) -> Vec<WarmRequest> {
        let claims = self.claims.of(key).map(|claim| &claim.meta.key);
        let workloads: BTreeMap<&Key, &Workload> = claims
            .chain([key])
            .flat_map(|owner| self.kueue.workloads.of(owner))
            .map(|workload| (&workload.meta.key, workload))
            .collect();
        let mut requests = self.jobs.warm_requests.get(key).cloned().unwrap_or_default();
        for workload in workloads.into_values().filter(|workload| self.kueue.wants_data(workload)) {
            for set in workload.pod_sets.iter().filter(|set| self.datasets_of(workload, set).contains(key)) {
                let mut places = set.places.clone();
                for flavor in set.flavors.iter().filter_map(|name| self.kueue.flavors.get(&Key::cluster(name))) {
                    places.labels.extend(flavor.labels.clone());
                    places.tolerations.extend(flavor.tolerations.iter().cloned());
                }
                requests.push(WarmRequest {
                    by: Requester::Workload(workload.meta.key.clone()),
                    since: workload.reserved.unwrap_or_default(),
                    pods: set.count,
                    places,
                    gpus: set.requests.has_gpus(),
                });
            }
        }
        requests
    }

    /// Stores the progress of a dataset for its Workloads, and wakes the Workloads whose progress has changed.
    pub fn progressed(&mut self, dataset: &Key, now: BTreeMap<Requester, Progress>, work: &mut Vec<Work>) {
        let before = self.kueue.progress.remove(dataset).unwrap_or_default();
        let either: BTreeSet<&Requester> = before.keys().chain(now.keys()).collect();
        for requester in either.into_iter().filter(|requester| before.get(*requester) != now.get(*requester)) {
            let is_over_quota = |progress: Option<&Progress>| match progress {
                Some(Progress::Warms(warmth)) => Some(&warmth.why).filter(|_| warmth.is_over_quota).cloned(),
                _ => None,
            };
            match requester {
                Requester::Workload(key) => work.push(Work::Workload(key.clone())),
                // TrainingJobs read the caches of their nodes themselves, but not the quota.
                Requester::Job(key) if is_over_quota(before.get(requester)) != is_over_quota(now.get(requester)) => {
                    self.jobs.wake(key);
                    work.push(Work::Jobs);
                }
                Requester::Job(_) => {}
            }
        }
        if !now.is_empty() {
            self.kueue.progress.insert(dataset.clone(), now);
        }
    }

    /// The inputs of a Workload's check states; `None` if it waits for none of Larder's checks.
    pub fn situation(&self, key: &Key, now: Seconds) -> Option<Situation<'_>> {
        let kueue = &self.kueue;
        let workload = kueue.workloads.get(key).filter(|workload| kueue.wants_data(workload))?;
        let datasets: BTreeSet<Key> =
            workload.pod_sets.iter().flat_map(|set| self.datasets_of(workload, set)).collect();
        let progress = |dataset: &Key| kueue.progress.get(dataset)?.get(&Requester::Workload(key.clone())).cloned();
        Some(Situation {
            now,
            version: kueue.version,
            workload,
            checks: workload.checks.iter().filter_map(|check| kueue.data_check(&check.name)).collect(),
            datasets: datasets.into_iter().map(|dataset| (dataset.clone(), progress(&dataset))).collect(),
            status_age: kueue.written.get(key).map_or(i64::MAX, |written| now - *written),
        })
    }

    /// The datasets of the initial work. Datasets that Workloads name need not exist.
    pub(super) fn everything_of_kueue(&self, work: &mut Vec<Work>) {
        self.wake_all_workloads(work);
        work.extend(self.kueue.checks.iter().map(|check| Work::AdmissionCheck(check.meta().key.name.clone())));
    }
}
