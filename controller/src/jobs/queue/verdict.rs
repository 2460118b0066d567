//! What is decided about a job.

use crate::jobs::planned::Plan;

/// What a job is to do. Every job has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It starts.
    Start {
        /// How many pods of each role it may have.
        granted: Vec<u32>,
        /// Their nodes, by role and index.
        nodes: Vec<Vec<String>>,
    },
    /// It runs on.
    Run(Running),
    /// It gives all its room back.
    Stop {
        /// The sentence.
        why: String,
    },
    /// It waits.
    Wait(Waiting),
}

/// A job that has room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// How many pods of each role it keeps. If that is fewer than it has, those of the highest indexes end.
    pub granted: Vec<u32>,
    /// How many it may grow to. The room is nobody else's as long as each decision says so.
    pub may_grow_to: Vec<u32>,
    /// Why it keeps fewer; empty if it does not.
    pub why: String,
    /// Nodes for the pods that need others; `None` if they need none, or have to wait for pods that are ending.
    pub plan: Option<Plan>,
}

/// What a job that waits lacks first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lack {
    /// Others come before it.
    #[default]
    Turn,
    /// A queue that takes jobs.
    Queue,
    /// Quota.
    Quota,
    /// Quota of its namespace.
    Namespace,
    /// Room on nodes.
    Nodes,
    /// A larger cluster.
    Cluster,
    /// Time: its pods were not bound when it was tried last.
    Pause,
}

/// A job that has no room yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// What it lacks.
    pub lacks: Lack,
    /// The sentence, with numbers.
    pub why: String,
    /// Others end for it, and what they leave is held for it. The next decision is to know.
    pub claims: bool,
    /// It is the first of its queue. The next decision is to know since when.
    pub is_head: bool,
    /// Its data is to be warmed.
    pub warm: bool,
}
