//! Which events concern training jobs, and what a round changes in the state.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::names::SETTINGS;
use larder_api::settings::Flavor;
use larder_api::training_job::checked::{CheckedJob, Queueing};

use super::State;
use super::watched::{Watched, kept};
use crate::datasets::input::Refusals;
use crate::jobs::cluster_view::ClusterView;
use crate::jobs::dry_run::{self, DryRun};
use crate::jobs::kueue::decide::abandon;
use crate::jobs::objects::{ClassObject, JobObject, QueueObject, TypeObject};
use crate::jobs::pod_decisions::{Decision, Decisions, pending};
use crate::jobs::pod_group::known::KnownGroup;
use crate::jobs::queues::Report;
use crate::jobs::read;
use crate::jobs::round::{Round, round};
use crate::jobs::sweep;
use crate::objects::by_uid;
use crate::time::Seconds;
use crate::warm_request::WarmRequest;
use crate::work_queue::Work;
use crate::write::{Change, Write};
use larder_kube::api::DynamicObject;
use larder_kube::key::Key;
use larder_kube::kinds::{Kind, Part};
use larder_kube::store::{Put, Store, Stored};
use serde_json::{Error, Value, json};
use tracing::{info, warn};

impl Watched for JobObject {
    kept!(jobs.jobs, read::training_job);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        let key = self.meta.key.clone();
        state.jobs.wake(&key);
        put(self, state, work);
        work.extend(state.jobs.jobs.get(&key).and_then(|job| state.sweep_of(job)).map(Work::Sweep));
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        let removed = state.jobs.jobs.take(key);
        if let Some(sweep) = &removed {
            // While their sweep is there, trials that have ended stay.
            let trials: Vec<Key> =
                state.jobs.jobs.of(&by_uid(&sweep.meta.uid)).map(|trial| trial.meta.key.clone()).collect();
            trials.iter().for_each(|trial| state.jobs.wake(trial));
        }
        work.extend(removed.and_then(|job| state.sweep_of(&job)).map(Work::Sweep));
        state.jobs.refused_trials.remove(key);
        work.push(Work::Jobs);
    }
}

impl Watched for TypeObject {
    kept!(jobs.types, read::job_type);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        work.extend([Work::JobType(self.meta.key.name.clone()), Work::JobTypes]);
        state.jobs.wake_all();
        put(self, state, work);
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        state.jobs.types.take(key);
        state.jobs.wake_all();
        work.extend([Work::JobTypes, Work::Jobs]);
    }
}

impl Watched for QueueObject {
    kept!(jobs.queues, read::queue);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        work.push(Work::JobQueue(self.meta.key.name.clone()));
        let spec = (self.meta.uid.clone(), self.generation);
        let before = state.jobs.queues.get(&self.meta.key).map(|before| (before.meta.uid.clone(), before.generation));
        put(self, state, work);
        // Its status changes with every job that starts or ends.
        if before != Some(spec) {
            state.jobs.rank();
        }
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        state.jobs.queues.take(key);
        state.jobs.rank();
        work.push(Work::Jobs);
    }
}

impl Watched for ClassObject {
    kept!(jobs.classes, read::priority_class);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        put(self, state, work);
        state.jobs.rank();
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        state.jobs.classes.take(key);
        state.jobs.rank();
        work.push(Work::Jobs);
    }
}

impl Watched for KnownGroup {
    kept!(jobs.groups, read::pod_group);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        let before = state.jobs.groups.get(&self.meta().key).map(Stored::belongs_to);
        before.into_iter().flatten().chain(self.belongs_to()).for_each(|job| state.jobs.wake(&job));
        put(self, state, work);
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        let removed = state.jobs.groups.take(key);
        removed.iter().flat_map(Stored::belongs_to).for_each(|job| state.jobs.wake(&job));
        work.push(Work::Jobs);
    }
}

/// Stores an object, and schedules a round if it has changed.
fn put<T: Watched>(object: T, state: &mut State, work: &mut Vec<Work>) {
    if T::store_mut(state).put(object) != Put::Unchanged {
        work.push(Work::Jobs);
    }
}

impl State {
    /// Removes everything known about training jobs, because the cluster no longer supports them.
    pub(super) fn forget_jobs(&mut self, work: &mut Vec<Work>) {
        for kind in Kind::OF_JOBS {
            for key in self.keys(kind) {
                self.remove(kind, &key, work);
            }
        }
        self.jobs.job_states.clear();
        self.request_data(BTreeMap::new(), work);
        self.clusters.jobs.clear();
        self.jobs.presence.becomes_absent();
    }

    /// Records that the scheduler no longer has gang scheduling.
    pub(super) fn forget_gangs(&mut self) {
        self.jobs.groups = Store::default();
        self.jobs.gangs.becomes_absent();
    }

    /// Handles the appearance or disappearance of an optional API part that jobs may wait for.
    pub(super) fn part_changed(&mut self, part: Option<Part>, work: &mut Vec<Work>) {
        if part.is_some() && self.jobs.presence.is_there() {
            self.jobs.wake_all();
            // JobTypes that were listed before the part was complete have no effect until now.
            work.extend([Work::Jobs, Work::JobTypes]);
        }
    }

    /// The initial work of training jobs. A round comes first, because the data that jobs request affects the decisions
    /// about datasets.
    pub(super) fn everything_of_jobs(&self, work: &mut Vec<Work>) {
        if self.jobs.presence.is_there() {
            work.extend([Work::Jobs, Work::JobTypes]);
            work.extend(self.jobs.types.iter().map(|of_type| Work::JobType(of_type.meta.key.name.clone())));
            let sweeps = self.jobs.jobs.iter().filter(|job| job.trial_spec.is_some());
            work.extend(sweeps.map(|job| Work::Sweep(job.meta.key.clone())));
        }
    }

    /// Handles a change of nodes, NodeCaches or Datasets that jobs, or pods in queues, may wait for.
    pub(super) fn data_changed(&self, work: &mut Vec<Work>) {
        if !self.jobs.job_states.is_empty() || !self.jobs.queued.is_empty() {
            work.push(Work::Jobs);
        }
    }

    /// Runs a round over all jobs. Returns when the next round is due if nothing changes before.
    pub fn round(&mut self, now: Seconds, draw: &dyn Fn() -> String, work: &mut Vec<Work>) -> Option<Seconds> {
        if !self.jobs.presence.is_there() {
            return None;
        }
        self.jobs.usage.refresh(&self.pods);
        self.count_elsewhere(now);
        for (zone, has_begun) in self.jobs.outages.refresh(&self.nodes, now) {
            self.jobs.wake_all();
            if has_begun {
                warn!(%zone, "so many nodes of the zone are not ready that none of them counts as lost");
            } else {
                info!(%zone, "nodes of the zone that are not ready may count as lost again");
            }
        }
        let mut job_states = std::mem::take(&mut self.jobs.job_states);
        let mut dry_runs = std::mem::take(&mut self.jobs.dry_runs);
        let Round { writes, dry_runs: asked, warm_requests, queues, pods, pod_waits, again_at } =
            round(&self.cluster_view(now), &mut job_states, &mut dry_runs, draw);
        (self.jobs.job_states, self.jobs.dry_runs) = (job_states, dry_runs);
        work.extend(asked.into_iter().map(Work::DryRun));
        for (key, writes) in writes {
            work.push(Work::Job(key.clone()));
            self.jobs.ready.insert(key, writes);
        }
        self.request_data(warm_requests, work);
        self.report_queues(queues, work);
        self.decide_about(pods, work);
        self.jobs.pod_waits = pod_waits;
        let abandoned = self.kueue.of_jobs.values().flatten().filter(|key| self.abandoned(key, now).is_some());
        work.extend(abandoned.cloned().map(Work::Abandoned));
        let ends_own_pods = |job: &Key, uid: &str| {
            self.jobs.jobs.get(job).is_some_and(|job| job.meta.uid == uid && job.ends_own_pods())
        };
        let orphans = self.jobs.live.iter().filter(|((job, uid), _)| !ends_own_pods(job, uid));
        let orphans = orphans.flat_map(|(_, pods)| pods).filter(|key| self.orphaned_pod(key, now).is_some());
        let orphans: BTreeSet<Key> = orphans.cloned().collect();
        // Those of earlier rounds are in the queue, which waits longer after each write that failed.
        work.extend(orphans.difference(&self.jobs.orphans).cloned().map(Work::OrphanedPod));
        self.jobs.orphans = orphans;
        self.choose_clusters(now, work);
        work.extend(self.moved_jobs());
        let nominated_at = self.nominate_clusters(now, work);
        again_at.into_iter().chain(nominated_at).min()
    }

    /// The sweep that a job is, or is a trial of.
    fn sweep_of(&self, job: &JobObject) -> Option<Key> {
        if job.trial_spec.is_some() {
            return Some(job.meta.key.clone());
        }
        let (key, uid) = job.trial_of.as_ref()?;
        self.jobs.jobs.get(key).filter(|sweep| sweep.meta.uid == *uid).map(|sweep| sweep.meta.key.clone())
    }

    /// Decides about a sweep; `None` if it is none that this controller runs.
    pub fn sweep(&self, key: &Key, now: Seconds) -> Option<sweep::Decision> {
        let object = self.jobs.jobs.get(key).filter(|object| object.is_ours() && object.trial_spec.is_some())?;
        let job = match &object.job {
            Ok(job) => job,
            Err(error) => return Some(sweep::refuse(object, error, now)),
        };
        let view = sweep::View {
            now,
            object,
            job,
            sweep: job.sweep.as_ref()?,
            owned: self.jobs.jobs.of(&by_uid(&object.meta.uid)).collect(),
            keep_ended_jobs: self.settings.keep_ended_jobs,
            refused: self.jobs.refused_trials.get(key).map(|(trial, why)| (trial, why.as_str())),
        };
        Some(sweep::decide(&view))
    }

    /// Records which trials of a sweep the API server did not create.
    pub fn trials_written(&mut self, key: &Key, refused: &Refusals) {
        match refused.iter().next() {
            Some(((_, trial), why)) => {
                self.jobs.refused_trials.insert(key.clone(), (trial.clone(), why.clone()));
            }
            None => _ = self.jobs.refused_trials.remove(key),
        }
    }

    pub(super) fn cluster_view(&self, now: Seconds) -> ClusterView<'_> {
        ClusterView {
            now,
            image: &self.settings.image,
            wait_for_nodes: self.settings.wait_for_nodes,
            keep_ended_jobs: self.settings.keep_ended_jobs,
            node_lost_after: self.settings.node_lost_after,
            nodes: &self.nodes,
            caches: &self.caches,
            datasets: &self.datasets,
            pods: &self.pods,
            jobs: &self.jobs,
            kueue: &self.kueue,
            flavors: self.flavors(),
            leases: &self.clusters.leases,
            void: &self.clusters.void,
            elsewhere: &self.clusters.counted,
        }
    }

    /// The flavors of nodes in the administrator's settings.
    fn flavors(&self) -> &[Flavor] {
        self.larder_settings.get(&Key::cluster(SETTINGS)).map_or(&[], |settings| &settings.flavors)
    }

    /// The next write for a Workload whose job was deleted or has left Kueue's queues. The quota of a deleted job is
    /// free once its pods have ended.
    pub fn abandoned(&self, key: &Key, now: Seconds) -> Option<Write> {
        let workload = self.kueue.of_job(key)?;
        let owner = workload.owner.as_ref()?;
        let job_key = Key::new(&key.namespace, &owner.name);
        let job = self.jobs.jobs.get(&job_key).filter(|job| job.meta.uid == owner.uid);
        let is_kept = |job: &JobObject| {
            let is_queued = |job: &CheckedJob| matches!(job.queueing, Queueing::Kueue(_));
            job.is_of_others && !job.is_of_multikueue || !job.meta.deleting && job.job.as_ref().map_or(true, is_queued)
        };
        if job.is_some_and(is_kept) {
            return None;
        }
        // A job that has left the queue otherwise goes on, and its pods count elsewhere.
        let ends = |job: &JobObject| job.meta.deleting || job.job.as_ref().is_ok_and(|job| job.suspend);
        if job.is_none_or(ends) && self.cluster_view(now).has_live_pods(&job_key, &owner.uid) {
            return None;
        }
        abandon(workload, self.kueue.version)
    }

    /// The deletion of a pod that no step of a job ends. Its job left it behind (`kubectl delete --cascade=orphan`): the
    /// garbage collector deletes pods that still have their job as owner. Or its job is of another home whose lease is
    /// too old, and makes no steps.
    pub fn orphaned_pod(&self, key: &Key, now: Seconds) -> Option<Write> {
        let pod = self.pods.get(key).filter(|pod| !pod.meta.deleting)?;
        let of_job = pod.of_job.as_ref()?;
        let ends = match self.jobs.jobs.get(&of_job.job).filter(|job| job.meta.uid == of_job.uid) {
            None => of_job.is_orphan,
            Some(job) if job.ends_own_pods() => false,
            Some(job) => self.cluster_view(now).runs_until(job).is_some_and(|until| until <= now),
        };
        ends.then(|| Write::new(Kind::Pod, &key.namespace, &key.name, Change::Delete(pod.meta.uid.clone())))
    }

    /// Records what was decided about pods of other programs, and forgets what is visible in them by now.
    fn decide_about(&mut self, pods: Decisions, work: &mut Vec<Work>) {
        // Earlier decisions are in the queue, which waits longer after each write that failed.
        work.extend(pods.keys().cloned().map(Work::QueuedPod));
        let mut decisions = std::mem::take(&mut self.jobs.pod_decisions);
        decisions.extend(pods);
        decisions.retain(|key, decided| self.pods.get(key).is_some_and(|pod| pending(Some(&*decided), pod).is_some()));
        self.jobs.pod_decisions = decisions;
    }

    /// The write of a decision about a pod of another program, if it is not visible in the pod yet.
    pub fn queued_pod(&self, key: &Key) -> Option<Write> {
        let pod = self.pods.get(key)?;
        let change = match pending(self.jobs.pod_decisions.get(key), pod)? {
            Decision::Ended(_) => Change::Delete(pod.meta.uid.clone()),
            Decision::Released(flavor) => {
                let gates = pod.queued.as_ref()?.gates.as_ref()?;
                let gates: Vec<Value> = gates.iter().map(|name| json!({"name": name})).collect();
                let nodes = self.flavors().iter().find(|known| known.name == *flavor);
                let selector = nodes.map(|flavor| flavor.node_labels.clone()).unwrap_or_default();
                let spec = json!({"schedulingGates": gates, "nodeSelector": selector});
                Change::Merge(json!({"metadata": {"uid": pod.meta.uid}, "spec": spec}))
            }
        };
        Some(Write::new(Kind::Pod, &key.namespace, &key.name, change))
    }

    /// Replaces the warm requests of jobs, and schedules each dataset whose requests have changed.
    fn request_data(&mut self, requests: BTreeMap<Key, Vec<WarmRequest>>, work: &mut Vec<Work>) {
        let before = std::mem::replace(&mut self.jobs.warm_requests, requests);
        let now = &self.jobs.warm_requests;
        let changed = before.iter().filter(|(key, requests)| now.get(*key) != Some(*requests)).map(|(key, _)| key);
        let added = now.keys().filter(|key| !before.contains_key(*key));
        work.extend(changed.chain(added).cloned().map(Work::Dataset));
    }

    fn report_queues(&mut self, queues: BTreeMap<String, Report>, work: &mut Vec<Work>) {
        let before = std::mem::replace(&mut self.jobs.queue_reports, queues);
        let now = &self.jobs.queue_reports;
        work.extend(
            now.iter()
                .filter(|(name, now)| before.get(*name) != Some(*now))
                .map(|(name, _)| Work::JobQueue(name.clone())),
        );
    }

    /// The requests of a dry run. `None`: the job for which it was to be made has other pods by now. The next round
    /// chooses another job with such pods, if one exists.
    pub fn dry_run(&mut self, spec_hash: &str) -> Option<Vec<Write>> {
        let Some(asker) = self.jobs.dry_runs.get(spec_hash).and_then(DryRun::asker) else { return Some(Vec::new()) };
        let requests = self.dry_run_requests(asker, spec_hash);
        if requests.is_none() {
            self.jobs.dry_runs.remove(spec_hash);
        }
        requests
    }

    /// The dry-run requests of a job, if its pod-spec hash has not changed.
    fn dry_run_requests(&self, key: &Key, spec_hash: &str) -> Option<Vec<Write>> {
        let object = self.jobs.jobs.get(key)?;
        let of_type = self.jobs.types.get(&Key::cluster(&object.job.as_ref().ok()?.kind))?;
        let job_state = self.jobs.job_states.get(key).filter(|job_state| job_state.uid == object.meta.uid)?;
        let profile = job_state.profile.as_ref().filter(|profile| profile.is_of(object, of_type))?;
        let kind = of_type.kind.as_ref().ok().filter(|_| profile.spec_hash == spec_hash)?;
        Some(dry_run::requests(object, kind, &self.settings.image))
    }

    /// Records why a dry run got no answer; `None` clears it. Returns true if this is a change.
    pub fn unanswered(&mut self, spec_hash: &str, why: Option<&str>) -> bool {
        let dry_runs = &self.jobs.dry_runs;
        let unanswered = &mut self.jobs.unanswered;
        unanswered.retain(|spec_hash, _| dry_runs.contains_key(spec_hash));
        let before = match why {
            Some(why) => unanswered.insert(spec_hash.to_owned(), why.to_owned()),
            None => unanswered.remove(spec_hash),
        };
        before.as_deref() != why
    }

    /// Records the answer to a dry run. `refusal` is the API server's message if it rejected the pods.
    pub fn dry_run_answered(&mut self, spec_hash: &str, refusal: Option<&str>) {
        let Some(dry_run) = self.jobs.dry_runs.get_mut(spec_hash) else { return };
        if let Some(asker) = dry_run.asker() {
            *dry_run = DryRun::answered(&asker.clone(), refusal);
        }
    }

    /// The longest pause before a refused dry run is repeated, in milliseconds. With many of them, the pause is so long
    /// that the API server gets ten a second.
    pub fn longest_dry_run_pause(&self) -> u64 {
        let refused = self.jobs.dry_runs.values().filter(|dry_run| matches!(dry_run, DryRun::Refused(..))).count();
        100 * refused as u64
    }

    /// Records that the API server did not create a job's pod because a ResourceQuota is used up. Returns the job's
    /// pod-spec hash.
    pub fn not_created(&mut self, key: &Key, quota: &str) -> Option<String> {
        let spec_hash = self.jobs.job_states.get(key)?.profile.as_ref()?.spec_hash.clone();
        self.jobs.dry_runs.insert(spec_hash.clone(), DryRun::QuotaUsed(key.clone(), quota.to_owned()));
        Some(spec_hash)
    }
}

#[cfg(test)]
mod tests;
