//! The inputs of a step: the job's terms, the decisions about it, its data and its pods.

use larder_api::training_job::KeepPods;
use larder_api::training_job::checked::{CheckedRule, Predecessor};

use super::pod::{NodeHealth, Pod};
use crate::jobs::planned::Plan;
use crate::jobs::queue::Verdict;

/// The decisions about a job since its last step. A step uses them up, so no decision is applied twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decisions {
    /// The decision of Larder's queue or of Kueue.
    pub verdict: Option<Verdict>,
    /// The answer to [`super::unplaced`].
    pub plan: Option<Plan>,
}

/// The facts that a step depends on, besides the state, the decisions and the time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The settings of the user and of the job's type.
    pub terms: Terms,
    /// The scheduler's message about pods that have no node.
    pub scheduler_message: Option<String>,
    /// Why the API server creates no more pods of the job: a ResourceQuota is used up.
    pub shortage: Option<String>,
    /// The datasets that the job waits for.
    pub data: Vec<Data>,
    /// While the job waits for its data: the nodes of its plan.
    pub planned: Vec<(String, NodeHealth)>,
    /// All existing pods of the job, including pods of earlier attempts.
    pub pods: Vec<Pod>,
}

/// The settings of the user and of the job's type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    pub roles: Vec<RoleTerms>,
    /// The pods that are restarted after a loss.
    pub scope: Scope,
    /// The number of crashes that the job survives. One more fails it.
    pub max_crashes: u32,
    /// After how many seconds of running without a crash one crash less counts; 0: never.
    pub forgive_after: i64,
    /// How often the kubelet restarts the containers of a pod.
    pub in_place: u32,
    /// The rules for pods that crash: the first that matches decides, or else the scope.
    pub rules: Vec<CheckedRule>,
    /// How long pods may take to be bound, in seconds; `None`: no limit.
    pub gang_timeout: Option<i64>,
    /// While the job waits for its data, its room is not reserved: it starts once a decision confirms the room.
    pub unreserved: bool,
    /// How long pods wait for nodes that an autoscaler adds, in seconds; `None`: there is no autoscaler.
    pub nodes_timeout: Option<i64>,
    /// The scheduler chooses the nodes, so pods that are not bound in time are not planned a second time.
    pub by_scheduler: bool,
    /// Whether the scheduler may bind pods to other nodes than those of the plan.
    pub leeway: Leeway,
    /// How long the job may run, in seconds.
    pub active_deadline: Option<i64>,
    /// How long the job is kept after its end, in seconds; `None`: permanently.
    pub ttl: Option<i64>,
    /// The user has suspended the job: it must have no pods.
    pub suspend: bool,
    /// The pods that are kept after the job has ended.
    pub keep_pods: KeepPods,
}

impl Terms {
    /// True if a role may have two pods of one index for a while.
    pub(super) fn two_pods(&self, role: usize) -> bool {
        self.roles.get(role).is_some_and(|role| role.two_pods)
    }
}

/// When the nodes of a plan become mere preferences, so that the scheduler may choose others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leeway {
    /// After some starts in a row of which pods were not bound. Until then, the nodes of a gang are required.
    #[default]
    Gang,
    /// Once a node has refused the job's only pod.
    Single,
    /// Always: the job has one pod, with constraints that a plan does not consider.
    Unplanned,
}

/// A role of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleTerms {
    /// The role's name, for messages.
    pub name: String,
    /// The job does not run with fewer pods of this role.
    pub min: u32,
    /// Which of its pods decide that the job has succeeded.
    pub decides: Decides,
    /// Two pods of one index may run for a while, so a lost pod is replaced before it has terminated.
    pub two_pods: bool,
    /// The roles that come before it.
    pub starts_after: Vec<Predecessor>,
}

impl RoleTerms {
    /// The number of pods that are never given up. It is at least 1: the other pods rendezvous at index 0.
    pub(super) fn floor(&self) -> usize {
        self.min.max(1) as usize
    }
}

/// Which pods of a role must succeed for the job to succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decides {
    #[default]
    Nothing,
    First,
    All,
}

/// The pods that are restarted after a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Only the lost pod.
    #[default]
    Worker,
    /// All pods of the job.
    Job,
}

/// The progress of a dataset on the job's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data {
    /// The dataset's name, for messages.
    pub name: String,
    /// The percentage that the nodes hold.
    pub percent: u64,
    /// The percentage at which the job starts.
    pub enough: u64,
    /// How long the job waits for the dataset, in seconds.
    pub timeout: i64,
    /// Why the nodes may never hold enough: the cache of one has no room for the dataset, or the CacheQuota of the
    /// dataset's namespace has none; empty if there is no obstacle.
    pub obstacle: String,
}
