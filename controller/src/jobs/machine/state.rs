//! What is remembered of a job: its phase, its pods by role and index, and its counters. It is written to the job's status before
//! anything follows from it, so a controller that was killed goes on from here.

use crate::time::Seconds;
use larder_api::Phase;
use serde::{Deserialize, Serialize};

use super::loss::Cause;
use super::observed::Terms;
use super::pod::PodId;

/// The state of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct State {
    /// Where it is.
    pub phase: Phase,
    /// Since when, in seconds since 1970.
    pub since: Seconds,
    /// The pods that it may have, by role and index.
    #[serde(with = "super::runs", skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Vec<Slot>>,
    /// While it waits for room again, those of its pods that are done and are not made again, beside nothing for the others.
    #[serde(with = "super::runs", skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<Vec<Slot>>,
    /// How many times pods were made. The last part of a pod's name is the count at that time, so no two have the same.
    pub attempts: u32,
    /// How many times pods were lost.
    pub restarts: Restarts,
    /// When its first pod could be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Seconds>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<Seconds>,
    /// Since when it could grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_since: Option<Seconds>,
    /// Since when there are pods to be bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding_since: Option<Seconds>,
    /// Pods that were not bound in time were planned again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub planned_again: bool,
    /// How many times in a row all its room was given back because pods were not bound.
    #[serde(skip_serializing_if = "is_zero")]
    pub unbound: u32,
    /// How many times in a row pods have failed soon after they were made.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_soon: u32,
    /// No pods are made before: what kept others from being bound is not in the plan, or others have failed soon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Seconds>,
    /// Why the job is in this phase, where nothing else says so.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A pod that a job may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slot {
    /// The last part of its name.
    pub attempt: u32,
    /// Its node; `None` if it has none, or the scheduler chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// How far it is.
    pub stage: Stage,
}

/// How far a pod is, as far as it must be remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// It needs a node.
    #[default]
    Unplaced,
    /// It is to be made.
    Placed,
    /// It was seen. If it is not there any more, it was lost.
    Seen,
    /// It has succeeded and is not made again.
    Done,
}

/// How many times pods were lost, by cause. Only crashes count against the job's limit.
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
    /// The count of a cause.
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
    /// True if the job has room in its queue.
    pub fn holds_room(&self) -> bool {
        self.phase.has_pods() || self.phase == Phase::DataWarming
    }

    /// When the job ends at the latest, if it may not run for ever.
    pub fn ends(&self, terms: &Terms) -> Option<Seconds> {
        Some(self.started? + terms.active_deadline?)
    }

    /// How many pods of each role it may have; nothing while it waits.
    pub fn granted(&self) -> Vec<u32> {
        self.roles.iter().map(|slots| slots.len() as u32).collect()
    }

    /// The slot of a pod, if the pod is the one that it is to have now.
    pub fn slot(&self, pod: PodId) -> Option<&Slot> {
        let slot = self.roles.get(pod.role)?.get(pod.index as usize)?;
        (slot.attempt == pod.attempt).then_some(slot)
    }

    pub(super) fn slot_mut(&mut self, pod: PodId) -> Option<&mut Slot> {
        let slot = self.roles.get_mut(pod.role)?.get_mut(pod.index as usize)?;
        (slot.attempt == pod.attempt).then_some(slot)
    }

    /// All slots and their pods.
    pub fn slots(&self) -> impl Iterator<Item = (PodId, &Slot)> {
        self.roles.iter().enumerate().flat_map(|(role, slots)| {
            (0..).zip(slots).map(move |(index, slot)| (PodId { role, index, attempt: slot.attempt }, slot))
        })
    }
}
