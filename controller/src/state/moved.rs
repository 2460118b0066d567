//! The jobs that MultiKueue moves, and the inputs of the decisions about their Workloads.

use larder_api::training_job::checked::Queueing;
use larder_api::training_job::conditions::JobReason;
use larder_kube::key::Key;

use super::State;
use crate::jobs::kueue::messages::absent;
use crate::jobs::kueue::moved::{Outcome, Situation, decide};
use crate::jobs::kueue::priority::Classes;
use crate::jobs::kueue::wanted::{Asking, Wanted};
use crate::jobs::objects::JobObject;
use crate::jobs::refusal::Refusal;
use crate::jobs::render::Rendered;
use crate::jobs::validate;
use crate::time::Seconds;
use crate::work_queue::Work;

impl State {
    /// The work about all jobs that MultiKueue moves.
    pub(super) fn moved_jobs(&self) -> impl Iterator<Item = Work> {
        let moved = self.jobs.jobs.iter().filter(|object| object.is_moved() && !object.meta.deleting);
        moved.map(|object| Work::Moved(object.meta.key.clone()))
    }

    /// The decision about a job that MultiKueue moves.
    pub fn moved(&self, key: &Key, now: Seconds) -> Outcome {
        let is_moved = |object: &&JobObject| object.is_moved() && !object.meta.deleting;
        let Some(object) = self.jobs.jobs.get(key).filter(is_moved) else { return Outcome::default() };
        let Ok(job) = &object.job else { return Outcome::default() };
        let Queueing::Kueue(queue) = &job.queueing else { return Outcome::default() };
        let presence = &self.kueue.presence;
        // Its Workload may merely be unknown, or another cluster may run the job although Kueue is gone here.
        if !presence.is_settled() || presence.is_unknown() || !presence.is_there() && object.has_pods_elsewhere() {
            return Outcome::default();
        }
        decide(&Situation {
            now,
            version: self.kueue.version,
            object,
            job,
            queue,
            workload: self.kueue.of_job(&Key::new(&key.namespace, &object.workload())),
            wanted: &|| self.wanted(now, object, queue),
            keep_ended_jobs: self.settings.keep_ended_jobs,
        })
    }

    /// The Workload of a job that MultiKueue moves.
    fn wanted(&self, now: Seconds, object: &JobObject, queue: &str) -> Result<Wanted, Refusal> {
        let waits = |why: String| Refusal::new(JobReason::KueueDecides, why);
        if !self.kueue.presence.is_there() {
            return Err(waits(absent(queue, false)));
        }
        let job = object.job.as_ref().map_err(|error| Refusal::new(JobReason::InvalidSpec, error))?;
        let needs = self.clusters.needs.get(&object.meta.key);
        let profile = needs.ok_or_else(|| waits("its pods are not known yet".to_owned()))?.profile.as_ref();
        let profile = profile.map_err(Refusal::clone)?;
        let kind = validate::kind(&self.cluster_view(now), job)?;
        let (namespace, name) = (object.meta.key.namespace.as_str(), object.meta.key.name.as_str());
        let asking = Asking {
            rendered: Rendered { namespace, name, uid: &object.meta.uid, job, kind },
            queue,
            labels: &object.labels,
            annotations: &object.annotations,
            pods: &profile.pods,
            classes: &Classes::of(&self.kueue.classes, &self.jobs.classes),
            replaces: None,
        };
        Wanted::of(&asking, self.kueue.version).map_err(|why| waits(why.to_string()))
    }
}
