//! What is known of training jobs.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::queue::line::Priorities;

use crate::jobs::dry_run::DryRuns;
use crate::jobs::job_state::JobState;
use crate::jobs::objects::{ClassObject, JobObject, JobPod, QueueObject, TypeObject};
use crate::jobs::pod_group::known::KnownGroup;
use crate::jobs::usage::Usage;
use crate::optional_api::Presence;
use crate::time::Seconds;
use crate::warm_request::WarmRequest;
use crate::write::Write;
use larder_kube::key::Key;
use larder_kube::store::Store;

/// What is known of training jobs.
#[derive(Debug, Default)]
pub struct Jobs {
    /// Whether there are any.
    pub presence: Presence,
    pub jobs: Store<JobObject>,
    pub types: Store<TypeObject>,
    pub queues: Store<QueueObject>,
    pub classes: Store<ClassObject>,
    /// What they mean for jobs.
    pub priorities: Priorities,
    /// Whether the scheduler has gangs.
    pub gangs: Presence,
    /// The API server drops the groups of pods.
    pub drops_groups: bool,
    /// The PodGroups of jobs.
    pub groups: Store<KnownGroup>,
    /// The jobs that this controller runs.
    pub job_states: BTreeMap<Key, JobState>,
    /// What the API server says of pods in dry runs.
    pub dry_runs: DryRuns,
    /// What keeps it from an answer, by the hash of pod specs.
    pub unanswered: BTreeMap<String, String>,
    /// The data that jobs request, by dataset.
    pub warm_requests: BTreeMap<Key, Vec<WarmRequest>>,
    /// Their writes that wait to be executed.
    pub ready: BTreeMap<Key, Vec<Write>>,
    /// The status of queues as it should be.
    pub queue_status: BTreeMap<String, larder_api::QueueStatus>,
    /// The pods of each job.
    pub pods: BTreeMap<Key, BTreeSet<Key>>,
    /// Those of them that have not ended.
    pub live: BTreeSet<Key>,
    /// What pods take of nodes.
    pub usage: Usage,
}

impl Jobs {
    /// There are news of a job.
    pub fn wake(&mut self, job: &Key) {
        if let Some(job_state) = self.job_states.get_mut(job) {
            job_state.sleeps_until = Seconds::default();
        }
    }

    /// The PriorityClasses have changed.
    pub fn rank(&mut self) {
        let parts = |class: &ClassObject| (class.meta.key.name.clone(), class.value, class.is_default);
        self.priorities = Priorities::new(self.classes.iter().map(parts));
    }

    /// The pods of a job have changed.
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
