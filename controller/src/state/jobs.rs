//! Which news are about training jobs, and what a round of them changes.

use std::collections::BTreeMap;

use larder_api::QueueStatus;
use larder_api::training_job::checked::{CheckedJob, Queueing};

use super::State;
use super::watched::{Watched, kept};
use crate::jobs::cluster_view::Scene;
use crate::jobs::dry_run::{Trial, tries};
use crate::jobs::kueue::decide::abandon;
use crate::jobs::objects::{ClassObject, JobObject, QueueObject, TypeObject};
use crate::jobs::pod_group::known::KnownGroup;
use crate::jobs::read;
use crate::jobs::round::{Round, round};
use crate::kueue::wish::Wish;
use crate::work_queue::Work;
use crate::write::Write;
use larder_kube::api::DynamicObject;
use larder_kube::key::Key;
use larder_kube::kinds::{Kind, Part};
use larder_kube::store::{Put, Store};
use serde_json::Error;

impl Watched for JobObject {
    kept!(jobs.jobs, read::training_job);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        state.jobs.wake(&self.meta.key);
        put(self, state, work);
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        state.jobs.jobs.take(key);
        work.push(Work::Jobs);
    }
}

impl Watched for TypeObject {
    kept!(jobs.types, read::job_type);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        work.extend([Work::JobType(self.meta.key.name.clone()), Work::JobTypes]);
        put(self, state, work);
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        state.jobs.types.take(key);
        work.extend([Work::JobTypes, Work::Jobs]);
    }
}

impl Watched for QueueObject {
    kept!(jobs.queues, read::queue);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        work.push(Work::JobQueue(self.meta.key.name.clone()));
        put(self, state, work);
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        state.jobs.queues.take(key);
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
        put(self, state, work);
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        state.jobs.groups.take(key);
        work.push(Work::Jobs);
    }
}

/// Keeps an object, and looks at all jobs if it differs from the one that was known.
fn put<T: Watched>(object: T, state: &mut State, work: &mut Vec<Work>) {
    if T::store_mut(state).put(object) != Put::Unchanged {
        work.push(Work::Jobs);
    }
}

impl State {
    /// This cluster has no training jobs: what was known of them is over.
    pub(super) fn forget_jobs(&mut self, work: &mut Vec<Work>) {
        for kind in Kind::OF_JOBS {
            for key in self.keys(kind) {
                self.remove(kind, &key, work);
            }
        }
        self.jobs.memories.clear();
        self.wish(BTreeMap::new(), work);
        self.jobs.presence.becomes_absent();
    }

    /// The scheduler has no gangs any more.
    pub(super) fn forget_gangs(&mut self) {
        self.jobs.groups = Store::default();
        self.jobs.gangs.becomes_absent();
    }

    /// A part of the API has come or gone that jobs may wait for.
    pub(super) fn part_changed(&self, part: Option<Part>, work: &mut Vec<Work>) {
        if part.is_some() && self.jobs.presence.is_there() {
            work.push(Work::Jobs);
        }
    }

    /// What is looked at when everything is. Jobs come first: what they wish decides about datasets.
    pub(super) fn everything_of_jobs(&self, work: &mut Vec<Work>) {
        if self.jobs.presence.is_there() {
            work.extend([Work::Jobs, Work::JobTypes]);
            work.extend(self.jobs.types.iter().map(|of_type| Work::JobType(of_type.meta.key.name.clone())));
        }
    }

    /// Caches of nodes or datasets have changed, which jobs may wait for.
    pub(super) fn data_changed(&self, work: &mut Vec<Work>) {
        if !self.jobs.memories.is_empty() {
            work.push(Work::Jobs);
        }
    }

    /// Looks at all jobs. Returns when to look again, if nothing happens before.
    pub fn round(&mut self, now: i64, draw: &dyn Fn() -> String, work: &mut Vec<Work>) -> Option<i64> {
        if !self.jobs.presence.is_there() {
            return None;
        }
        self.jobs.usage.refresh(&self.pods);
        let mut memories = std::mem::take(&mut self.jobs.memories);
        let mut trials = std::mem::take(&mut self.jobs.trials);
        let scene = Scene {
            now,
            image: &self.settings.image,
            nodes: &self.nodes,
            caches: &self.caches,
            datasets: &self.datasets,
            pods: &self.pods,
            jobs: &self.jobs,
            kueue: &self.kueue,
        };
        let Round { writes, tries, wishes, queues, again_at } = round(&scene, &mut memories, &mut trials, draw);
        (self.jobs.memories, self.jobs.trials) = (memories, trials);
        work.extend(tries.into_iter().map(Work::Trial));
        for (key, writes) in writes {
            work.push(Work::Job(key.clone()));
            self.jobs.ready.insert(key, writes);
        }
        self.wish(wishes, work);
        self.tell_queues(queues, work);
        let abandoned = self.kueue.of_jobs.values().flatten().filter(|key| self.abandoned(key).is_some());
        work.extend(abandoned.cloned().map(Work::Abandoned));
        again_at
    }

    /// The next write for a Workload whose job is gone, or in no queue of Kueue's any longer.
    pub fn abandoned(&self, key: &Key) -> Option<Write> {
        let workload = self.kueue.of_job(key)?;
        let owner = workload.owner.as_ref()?;
        let job = self.jobs.jobs.get(&Key::new(&key.namespace, &owner.name)).filter(|job| job.meta.uid == owner.uid);
        let is_kept = |job: &JobObject| {
            let is_queued = |job: &CheckedJob| matches!(job.queueing, Queueing::Kueue(_));
            job.is_of_others || !job.meta.deleting && job.job.as_ref().map_or(true, is_queued)
        };
        if job.is_some_and(is_kept) {
            return None;
        }
        abandon(workload, self.kueue.version)
    }

    /// Jobs wish other data now.
    fn wish(&mut self, wishes: BTreeMap<Key, Vec<Wish>>, work: &mut Vec<Work>) {
        let before = std::mem::replace(&mut self.jobs.wishes, wishes);
        let now = &self.jobs.wishes;
        let changed = before.iter().filter(|(key, wishes)| now.get(*key) != Some(*wishes)).map(|(key, _)| key);
        let added = now.keys().filter(|key| !before.contains_key(*key));
        work.extend(changed.chain(added).cloned().map(Work::Dataset));
    }

    fn tell_queues(&mut self, queues: BTreeMap<String, QueueStatus>, work: &mut Vec<Work>) {
        let before = std::mem::replace(&mut self.jobs.queue_status, queues);
        let now = &self.jobs.queue_status;
        work.extend(
            now.iter()
                .filter(|(name, now)| before.get(*name) != Some(*now))
                .map(|(name, _)| Work::JobQueue(name.clone())),
        );
    }

    /// The pods that the API server is to be asked about. `None`: the job for which it is asked has others by now, so that another
    /// one that has such pods is to ask.
    pub fn trial(&mut self, likeness: &str) -> Option<Vec<Write>> {
        let Some(asker) = self.jobs.trials.get(likeness).and_then(Trial::asker) else { return Some(Vec::new()) };
        let tries = self.tries(asker, likeness);
        if tries.is_none() {
            self.jobs.trials.remove(likeness);
        }
        tries
    }

    /// The pods of a job, if they are of this likeness.
    fn tries(&self, key: &Key, likeness: &str) -> Option<Vec<Write>> {
        let object = self.jobs.jobs.get(key)?;
        let of_type = self.jobs.types.get(&Key::cluster(&object.job.as_ref().ok()?.kind))?;
        let memory = self.jobs.memories.get(key).filter(|memory| memory.uid == object.meta.uid)?;
        let profile = memory.profile.as_ref().filter(|profile| profile.is_of(object, of_type))?;
        let kind = of_type.kind.as_ref().ok().filter(|_| profile.likeness == likeness)?;
        Some(tries(object, kind, &self.settings.image))
    }

    /// The API server has been asked about pods of this likeness, and this has kept it from an answer, if anything has. True if that
    /// is news.
    pub fn unanswered(&mut self, likeness: &str, why: Option<&str>) -> bool {
        let trials = &self.jobs.trials;
        let unanswered = &mut self.jobs.unanswered;
        unanswered.retain(|likeness, _| trials.contains_key(likeness));
        let before = match why {
            Some(why) => unanswered.insert(likeness.to_owned(), why.to_owned()),
            None => unanswered.remove(likeness),
        };
        before.as_deref() != why
    }

    /// The API server's answer: nothing speaks against the pods, or these words.
    pub fn tried(&mut self, likeness: &str, refusal: Option<&str>) {
        let Some(trial) = self.jobs.trials.get_mut(likeness) else { return };
        if let Some(asker) = trial.asker() {
            *trial = Trial::answered(&asker.clone(), refusal);
        }
    }

    /// The API server did not make a pod of a job, for want of quota. Returns the likeness of its pods.
    pub fn not_made(&mut self, key: &Key, quota: &str) -> Option<String> {
        let likeness = self.jobs.memories.get(key)?.profile.as_ref()?.likeness.clone();
        self.jobs.trials.insert(likeness.clone(), Trial::Short(key.clone(), quota.to_owned()));
        Some(likeness)
    }
}

#[cfg(test)]
mod tests;
