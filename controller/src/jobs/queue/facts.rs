//! The inputs of queue decisions: quotas, and jobs as queues see them.

use super::verdict::{Running, Verdict};
use crate::jobs::planned::RefusedBy;
use crate::time::Seconds;
use std::collections::BTreeMap;

use larder_api::queue::Preemption;
pub use larder_api::queue::checked::CheckedQuota as Quota;
use larder_api::queue::flavor::on;
use larder_kube::key::Key;
use larder_kube::pod::amounts::Amounts;
use larder_kube::pod::node_affinity::Places;

/// A queue and its quota.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queue {
    pub name: String,
    /// Quotas by resource, and by the names of resources of flavors. Resources that are not listed are not limited.
    pub quotas: BTreeMap<String, Quota>,
    /// Queues of the same cohort lend each other unused quota; empty for none.
    pub cohort: String,
    /// The queue above; empty for none. Queues below one queue lend to each other and to it.
    pub parent: String,
    /// The jobs that its jobs may preempt.
    pub preemption: Preemption,
    /// Why no job starts, other than [`Self::stop`].
    pub obstacle: Option<String>,
    /// When queues compete, a queue with twice the weight gets twice the share. Zero counts as 1.
    pub weight: u32,
    /// Whether the queue admits jobs.
    pub stop: Stop,
}

/// Whether a queue admits jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    /// The queue admits jobs.
    #[default]
    No,
    /// No job starts or grows; running jobs continue.
    Hold,
    /// Running jobs are stopped, too.
    Drain,
}

/// A job that waits for room or has room. Jobs that have ended or are suspended do not appear.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    pub key: Key,
    /// Its queue; empty for none. A job without a queue has no quota limit.
    pub queue: String,
    /// A higher priority comes first.
    pub priority: i32,
    pub created: Seconds,
    /// Its roles on the flavors that it has, or that it prefers while it waits.
    pub roles: Vec<Role>,
    /// Its roles on other flavors. A waiting job tries them in this order.
    pub fallbacks: Vec<Vec<Role>>,
    /// Why none of the flavors of its queue suits it.
    pub unsuited: Option<String>,
    /// Its datasets and their sizes in bytes.
    pub datasets: Vec<(Key, u64)>,
    /// The node label whose values are the topology domains; empty for none.
    pub topology_key: String,
    /// How many pods of each role it may have; empty while it waits. This is what the last decision granted and the job
    /// took, not what a watch shows.
    pub granted: Vec<u32>,
    /// Its pods that hold room, including terminating pods. A pod on a lost node holds none.
    pub pods: Vec<HeldPod>,
    /// Per role, the indexes of the pods that need another node; empty for none.
    pub unplaced: Vec<Vec<u32>>,
    /// The nodes that refused its pods.
    pub refused_by: Vec<RefusedBy>,
    /// The pods that those indexes replace still run.
    pub replaces_live: bool,
    /// Since when it has been the head of its queue, according to the decisions ([`super::Waiting::is_head`]).
    pub head_since: Option<Seconds>,
    /// Other jobs are preempted to make room for it ([`super::Waiting::claims`]).
    pub claims: bool,
    /// The flavors of the room that is reserved for it, by role ([`super::Waiting::flavors`]).
    pub claimed: Vec<String>,
    /// Its data is not on the nodes where it would run ([`super::Waiting::nodes`]), and it has not waited for it for as
    /// long as its spec allows. Until then no other job is preempted for it.
    pub is_cold: bool,
    /// If its nodes lack room, an autoscaler may add nodes for its pods.
    pub may_await_nodes: bool,
    /// It has started without nodes, and some of its pods still have none.
    pub awaits_nodes: bool,
    /// The last decision had no time to look for its room ([`super::Waiting::is_passed_over`]).
    pub is_passed_over: bool,
    /// As far as is known, it lacks nodes ([`super::Waiting::lacks_nodes`]). A job of which nothing is known has not
    /// had its turn yet.
    pub lacks_nodes: bool,
    /// No other job is preempted for it before this time, because pods of others took the room that was freed for it.
    pub preempts_after: Option<Seconds>,
    /// It does not start before this time.
    pub not_before: Option<Seconds>,
    /// Why its pods could not be created now even if there were room.
    pub shortage: Option<String>,
    /// Its deadline, if it has one.
    pub ends: Option<Seconds>,
    pub reservation: Reservation,
}

/// Whether the planned nodes of a job's pods are reserved for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reservation {
    /// They are.
    #[default]
    Held,
    /// The job has no queue and waits for its data. Other jobs may take the nodes.
    Released,
    /// As [`Self::Released`], and the data is there: the job takes the nodes if they are still free.
    Due,
}

/// Identical pods of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Role {
    pub name: String,
    /// The requests of each pod.
    pub requests: Amounts,
    /// The flavor of its pods' nodes; empty for none.
    pub flavor: String,
    /// The nodes that they may run on, which are of the flavor.
    pub places: Places,
    /// The job does not run with fewer pods of this role.
    pub min: u32,
    /// The number of pods at the start.
    pub wanted: u32,
    /// The number of pods that are created if there is room.
    pub max: u32,
    /// Pods cannot join or leave while the job runs, even if its spec changes.
    pub is_fixed: bool,
    /// No two of the pods can be on one node.
    pub apart: bool,
    /// The pods are to be spread over nodes.
    pub spread: bool,
}

impl Role {
    /// The amounts that each pod takes of quota: its requests, and the same on its flavor.
    pub fn charges(&self) -> Amounts {
        let mut charges = Amounts::default();
        charge(&mut charges, &self.requests, &self.flavor, 1);
        charges
    }

    /// How many of the granted pods its spec still requests.
    pub fn asks_for(&self, granted: u32) -> u32 {
        if self.is_fixed { granted } else { self.max.max(1).min(granted) }
    }
}

/// A pod that holds room or will hold it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldPod {
    /// The position of its role in the job's list of roles.
    pub role: usize,
    /// The index within the role.
    pub index: u32,
    /// Its node, bound or planned; empty if it has neither.
    pub node: String,
    /// It is bound, so the node's `used` includes it.
    pub bound: bool,
    /// It is terminating.
    pub leaving: bool,
    /// The flavor of a pod that is there; empty for none.
    pub flavor: String,
}

/// A pod whose job neither waits for room nor has it: the job has ended, is suspended, or was deleted. The pod uses
/// quota and its node until it is deleted itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftoverPod {
    /// The queue that admitted it; empty for none.
    pub queue: String,
    pub requests: Amounts,
    /// The flavor of its node; empty for none.
    pub flavor: String,
    /// Its node; empty if it has none.
    pub node: String,
    /// It is not terminating.
    pub stays: bool,
}

impl LeftoverPod {
    /// The amounts that it takes of quota.
    pub fn charges(&self) -> Amounts {
        let mut charges = Amounts::default();
        charge(&mut charges, &self.requests, &self.flavor, 1);
        charges
    }
}

/// Adds what pods with these requests take of quota: the requests, and the same on their flavor.
fn charge(sum: &mut Amounts, requests: &Amounts, flavor: &str, pods: u64) {
    sum.add(requests, pods);
    sum.add(&on_flavor(requests, flavor), pods);
}

/// The requests on a flavor; none without a flavor.
fn on_flavor(requests: &Amounts, flavor: &str) -> Amounts {
    let requests = requests.iter().filter(|_| !flavor.is_empty());
    requests.map(|(resource, amount)| (on(resource, flavor), amount)).collect()
}

impl Job {
    /// True if this verdict takes no pods from the job, and offers it neither pods nor nodes.
    pub fn is_unchanged_by(&self, verdict: &Verdict) -> bool {
        let Verdict::Run(Running { granted, may_grow_to, why, plan }) = verdict else { return false };
        let is_same = granted.iter().enumerate().all(|(role, pods)| *pods == self.granted(role));
        is_same && may_grow_to == granted && why.is_empty() && plan.is_none()
    }

    pub fn is_admitted(&self) -> bool {
        self.granted.iter().any(|pods| *pods > 0)
    }

    /// True if it is in a queue.
    pub fn is_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The line in which it waits: its queue's. Jobs without a queue have one line per namespace, in which no job waits
    /// for another.
    pub fn line(&self) -> (&str, &str) {
        if self.queue.is_empty() { ("", &self.key.namespace) } else { (&self.queue, "") }
    }

    /// The number of pods of a role that it may have.
    pub fn granted(&self, role: usize) -> u32 {
        self.granted.get(role).copied().unwrap_or(0)
    }

    /// The total charges of the given number of pods of each role.
    pub fn charges(&self, counts: impl Fn(usize, &Role) -> u32) -> Amounts {
        let mut sum = Amounts::default();
        for (at, role) in self.roles.iter().enumerate() {
            charge(&mut sum, &role.requests, &role.flavor, u64::from(counts(at, role)));
        }
        sum
    }

    /// The charges of the fewest pods that it runs with.
    pub fn floor(&self) -> Amounts {
        self.charges(|_, role| role.min)
    }

    /// The amounts for which it competes with other jobs of its queue: of pods on a flavor, what they request of its
    /// nodes, and else of the queue's quota.
    pub fn contended(&self, queue: Option<&Queue>) -> Amounts {
        let is_limited = |resource: &str| queue.is_some_and(|queue| queue.quotas.contains_key(resource));
        let mut sum = Amounts::default();
        for role in &self.roles {
            let pods = u64::from(role.min);
            sum.add(&on_flavor(&role.requests, &role.flavor), pods);
            let requests = role.requests.iter().filter(|(resource, _)| role.flavor.is_empty() || is_limited(resource));
            sum.add(&requests.collect(), pods);
        }
        sum
    }

    /// The charges of its terminating pods, which use quota in addition to the granted pods.
    pub fn leaving(&self) -> Amounts {
        let mut sum = Amounts::default();
        for pod in self.pods.iter().filter(|pod| pod.leaving) {
            // The job may wait for room on another flavor than this pod has.
            charge(&mut sum, &self.roles[pod.role].requests, &pod.flavor, 1);
        }
        sum
    }
}
