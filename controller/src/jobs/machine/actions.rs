//! The actions of a step: the difference between the pods that a job may have and those that there are.

use crate::time::Seconds;
use larder_api::Phase;
use larder_api::training_job::KeepPods;
use std::collections::{BTreeMap, BTreeSet};

use super::events::{ROOM_SECONDS, bound_until};
use super::loss::{changes_at, is_live};
use super::observed::Observed;
use super::pod::{Pod, PodId};
use super::state::{Stage, State};

/// Something to be done. Doing it twice does no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make a pod.
    Create {
        /// Which one.
        pod: PodId,
        /// On this node; `None`: the scheduler chooses.
        node: Option<String>,
    },
    /// Delete a pod.
    Delete(PodId),
    /// Delete the job.
    Remove,
    /// Make the next step at this time, with a decision of the queue, if nothing happens before.
    Again(Seconds),
}

/// All that is to be done in a state.
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

/// How many ended pods of an index are kept.
const KEPT: usize = 3;

/// The ended pods of each index that ended last.
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

/// True for a pod that is nobody's, and has not been told to end. The last pods of an ended job, and the last ones of an index that
/// have crashed, are kept for their logs if the user wants that.
fn is_to_go(state: &State, observed: &Observed, pod: &Pod, is_last: bool) -> bool {
    let is_kept = match observed.terms.keep_pods {
        KeepPods::None => false,
        KeepPods::Ended => is_last,
        KeepPods::All => is_last || state.phase.is_terminal() && !pod.stage.has_ended(),
    };
    let is_current = state.slot(pod.id).is_some() && state.phase.has_pods();
    pod.leaving.is_none() && !is_current && !is_kept
}

/// The pods that are to be made, of which no earlier one is in the way.
fn missing(state: &State, observed: &Observed, now: Seconds) -> impl Iterator<Item = Action> {
    let mut there: BTreeMap<(usize, u32), Vec<&Pod>> = BTreeMap::new();
    for pod in &observed.pods {
        there.entry((pod.id.role, pod.id.index)).or_default().push(pod);
    }
    state.slots().filter(|(_, slot)| slot.stage == Stage::Placed).filter_map(move |(id, slot)| {
        let others = there.get(&(id.role, id.index)).map_or(&[][..], Vec::as_slice);
        // Where two pods of an index may run, one of them has been told to end. One that was unbound a moment ago may run by now.
        let makes_way = |pod: &Pod| observed.terms.two_pods(id.role) && pod.leaving.is_some();
        let in_the_way = |pod: &&Pod| pod.id == id || is_live(pod, now) && !makes_way(pod);
        let create = || Action::Create { pod: id, node: slot.node.clone() };
        (!others.iter().any(in_the_way)).then(create)
    })
}

fn removal(state: &State, observed: &Observed) -> Option<Seconds> {
    Some(state.finished? + observed.terms.ttl?)
}

/// When time alone may change something.
fn times(state: &State, observed: &Observed) -> impl Iterator<Item = Seconds> {
    let terms = &observed.terms;
    let is_over = state.phase.is_terminal();
    let ends = state.ends(terms).filter(|_| state.phase.has_pods());
    let data = observed.data.iter().filter(|_| state.phase == Phase::DataWarming);
    let data = data.filter(|data| data.percent < data.enough).map(|data| state.since + data.timeout);
    let pods = observed.pods.iter().filter(move |pod| !(is_over && pod.stage.has_ended())).flat_map(changes_at);
    ends.into_iter()
        .chain(bound_until(state, terms))
        .chain(state.room_since.map(|since| since + ROOM_SECONDS))
        .chain(state.not_before)
        .chain(data)
        .chain(pods)
}
