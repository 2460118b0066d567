//! The memory of the queues about pods of other programs that have no node yet. The next controller process begins
//! anew.

use std::collections::BTreeMap;

use crate::jobs::queue::{Waiting, pause_after};
use crate::time::{Earliest, Seconds};
use larder_kube::key::Key;

/// The memory of the last decisions about a pod, as a job's record has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodWait {
    pub uid: String,
    /// Since when it has been the head of its queue.
    pub head_since: Option<Seconds>,
    /// Jobs are preempted for it, and room is reserved.
    pub claims: bool,
    /// The flavors of that room.
    pub claimed: Vec<String>,
    /// How many times in a row pods of others took the room that was freed for it.
    pub in_vain: u32,
    /// No job is preempted for it before this time.
    pub preempts_after: Option<Seconds>,
    /// No room was looked for, and it has its turn in one of the next decisions.
    pub is_passed_over: bool,
    /// No nodes were found for it.
    pub lacks_nodes: bool,
    /// It was released because this node has room for it; empty if it was not, or without a plan.
    pub planned: String,
}

/// The pods that have no node yet.
pub type PodWaits = BTreeMap<Key, PodWait>;

impl PodWait {
    /// The memory after another decision.
    pub fn after(&self, waiting: &Waiting, now: Seconds) -> Self {
        let in_vain = self.in_vain.saturating_add(u32::from(waiting.in_vain));
        let pause = waiting.in_vain.then(|| now + pause_after(in_vain));
        Self {
            uid: self.uid.clone(),
            head_since: waiting.is_head.then(|| self.head_since.unwrap_or(now)),
            claims: waiting.claims,
            claimed: waiting.flavors.clone(),
            in_vain,
            preempts_after: pause.or(self.preempts_after),
            is_passed_over: waiting.is_passed_over,
            lacks_nodes: waiting.lacks_nodes(),
            planned: String::new(),
        }
    }

    /// Notes when the queues decide about the pod again, although nothing has changed.
    pub fn note_again(&self, now: Seconds, again: &mut Earliest) {
        if self.is_passed_over {
            again.note(now + 1);
        }
        again.extend(self.preempts_after.filter(|at| !self.claims && *at > now));
    }
}
