//! What a step looks at: the job's terms, what was decided about it, its data and its pods.

use larder_api::training_job::KeepPods;

use super::pod::Pod;
use crate::jobs::planned::Plan;
use crate::jobs::queue::Verdict;

/// What was decided about a job since its last step. A step uses it up: no decision is taken twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decisions {
    /// What the queue decides. A decision of Kueue has the same form.
    pub verdict: Option<Verdict>,
    /// The answer to [`super::unplaced`].
    pub plan: Option<Plan>,
}

/// Everything else that a step depends on, beside the state and the time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// What the user and the type say.
    pub terms: Terms,
    /// What the scheduler says of pods that have no node.
    pub scheduler_message: Option<String>,
    /// Why the API server creates no more of its pods: a ResourceQuota is used up.
    pub shortage: Option<String>,
    /// The data that it waits for.
    pub data: Vec<Data>,
    /// All of its pods that there are, of earlier attempts too.
    pub pods: Vec<Pod>,
}

/// What the user and the job's type say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Its roles.
    pub roles: Vec<RoleTerms>,
    /// A lost pod is replaced alone, where that is possible.
    pub scope: Scope,
    /// With one crash more it fails.
    pub max_crashes: u32,
    /// How long pods may take to be bound; `None`: for ever.
    pub gang_timeout: Option<i64>,
    /// The scheduler chooses their nodes, so those that are not bound in time are not planned again.
    pub by_scheduler: bool,
    /// How long it may run.
    pub active_deadline: Option<i64>,
    /// How long it is kept after its end; `None`: for ever.
    pub ttl: Option<i64>,
    /// It is to have no pods.
    pub suspend: bool,
    /// The pods that stay once the job is done.
    pub keep_pods: KeepPods,
}

impl Terms {
    /// True if two pods of one index of a role may run for a while.
    pub(super) fn two_pods(&self, role: usize) -> bool {
        self.roles.get(role).is_some_and(|role| role.two_pods)
    }
}

/// A role of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleTerms {
    /// Its name, for sentences.
    pub name: String,
    /// With fewer pods the job does not run.
    pub min: u32,
    /// Which of its pods decide that the job has succeeded.
    pub decides: Decides,
    /// Two pods of one index may run for a while, so a lost one is replaced before it is gone.
    pub two_pods: bool,
}

impl RoleTerms {
    /// How many pods stay whatever happens. Index 0 is one of them: others meet there.
    pub(super) fn floor(&self) -> usize {
        self.min.max(1) as usize
    }
}

/// Which pods of a role must succeed for the job to succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decides {
    /// None.
    #[default]
    Nothing,
    /// Index 0.
    First,
    /// All.
    All,
}

/// What is started again after a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The lost pod.
    #[default]
    Worker,
    /// All pods.
    Job,
}

/// How far a dataset is on the job's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data {
    /// Its name, for sentences.
    pub name: String,
    /// The percentage that is there.
    pub percent: u64,
    /// The percentage that is enough.
    pub enough: u64,
    /// How long it is waited for.
    pub timeout: i64,
}
