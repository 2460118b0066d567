//! The state of a job: its phase, its pods by role and index, and its counters. It is written to the job's status
//! before any action follows from it, so the next controller process resumes from it after a crash.

use crate::time::Seconds;
use larder_api::Phase;
use serde::{Deserialize, Serialize};

use super::loss::Cause;
use super::observed::{Leeway, Terms};
use super::pod::PodId;
use crate::jobs::planned::RefusedBy;

/// The state of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct State {
    pub phase: Phase,
    /// When the job entered the phase.
    pub since: Seconds,
    /// The pods that the job may have, by role and index.
    #[serde(with = "super::runs", skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Vec<Slot>>,
    /// While the job waits for room again: the slots of its pods that are done, which are not recreated. Other slots
    /// are empty.
    #[serde(with = "super::runs", skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<Vec<Slot>>,
    /// The number of attempts so far. A pod's name ends with the count at its creation, so no two pods have the same
    /// name.
    pub attempts: u32,
    /// How many pods were lost, by cause.
    pub restarts: Restarts,
    /// How many of the crashes do not count: a rule ignores them, or the job has run for long enough since.
    #[serde(skip_serializing_if = "is_zero")]
    pub forgiven: u32,
    /// For how many seconds it had run without a crash when it entered the phase.
    #[serde(skip_serializing_if = "is_zero")]
    pub good_seconds: i64,
    /// A rule has failed the job.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_failed_by_rule: bool,
    /// The number that the first of the pods that decide its success wrote to its termination message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// When the job's first pods could be created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<Seconds>,
    /// Since when there has been room to grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_since: Option<Seconds>,
    /// How many times in a row it could not grow into room that seemed free.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_growths: u32,
    /// Since when pods have been waiting to be bound. The timeout counts from the last pod that was created or bound,
    /// if that is later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding_since: Option<Seconds>,
    /// Its pods have no planned nodes and wait for nodes that an autoscaler adds.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub awaits_nodes: bool,
    /// Pods that were not bound in time have been planned a second time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub planned_again: bool,
    /// How many times in a row the job gave all its room back because pods were not bound.
    #[serde(skip_serializing_if = "is_zero")]
    pub unbound: u32,
    /// How many times in a row pods failed soon after their creation.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_soon: u32,
    /// No pods are created before this time: something that the plan does not see kept pods from being bound, or pods
    /// failed early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Seconds>,
    /// The nodes that refused its pods lately, oldest first. Plans avoid them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_by: Vec<RefusedBy>,
    /// Why the job is in this phase, where no other field tells.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// After so many starts in a row of which pods were not bound, the nodes of a gang's plan are preferences.
const UNBOUND_STARTS: u32 = 3;

/// The number of refusals that are remembered.
pub(crate) const REFUSALS_MAX: usize = 1000;

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// A slot: an index of a role, with the pod that it should have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slot {
    /// The attempt, which is the last part of the pod's name.
    pub attempt: u32,
    /// The planned node; `None` if the pod has none yet, or the scheduler chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub stage: Stage,
}

/// The progress of a slot, as far as it must survive a restart of the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// The slot needs a node.
    #[default]
    Unplaced,
    /// The pod can be created.
    Placed,
    /// The pod has been observed. If it no longer exists, it was lost.
    Seen,
    /// The pod has succeeded and is not recreated.
    Done,
}

/// How many pods were lost, by cause. Only crashes count against the job's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Restarts {
    /// The program ended with an error.
    pub crashed: u32,
    /// Another job needed the room.
    pub preempted: u32,
    /// The node was drained or short of something.
    pub evicted: u32,
    /// The node was lost.
    pub node_lost: u32,
    /// A device failed.
    pub device_fault: u32,
}

impl Restarts {
    pub fn of(&self, cause: Cause) -> u32 {
        match cause {
            Cause::Crashed => self.crashed,
            Cause::Preempted => self.preempted,
            Cause::Evicted => self.evicted,
            Cause::NodeLost => self.node_lost,
            Cause::DeviceFault => self.device_fault,
        }
    }

    pub(super) fn count(&mut self, cause: Cause) {
        let count = match cause {
            Cause::Crashed => &mut self.crashed,
            Cause::Preempted => &mut self.preempted,
            Cause::Evicted => &mut self.evicted,
            Cause::NodeLost => &mut self.node_lost,
            Cause::DeviceFault => &mut self.device_fault,
        };
        *count = count.saturating_add(1);
    }
}

impl State {
    /// The crashes that count against the job's limit.
    pub fn crashes(&self, terms: &Terms, now: Seconds) -> u32 {
        let running = if self.phase == Phase::Running { (now - self.since).max(0) } else { 0 };
        let good = self.good_seconds.saturating_add(running);
        let forgiven = u32::try_from(good.checked_div(terms.forgive_after).unwrap_or(0)).unwrap_or(u32::MAX);
        self.restarts.crashed.saturating_sub(self.forgiven).saturating_sub(forgiven)
    }

    /// Counts a crash.
    pub(super) fn count_crash(&mut self, terms: &Terms, is_ignored: bool, now: Seconds) {
        if is_ignored {
            self.restarts.count(Cause::Crashed);
            self.forgiven = self.forgiven.saturating_add(1);
            return;
        }
        let counted = self.crashes(terms, now).saturating_add(1);
        self.restarts.count(Cause::Crashed);
        self.forgiven = self.restarts.crashed.saturating_sub(counted);
        self.good_seconds = 0;
        if self.phase == Phase::Running {
            self.since = now;
        }
    }

    /// True if the job has room in its queue.
    pub fn holds_room(&self) -> bool {
        self.phase.has_pods() || self.phase == Phase::DataWarming
    }

    /// The deadline of the job, if it has one.
    pub fn ends(&self, terms: &Terms) -> Option<Seconds> {
        Some(self.started? + terms.active_deadline?)
    }

    /// True if its next pods prefer their planned nodes and do not require them.
    pub fn has_leeway(&self, terms: &Terms) -> bool {
        match terms.leeway {
            Leeway::Gang => self.unbound >= UNBOUND_STARTS,
            Leeway::Single => !self.refused_by.is_empty(),
            Leeway::Unplanned => true,
        }
    }

    /// The number of pods that each role may have; empty while the job waits.
    pub fn granted(&self) -> Vec<u32> {
        self.roles.iter().map(|slots| slots.len() as u32).collect()
    }

    /// The slot of a pod, if `pod` is the slot's current attempt.
    pub fn slot(&self, pod: PodId) -> Option<&Slot> {
        let slot = self.roles.get(pod.role)?.get(pod.index as usize)?;
        (slot.attempt == pod.attempt).then_some(slot)
    }

    pub(super) fn slot_mut(&mut self, pod: PodId) -> Option<&mut Slot> {
        let slot = self.roles.get_mut(pod.role)?.get_mut(pod.index as usize)?;
        (slot.attempt == pod.attempt).then_some(slot)
    }

    /// All slots with the identities of their pods.
    pub fn slots(&self) -> impl Iterator<Item = (PodId, &Slot)> {
        self.roles.iter().enumerate().flat_map(|(role, slots)| {
            (0..).zip(slots).map(move |(index, slot)| (PodId { role, index, attempt: slot.attempt }, slot))
        })
    }
}
