//! The actions of a step: the difference between the pods that a job may have and the pods that exist.

use crate::time::Seconds;
use larder_api::Phase;
use larder_api::training_job::KeepPods;
use std::collections::{BTreeMap, BTreeSet};

use super::events::{REFUSED_SECONDS, bound_until, room_seconds};
use super::loss::{is_live, stuck_at};
use super::observed::Observed;
use super::order::waits_for;
use super::pod::{Pod, PodId};
use super::state::{Stage, State};

/// An action for the caller. Actions are idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create a pod.
    Create {
        pod: PodId,
        /// The node of the plan; `None` if the scheduler chooses.
        node: Option<String>,
    },
    /// Delete a pod.
    Delete(PodId),
    /// Delete the job.
    Remove,
    /// Call [`super::step`] at this time, with a decision of the queue, unless something happens earlier.
    Again(Seconds),
}

/// All actions that follow from a state.
pub(super) fn of(state: &State, observed: &Observed, now: Seconds) -> Vec<Action> {
    let last = last_ended(observed);
    let is_to_go = |pod: &&Pod| is_to_go(state, observed, pod, last.contains(&pod.id));
    let mut actions: Vec<Action> = observed.pods.iter().filter(is_to_go).map(|pod| Action::Delete(pod.id)).collect();
    if state.phase.has_pods() {
        actions.extend(missing(state, observed, now));
    }
    match removal(state, observed) {
        Some(at) if at <= now => actions.push(Action::Remove),
        at => actions.extend(times(state, observed).chain(at).filter(|at| *at > now).min().map(Action::Again)),
    }
    actions
}

/// The number of ended pods of an index that are kept for their logs.
const KEPT: usize = 3;

/// Per index, the ended pods of the latest attempts.
fn last_ended(observed: &Observed) -> BTreeSet<PodId> {
    let mut ended: BTreeMap<(usize, u32), Vec<PodId>> = BTreeMap::new();
    for pod in observed.pods.iter().filter(|pod| pod.stage.has_ended()) {
        ended.entry((pod.id.role, pod.id.index)).or_default().push(pod.id);
    }
    let last = |mut pods: Vec<PodId>| {
        pods.sort();
        pods.into_iter().rev().take(KEPT)
    };
    ended.into_values().flat_map(last).collect()
}

/// True for a pod that belongs to no slot and is not terminating yet. If the user keeps pods for their logs, the last
/// crashed pods of an index and the pods of an ended job are exempt.
fn is_to_go(state: &State, observed: &Observed, pod: &Pod, is_last: bool) -> bool {
    let is_kept = match observed.terms.keep_pods {
        KeepPods::None => false,
        KeepPods::Ended => is_last,
        KeepPods::All => is_last || state.phase.is_terminal() && !pod.stage.has_ended(),
    };
    let is_current = state.slot(pod.id).is_some() && state.phase.has_pods();
    pod.leaving.is_none() && !is_current && !is_kept
}

/// The pods to create. A pod waits while an earlier pod of its index is in the way, or its role for another one.
fn missing(state: &State, observed: &Observed, now: Seconds) -> impl Iterator<Item = Action> {
    let mut there: BTreeMap<(usize, u32), Vec<&Pod>> = BTreeMap::new();
    for pod in &observed.pods {
        there.entry((pod.id.role, pod.id.index)).or_default().push(pod);
    }
    let waits = waits_for(state, observed);
    let may_start = move |role: usize| waits.get(role).is_none_or(Option::is_none);
    let placed = state.slots().filter(move |(id, slot)| slot.stage == Stage::Placed && may_start(id.role));
    placed.filter_map(move |(id, slot)| {
        let others = there.get(&(id.role, id.index)).map_or(&[][..], Vec::as_slice);
        // If the type allows two pods of an index, a terminating pod does not block the next one. A pod without a node
        // still blocks it: the scheduler may have bound it a moment ago, and it may be running.
        let makes_way = |pod: &Pod| observed.terms.two_pods(id.role) && pod.leaving.is_some();
        let in_the_way = |pod: &&Pod| pod.id == id || is_live(pod, now) && !makes_way(pod);
        let create = || Action::Create { pod: id, node: slot.node.clone() };
        (!others.iter().any(in_the_way)).then(create)
    })
}

fn removal(state: &State, observed: &Observed) -> Option<Seconds> {
    Some(state.finished? + observed.terms.ttl?)
}

/// The times at which the passing of time alone may change the state or the actions.
fn times(state: &State, observed: &Observed) -> impl Iterator<Item = Seconds> {
    let terms = &observed.terms;
    let is_over = state.phase.is_terminal();
    let ends = state.ends(terms).filter(|_| state.phase.has_pods());
    let data = observed.data.iter().filter(|_| state.phase == Phase::DataWarming);
    let data = data.filter(|data| data.percent < data.enough).map(|data| state.since + data.timeout);
    let pods = || observed.pods.iter().filter(|pod| !pod.stage.has_ended());
    let nodes = pods().filter_map(|pod| pod.node).chain(observed.planned.iter().map(|(_, health)| *health));
    let lost = nodes.filter_map(|node| node.lost_at);
    // Nothing waits for a pod of an ended job.
    let stuck = pods().filter(move |_| !is_over).filter_map(stuck_at);
    let refused_by = state.refused_by.iter().filter(move |_| !is_over);
    ends.into_iter()
        .chain(bound_until(state, observed))
        .chain(state.room_since.map(|since| since + room_seconds(state)))
        .chain(state.not_before)
        .chain(refused_by.map(|refused| refused.at + REFUSED_SECONDS))
        .chain(data)
        .chain(lost)
        .chain(stuck)
}
