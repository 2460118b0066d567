//! Everything that the controller knows about training jobs.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::queue::line::Priorities;

use crate::jobs::dry_run::DryRuns;
use crate::jobs::job_state::JobState;
use crate::jobs::objects::{ClassObject, JobObject, QueueObject, TypeObject};
use crate::jobs::outages::Outages;
use crate::jobs::pod_decisions::Decisions;
use crate::jobs::pod_group::known::KnownGroup;
use crate::jobs::pod_waits::PodWaits;
use crate::jobs::queues::Report;
use crate::jobs::usage::Usage;
use crate::objects::JobPod;
use crate::optional_api::Presence;
use crate::time::Seconds;
use crate::warm_request::WarmRequest;
use crate::write::Write;
use larder_kube::key::Key;
use larder_kube::store::Store;

#[derive(Debug, Default)]
pub struct Jobs {
    /// Whether the cluster supports training jobs.
    pub presence: Presence,
    pub jobs: Store<JobObject>,
    pub types: Store<TypeObject>,
    pub queues: Store<QueueObject>,
    pub classes: Store<ClassObject>,
    /// The PriorityClasses and their meaning for jobs.
    pub priorities: Priorities,
    /// Whether kube-scheduler has gang scheduling.
    pub gangs: Presence,
    /// The API server drops the PodGroup of pods.
    pub drops_groups: bool,
    pub groups: Store<KnownGroup>,
    /// By sweep, the trial that the API server did not create the last time, and why.
    pub refused_trials: BTreeMap<Key, (Key, String)>,
    /// The state of the jobs that this controller runs.
    pub job_states: BTreeMap<Key, JobState>,
    /// The results of dry runs.
    pub dry_runs: DryRuns,
    /// By pod-spec hash, why a dry run has no answer.
    pub unanswered: BTreeMap<String, String>,
    /// The warm requests of jobs, by dataset.
    pub warm_requests: BTreeMap<Key, Vec<WarmRequest>>,
    /// Writes of jobs that wait to be executed.
    pub ready: BTreeMap<Key, Vec<Write>>,
    /// The findings of the last round about each queue.
    pub queue_reports: BTreeMap<String, Report>,
    /// The pods of each job.
    pub pods: BTreeMap<Key, BTreeSet<Key>>,
    /// The pods of jobs that have not ended.
    pub live: BTreeSet<Key>,
    /// Those of them that their jobs have left behind, as of the last round.
    pub orphans: BTreeSet<Key>,
    /// The pods of other programs that carry the label of a queue.
    pub queued: BTreeSet<Key>,
    /// The decisions about these pods.
    pub pod_decisions: Decisions,
    /// The memory of the queues about those that wait.
    pub pod_waits: PodWaits,
    /// The room on each node that pods use.
    pub usage: Usage,
    /// The zones of which so many nodes are not ready that none is lost.
    pub outages: Outages,
}

impl Jobs {
    /// Wakes a job that sleeps, because something about it has changed.
    pub fn wake(&mut self, job: &Key) {
        if let Some(job_state) = self.job_states.get_mut(job) {
            job_state.sleeps_until = Seconds::default();
        }
    }

    /// Applies changed PriorityClasses, and changed priorities of queues.
    pub fn rank(&mut self) {
        let parts = |class: &ClassObject| (class.meta.key.name.clone(), class.value, class.is_default);
        let queues = self.queues.iter().filter_map(|object| Some((&object.meta.key, object.queue.as_ref().ok()?)));
        self.priorities = Priorities::new(self.classes.iter().map(parts))
            .with_queues(queues.map(|(key, queue)| (key.name.as_str(), &queue.priorities)));
    }

    /// Applies a change of a job's pod.
    pub fn pod_changed(&mut self, pod: &Key, before: Option<&JobPod>, now: Option<&JobPod>) {
        if now.is_some_and(|now| !now.stage.has_ended()) {
            self.live.insert(pod.clone());
        } else {
            self.live.remove(pod);
        }
        let (before, now) = (before.map(|before| &before.job), now.map(|now| &now.job));
        if before == now {
            return;
        }
        if let Some(job) = before
            && let Some(pods) = self.pods.get_mut(job)
        {
            pods.remove(pod);
            if pods.is_empty() {
                self.pods.remove(job);
            }
        }
        if let Some(job) = now {
            self.pods.entry(job.clone()).or_default().insert(pod.clone());
        }
    }
}
