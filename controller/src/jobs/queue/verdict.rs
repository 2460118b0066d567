//! The decision about a job.

use crate::jobs::planned::Plan;
use crate::time::Seconds;

/// The decision about a job. Every job gets one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The job starts.
    Start {
        /// How many pods of each role it may have.
        granted: Vec<u32>,
        /// The nodes of the pods, by role and index. Empty if the pods are to wait for nodes that an autoscaler adds.
        nodes: Vec<Vec<String>>,
        /// The flavor of the nodes of each role; empty for none.
        flavors: Vec<String>,
    },
    /// The job keeps running.
    Run(Running),
    /// The job gives all its room back.
    Stop {
        /// A sentence for the user.
        why: String,
    },
    /// The job waits.
    Wait(Waiting),
}

/// A job that has room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// How many pods of each role it keeps. If it has more, the pods with the highest indexes are removed.
    pub granted: Vec<u32>,
    /// How many pods it may grow to. The room is reserved only while every decision repeats the offer.
    pub may_grow_to: Vec<u32>,
    /// Why it loses pods; empty if it loses none.
    pub why: String,
    /// Nodes for the pods that need new ones; `None` if no pod does, or if terminating pods must be gone first.
    pub plan: Option<Plan>,
}

/// The first thing that a waiting job lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lack {
    /// Other jobs come before it.
    #[default]
    Turn,
    /// A queue that admits jobs.
    Queue,
    /// Quota.
    Quota,
    /// The ResourceQuota of its namespace.
    Namespace,
    /// Room on nodes.
    Nodes,
    /// A larger cluster: it would not fit even if the nodes were empty.
    Cluster,
    /// Time: its pods were not bound at the last start.
    Pause,
}

/// A job that has no room yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    pub lacks: Lack,
    /// A sentence with numbers, for the user.
    pub why: String,
    /// Other jobs are preempted for it, and the freed room is reserved. The caller passes this to the next decision.
    pub claims: bool,
    /// The flavors of the reserved room, by role. The caller passes them to the next decision.
    pub flavors: Vec<String>,
    /// It is the head of its queue. The caller passes the time since when to the next decision.
    pub is_head: bool,
    /// Its data should be warmed now.
    pub warm: bool,
    /// The nodes on which its data should be: room on them is reserved for it, or other jobs are preempted for it once
    /// the data is there. Empty if they are not known yet.
    pub nodes: Vec<String>,
    /// No room was looked for, because that takes time and other jobs of the queue or namespace had their turn. The
    /// caller keeps what it knows about the job.
    pub is_untried: bool,
    /// The job is untried, and has its turn in one of the next decisions. The caller passes this to the next decision,
    /// which should follow soon.
    pub is_passed_over: bool,
    /// Other jobs were preempted for it, and pods of others took the room. The caller passes the time of the next
    /// attempt to the next decision ([`super::pause_after`]).
    pub in_vain: bool,
    /// When the decision changes if nothing else does before.
    pub again_at: Option<Seconds>,
}

impl Waiting {
    /// True if no nodes were found for the job.
    pub fn lacks_nodes(&self) -> bool {
        matches!(self.lacks, Lack::Nodes | Lack::Cluster)
    }
}

/// The result of an attempt to make room for a job.
pub(super) enum Clearing {
    /// Other jobs are preempted, and the job has a verdict.
    Begun,
    /// Other jobs will be preempted once the job's data is on these nodes.
    Cold(Vec<String>),
    /// Preempting other jobs would not give the job room.
    InVain,
}
