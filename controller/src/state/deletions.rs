//! What the controller's own writes say of objects that come and go beside what the watches say, which may be earlier or
//! later.

use super::State;
use crate::work_queue::Work;
use crate::write::Deletion;
use larder_kube::key::{Key, Meta};
use larder_kube::kinds::{Kind, KueueKind};

impl State {
    /// The watch of a kind has told of everything up to this version.
    pub(super) fn saw(&mut self, kind: Kind, version: u64) {
        let seen = self.seen.entry(kind).or_default();
        *seen = version.max(*seen);
    }

    /// True if the watch has told of a written object already, and that it is gone: versions grow over all objects of a
    /// kind.
    pub(super) fn is_old_news(&self, kind: Kind, meta: &Meta) -> bool {
        !self.has(kind, &meta.key) && self.seen.get(&kind).is_some_and(|seen| *seen >= meta.version)
    }

    /// The controller has deleted the object with this uid. Otherwise it would do so again and again until the watch
    /// tells.
    pub fn deleted(&mut self, kind: Kind, key: &Key, uid: &str, deletion: Deletion) -> Vec<Work> {
        let mut work = Vec::new();
        let there = match kind {
            Kind::Job => self.batch_jobs.get(key).map(|job| &job.meta.uid),
            Kind::Volume => self.volumes.get(key).map(|volume| &volume.meta.uid),
            Kind::Claim => self.claims.get(key).map(|claim| &claim.meta.uid),
            Kind::Pod => self.pods.get(key).map(|pod| &pod.meta.uid),
            Kind::TrainingJob => self.jobs.jobs.get(key).map(|job| &job.meta.uid),
            Kind::PodGroup => self.jobs.groups.get(key).map(|group| &group.meta.uid),
            Kind::Kueue(KueueKind::Workload, _) => self.kueue.of_job(key).map(|workload| &workload.meta.uid),
            // The controller deletes nothing else.
            _ => None,
        };
        if there.is_none_or(|there| there != uid) {
            return work;
        }
        match (deletion, kind) {
            (Deletion::NotFound, kind) => self.remove(kind, key, &mut work),
            (Deletion::Accepted, Kind::Job) => {
                self.batch_jobs.mark_deleting(key, uid);
                self.mark_warming(key);
            }
            (Deletion::Accepted, Kind::Pod) => self.pod_leaves(key, uid, &mut work),
            (Deletion::Accepted, Kind::TrainingJob) => self.jobs.jobs.mark_deleting(key, uid),
            (Deletion::Accepted, Kind::PodGroup) => self.jobs.groups.mark_deleting(key, uid),
            (Deletion::Accepted, Kind::Kueue(..)) => self.workload_leaves(key, &mut work),
            (Deletion::Accepted, Kind::Volume) => self.volumes.mark_deleting(key, uid),
            (Deletion::Accepted, _) => self.claims.mark_deleting(key, uid),
        }
        work
    }
}
