//! Everything that the controller knows about training jobs.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::queue::line::Priorities;

use crate::jobs::dry_run::DryRuns;
use crate::jobs::job_state::{JobState, Rest};
use crate::jobs::objects::{ClassObject, JobObject, QueueObject, TypeObject};
use crate::jobs::outages::Outages;
use crate::jobs::pod_decisions::Decisions;
use crate::jobs::pod_group::known::KnownGroup;
use crate::jobs::pod_waits::PodWaits;
use crate::jobs::queues::Report;
use crate::jobs::usage::Usage;
use crate::objects::{JobPod, Pod};
use crate::optional_api::Presence;
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
    /// How often all jobs were woken: see [`Rest::wakes`].
    pub wakes: u64,
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
    /// The pods of jobs that have not ended, by the name and the uid of the job.
    pub live: BTreeMap<(Key, String), BTreeSet<Key>>,
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
    /// Wakes a job that rests, because something about it has changed.
    pub fn wake(&mut self, job: &Key) {
        if let Some(job_state) = self.job_states.get_mut(job) {
            job_state.rest = None;
        }
    }

    /// Wakes all jobs that rest, because something has changed that any job may depend on.
    pub fn wake_all(&mut self) {
        self.wakes += 1;
    }

    /// Wakes the jobs that have pods on a node.
    pub fn wake_on(&mut self, node: &str, pods: &Store<Pod>) {
        let here = self.usage.pods_on(node).filter_map(|key| pods.get(key)?.of_job.as_ref());
        for of_job in here {
            if let Some(job_state) = self.job_states.get_mut(&of_job.job) {
                job_state.rest = None;
            }
        }
    }

    /// Wakes the jobs that read a dataset.
    pub fn wake_readers(&mut self, dataset: &Key) {
        for job_state in self.job_states.values_mut() {
            let reads = |rest: &Rest| rest.counted.iter().any(|job| job.datasets.iter().any(|(key, _)| key == dataset));
            if job_state.rest.as_ref().is_some_and(reads) {
                job_state.rest = None;
            }
        }
    }

    /// Applies changed PriorityClasses and queues.
    pub fn rank(&mut self) {
        let parts = |class: &ClassObject| (class.meta.key.name.clone(), class.value, class.is_default);
        let queues = self.queues.iter().filter_map(|object| Some((&object.meta.key, object.queue.as_ref().ok()?)));
        self.priorities = Priorities::new(self.classes.iter().map(parts))
            .with_queues(queues.map(|(key, queue)| (key.name.as_str(), &queue.priorities)));
        self.wake_all();
    }

    /// Applies a change of a job's pod.
    pub fn pod_changed(&mut self, pod: &Key, before: Option<&JobPod>, now: Option<&JobPod>) {
        let live = |of_job: Option<&JobPod>| {
            let of_job = of_job.filter(|of_job| !of_job.stage.has_ended())?;
            Some((of_job.job.clone(), of_job.uid.clone()))
        };
        moved(&mut self.live, pod, live(before), live(now));
        let job = |of_job: Option<&JobPod>| of_job.map(|of_job| of_job.job.clone());
        moved(&mut self.pods, pod, job(before), job(now));
    }
}

/// Moves a pod from one group to another. `None`: it was, or is, in none.
fn moved<G: Ord>(groups: &mut BTreeMap<G, BTreeSet<Key>>, pod: &Key, before: Option<G>, now: Option<G>) {
    if before == now {
        return;
    }
    if let Some(group) = before
        && let Some(pods) = groups.get_mut(&group)
    {
        pods.remove(pod);
        if pods.is_empty() {
            groups.remove(&group);
        }
    }
    if let Some(group) = now {
        groups.entry(group).or_default().insert(pod.clone());
    }
}
