//! Applies an event to the state.

use larder_api::Phase;

use super::answer::Replaced;
use super::loss::Cause;
use super::observed::{Scope, Terms};
use super::pod::PodId;
use super::state::{Slot, Stage, State};
use super::table::{EventKind, next};
use crate::jobs::planned::PlannedPod;
use crate::time::Seconds;

/// An event: something that has happened to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Suspend,
    Resume,
    Deadline,
    Granted { granted: Vec<u32>, nodes: Vec<Vec<String>> },
    Revoked { why: String },
    Shrunk { granted: Vec<u32> },
    Grown { granted: Vec<u32> },
    Seen(PodId),
    Done { pod: PodId, result: Option<String> },
    Finished,
    Lost { pod: PodId, cause: Cause, has_ended: bool, what: Replaced, is_ignored: bool },
    Spent { pod: PodId, rule: Option<String> },
    Warm,
    Planned(Vec<PlannedPod>),
    NoRoom { pods: Vec<PodId>, why: String },
    Unbound { pods: Vec<PodId> },
    Released { why: String, are_unbound: bool },
    Up,
}

impl Event {
    pub(super) fn kind(&self) -> EventKind {
        match self {
            Self::Suspend => EventKind::Suspend,
            Self::Resume => EventKind::Resume,
            Self::Deadline => EventKind::Deadline,
            Self::Granted { .. } => EventKind::Granted,
            Self::Revoked { .. } => EventKind::Revoked,
            Self::Shrunk { .. } => EventKind::Shrunk,
            Self::Grown { .. } => EventKind::Grown,
            Self::Seen(_) => EventKind::Seen,
            Self::Done { .. } => EventKind::Done,
            Self::Finished => EventKind::Finished,
            Self::Lost { .. } => EventKind::Lost,
            Self::Spent { .. } => EventKind::Spent,
            Self::Warm => EventKind::Warm,
            Self::Planned(_) => EventKind::Planned,
            Self::NoRoom { .. } => EventKind::NoRoom,
            Self::Unbound { .. } => EventKind::Unbound,
            Self::Released { .. } => EventKind::Released,
            Self::Up => EventKind::Up,
        }
    }

    /// Changes the state. Does nothing if the event does not apply in the current phase.
    pub(super) fn apply(self, state: &mut State, terms: &Terms, now: Seconds) {
        let Some(phase) = next(state.phase, self.kind()) else { return };
        match self {
            Self::Suspend => clear(state, String::new()),
            Self::Resume | Self::Finished => {}
            Self::Deadline => {
                state.why = format!("it has run for {} s (spec.activeDeadline)", terms.active_deadline.unwrap_or(0));
            }
            Self::Granted { granted, nodes } => {
                state.awaits_nodes = nodes.is_empty() && !terms.by_scheduler && terms.nodes_timeout.is_some();
                grant(state, &granted, &nodes);
            }
            Self::Revoked { why } => {
                if state.phase.has_pods() {
                    state.restarts.count(Cause::Preempted);
                }
                release(state, terms, why);
            }
            Self::Released { why, are_unbound } => {
                release(state, terms, why);
                if are_unbound {
                    state.unbound = state.unbound.saturating_add(1);
                    state.not_before = Some(now + pause(state.unbound));
                }
            }
            Self::Shrunk { granted } => {
                for (slots, granted) in state.roles.iter_mut().zip(&granted) {
                    slots.truncate(*granted as usize);
                }
            }
            Self::Grown { granted } => {
                state.attempts = state.attempts.saturating_add(1);
                let new = Slot { attempt: state.attempts, ..Slot::default() };
                for (slots, granted) in state.roles.iter_mut().zip(&granted) {
                    slots.resize(slots.len().max(*granted as usize), new.clone());
                }
            }
            Self::Seen(pod) => set_stage(state, pod, Stage::Seen),
            Self::Done { pod, result } => {
                set_stage(state, pod, Stage::Done);
                state.result = result.or_else(|| state.result.take());
            }
            Self::Lost { pod, cause, has_ended, what, is_ignored } => {
                if has_ended {
                    hold_back(state, now);
                }
                if cause == Cause::Crashed {
                    state.count_crash(terms, is_ignored, now);
                } else {
                    state.restarts.count(cause);
                }
                let is_replaced = |other: &PodId| match what {
                    Replaced::Pod => *other == pod,
                    Replaced::Role => other.role == pod.role,
                    Replaced::Job => true,
                };
                let replaced: Vec<PodId> = state.slots().map(|(pod, _)| pod).filter(is_replaced).collect();
                replace(state, &replaced);
                (state.binding_since, state.planned_again) = (None, false);
            }
            Self::Spent { pod, rule } => {
                state.count_crash(terms, false, now);
                state.is_failed_by_rule = rule.is_some();
                state.why = rule.unwrap_or_else(|| crashed_too_often(state, terms, pod, now));
            }
            Self::Warm => {
                state.started = Some(now);
                state.binding_since = Some(now);
            }
            Self::Planned(pods) => {
                for PlannedPod { role, index, node } in pods {
                    let slot = state.roles.get_mut(role).and_then(|slots| slots.get_mut(index as usize));
                    if let Some(slot) = slot.filter(|slot| slot.stage == Stage::Unplaced) {
                        (slot.node, slot.stage) = (node, Stage::Placed);
                    }
                }
                state.binding_since.get_or_insert(now);
            }
            Self::Unbound { pods } => {
                replace(state, &pods);
                (state.binding_since, state.planned_again) = (None, true);
            }
            Self::NoRoom { pods, why } => {
                replace(state, &pods);
                give_up_last(state, terms);
                (state.binding_since, state.planned_again) = (None, false);
                state.why = why;
                if state.phase == Phase::Growing {
                    state.failed_growths = state.failed_growths.saturating_add(1);
                }
            }
            Self::Up => {
                state.awaits_nodes = false;
                // Only pods without a node set the reason.
                if state.phase == Phase::Growing && state.why.is_empty() {
                    state.failed_growths = 0;
                }
                state.unbound = 0;
                (state.binding_since, state.planned_again) = (None, false);
                state.why.clear();
            }
        }
        if phase != state.phase {
            if state.phase == Phase::Running {
                state.good_seconds = state.good_seconds.saturating_add((now - state.since).max(0));
            }
            (state.phase, state.since) = (phase, now);
            state.room_since = None;
            if phase.is_terminal() {
                state.finished = Some(now);
            }
        }
    }
}

/// Why a job fails that has no crashes left.
fn crashed_too_often(state: &State, terms: &Terms, last: PodId, now: Seconds) -> String {
    let (counted, all, most) = (state.crashes(terms, now), state.restarts.crashed, terms.max_crashes);
    let role = terms.roles.get(last.role).map_or("", |role| &role.name);
    let crashes = if counted == all { String::new() } else { format!(", of {all} in total") };
    format!(
        "its pods have crashed {counted} times{crashes}, most recently {role} {}; spec.restart.maxCrashes is {most}",
        last.index
    )
}

/// The delay before a job starts again after its pods were not bound: 30 s, doubled each time, up to 8 minutes.
fn pause(times: u32) -> i64 {
    30 << times.saturating_sub(1).min(4)
}

/// A pod that fails within this time after its start has failed early.
const SOON_SECONDS: i64 = 60;

/// Delays the next pods after early failures: 2 s, doubled with each further one, up to about 4 minutes. A failure
/// during the delay, or at the same moment, counts as part of the previous one.
fn hold_back(state: &mut State, now: Seconds) {
    if state.not_before.is_some_and(|until| until > now) {
        return;
    }
    let ran = state.phase == Phase::Running && now - state.since >= SOON_SECONDS;
    let is_same = state.phase != Phase::Running && state.since == now;
    if ran {
        state.failed_soon = 0;
    } else if !is_same {
        state.failed_soon = state.failed_soon.saturating_add(1);
        state.not_before = Some(now + (1 << state.failed_soon.min(8)));
    }
}

/// Takes all pods from the job, which then waits for room again. If lost pods are replaced one by one, indexes that are
/// done stay done. If one loss restarts all pods, they all run again.
fn release(state: &mut State, terms: &Terms, why: String) {
    let mut done = std::mem::take(&mut state.roles);
    done.iter_mut().flatten().filter(|slot| slot.stage != Stage::Done).for_each(|slot| *slot = Slot::default());
    let is_kept = terms.scope == Scope::Worker && done.iter().flatten().any(|slot| slot.stage == Stage::Done);
    clear(state, why);
    if is_kept {
        state.done = done;
    }
}

/// Takes all pods from the job.
fn clear(state: &mut State, why: String) {
    state.roles.clear();
    state.done.clear();
    (state.failed_growths, state.awaits_nodes) = (0, false);
    if std::mem::take(&mut state.failed_soon) > 0 {
        state.not_before = None;
    }
    (state.started, state.binding_since, state.planned_again) = (None, None, false);
    state.why = why;
}

fn grant(state: &mut State, granted: &[u32], nodes: &[Vec<String>]) {
    state.attempts = state.attempts.saturating_add(1);
    let done = std::mem::take(&mut state.done);
    let slot = |role: usize, index: u32| {
        let done = done.get(role).and_then(|slots| slots.get(index as usize)).filter(|slot| slot.stage == Stage::Done);
        let node = nodes.get(role).and_then(|nodes| nodes.get(index as usize)).filter(|node| !node.is_empty());
        let new = || Slot { attempt: state.attempts, node: node.cloned(), stage: Stage::Placed };
        done.cloned().unwrap_or_else(new)
    };
    let slots = |(role, granted): (usize, &u32)| (0..*granted).map(|index| slot(role, index)).collect();
    state.roles = granted.iter().enumerate().map(slots).collect();
    state.not_before = None;
    state.why.clear();
}

fn set_stage(state: &mut State, pod: PodId, stage: Stage) {
    if let Some(slot) = state.slot_mut(pod) {
        slot.stage = stage;
    }
}

/// Replaces these pods by new ones, all of one attempt.
fn replace(state: &mut State, pods: &[PodId]) {
    if pods.is_empty() {
        return;
    }
    state.attempts = state.attempts.saturating_add(1);
    let attempt = state.attempts;
    for pod in pods {
        if let Some(slot) = state.slot_mut(*pod) {
            *slot = Slot { attempt, ..Slot::default() };
        }
    }
}

/// Drops optional pods that have no node, from the highest index down, so that the remaining indexes stay contiguous.
fn give_up_last(state: &mut State, terms: &Terms) {
    for (slots, role) in state.roles.iter_mut().zip(&terms.roles) {
        while slots.len() > role.floor() && slots.last().is_some_and(|slot| slot.stage == Stage::Unplaced) {
            slots.pop();
        }
    }
}
