//! What decisions about queues depend on: quotas, and jobs as queues see them.

use crate::time::Seconds;
use std::collections::BTreeMap;

use larder_kube::key::Key;
use larder_kube::pod::amounts::Amounts;
use larder_kube::pod::node_affinity::Places;

/// A queue and its quota.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queue {
    pub name: String,
    /// By resource. What is not listed is not limited.
    pub quotas: BTreeMap<String, Quota>,
    /// Queues of one cohort lend each other what they do not use; empty for none.
    pub cohort: String,
    /// Where queues compete, one with twice the weight gets twice as much. Nothing counts as 1.
    pub weight: u32,
    /// It takes no jobs, or no longer.
    pub stop: Stop,
}

/// The quota of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// What the queue's jobs may always use.
    pub nominal: u64,
    /// The most that they use beyond that, of what others in the cohort do not use; `None`: no limit.
    pub borrow: Option<u64>,
    /// The most of `nominal` that others may use meanwhile; `None`: all of it.
    pub lend: Option<u64>,
}

/// Whether a queue takes jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    /// It does.
    #[default]
    No,
    /// No more start or grow; those that run, run on.
    Hold,
    /// Those that run are stopped, too.
    Drain,
}

/// A job that waits for room or has it. One that has ended or is suspended is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    pub key: Key,
    /// Its queue; empty for none, which is a queue without quota.
    pub queue: String,
    /// Higher ones come first.
    pub priority: i32,
    /// When it was made, in seconds since 1970.
    pub created: Seconds,
    pub roles: Vec<Role>,
    /// Its datasets and their bytes.
    pub datasets: Vec<(Key, u64)>,
    /// The label of nodes whose values are topology domains; empty for none.
    pub topology_key: String,
    /// How many pods of each role it may have; empty while it waits. It is what the last decision said and the job took, not
    /// what a watch shows.
    pub granted: Vec<u32>,
    /// Its pods that hold room, also those that are ending. A pod on a lost node holds none.
    pub pods: Vec<HeldPod>,
    /// Indexes of each role whose pods need another node; empty for none.
    pub unplaced: Vec<Vec<u32>>,
    /// Pods that these replace still run.
    pub replaces_live: bool,
    /// Since when it is the first of its queue and finds no room, as the decisions said ([`super::Waiting::is_head`]).
    pub head_since: Option<Seconds>,
    /// Others end to make room for it ([`super::Waiting::claims`]).
    pub claims: bool,
    /// It is not started before.
    pub not_before: Option<Seconds>,
    /// Its pods could not be made now, whatever room there is: why.
    pub shortage: Option<String>,
    /// When it ends at the latest.
    pub ends: Option<Seconds>,
}

/// Equal pods of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Role {
    pub name: String,
    /// What each pod requests.
    pub requests: Amounts,
    /// The nodes that they may run on.
    pub places: Places,
    /// With fewer the job does not run.
    pub min: u32,
    /// How many are requested at the start.
    pub wanted: u32,
    /// How many are created where there is room.
    pub max: u32,
    /// Pods cannot come and go while the job runs, whatever its spec asks for since.
    pub is_fixed: bool,
}

impl Role {
    /// How many of the pods that it has its spec still asks for.
    pub fn asks_for(&self, granted: u32) -> u32 {
        if self.is_fixed { granted } else { self.max.max(1).min(granted) }
    }
}

/// A pod that holds room, or will.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldPod {
    /// The place of its role in the job's list.
    pub role: usize,
    /// Its index in the role.
    pub index: u32,
    /// Its node, bound or planned; empty if it has neither.
    pub node: String,
    /// It is bound, so it is in the node's `used`.
    pub bound: bool,
    /// It is ending.
    pub leaving: bool,
}

/// A pod whose job neither waits for room nor has it: the job has ended, is suspended, or is gone. The pod uses quota and its
/// node until it is gone itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftoverPod {
    /// The queue that has admitted it; empty for none.
    pub queue: String,
    /// What it requests.
    pub requests: Amounts,
    /// Its node; empty if it has none.
    pub node: String,
    /// It is not going to end.
    pub stays: bool,
}

impl Job {
    /// True if it has room.
    pub fn is_admitted(&self) -> bool {
        self.granted.iter().any(|pods| *pods > 0)
    }

    /// The line in which it waits: that of its queue. Without a queue it is its namespace's, where no job waits for another.
    pub fn line(&self) -> (&str, &str) {
        if self.queue.is_empty() { ("", &self.key.namespace) } else { (&self.queue, "") }
    }

    /// How many pods of a role it may have.
    pub fn granted(&self, role: usize) -> u32 {
        self.granted.get(role).copied().unwrap_or(0)
    }

    /// What this many pods of each role request.
    pub fn requests(&self, counts: impl Fn(usize, &Role) -> u32) -> Amounts {
        let mut sum = Amounts::default();
        for (at, role) in self.roles.iter().enumerate() {
            sum.add(&role.requests, u64::from(counts(at, role)));
        }
        sum
    }

    /// The least that it runs with.
    pub fn floor(&self) -> Amounts {
        self.requests(|_, role| role.min)
    }

    /// What its ending pods request. They use quota beside the pods that it may have.
    pub fn leaving(&self) -> Amounts {
        self.requests(|at, _| self.pods.iter().filter(|pod| pod.leaving && pod.role == at).count() as u32)
    }
}
