//! The reason that a job waits, as a sentence with numbers.

use std::collections::BTreeMap;

use super::loss::is_live;
use super::observed::{Data, Observed};
use super::order;
use super::pod::{Pod, PodId};
use super::state::{Stage, State};
use crate::objects::PodStage;
use crate::time::Seconds;
use larder_api::Phase;
use larder_kube::fields::hour;

/// The reason that a job waits; `None` if it waits for nothing. A queued job waits for what the queue reports.
pub fn waits_for(state: &State, observed: &Observed, now: Seconds) -> Option<String> {
    match state.phase {
        Phase::DataWarming => Some(cold(state, &observed.data)),
        Phase::Shrinking => {
            let is_surplus = |pod: &&Pod| state.slot(pod.id).is_none() && is_live(pod, now);
            Some(format!("{} are still terminating", pods(observed.pods.iter().filter(is_surplus).count())))
        }
        Phase::Starting | Phase::Growing | Phase::Recovering => Some(missing(state, observed, now)),
        Phase::Queued | Phase::Failed => Some(state.why.clone()).filter(|why| !why.is_empty()),
        Phase::Suspended => Some("spec.suspend is true".to_owned()),
        Phase::Running | Phase::Succeeded => None,
    }
}

fn cold(state: &State, data: &[Data]) -> String {
    let cold = data.iter().filter(|data| data.percent < data.enough).map(|data| {
        let until = hour((state.since + data.timeout).0);
        let obstacle = if data.obstacle.is_empty() { String::new() } else { format!(" ({})", data.obstacle) };
        format!("{} {} % on its nodes, enough at {} % or {until}{obstacle}", data.name, data.percent, data.enough)
    });
    format!("data: {}", cold.collect::<Vec<_>>().join("; "))
}

fn missing(state: &State, observed: &Observed, now: Seconds) -> String {
    let stages: BTreeMap<PodId, PodStage> = observed.pods.iter().map(|pod| (pod.id, pod.stage)).collect();
    let (mut all, mut up, mut unplaced, mut unbound) = (0, 0, 0, 0);
    for (id, slot) in state.slots() {
        all += 1;
        match (slot.stage, stages.get(&id)) {
            (Stage::Done, _) | (_, Some(PodStage::Ready | PodStage::Succeeded)) => up += 1,
            (Stage::Unplaced, _) => unplaced += 1,
            (_, None | Some(PodStage::Pending)) => unbound += 1,
            (_, Some(PodStage::Bound | PodStage::Failed)) => {}
        }
    }
    let mut text = format!("{up} of {} are ready", pods(all));
    if unplaced > 0 {
        text += &format!("; {unplaced} without a node");
        text += &if state.why.is_empty() { String::new() } else { format!(": {}", state.why) };
    }
    if let Some(until) = state.not_before.filter(|until| *until > now) {
        text += &format!("; pods failed soon after they started, and the next are created at {}", hour(until.0));
    }
    let waits = order::waits_for(state, observed);
    let name = |role: usize| observed.terms.roles.get(role).map_or("", |role| role.name.as_str());
    if let Some((role, before)) = waits.iter().enumerate().find_map(|(role, before)| Some((role, (*before)?))) {
        text += &format!("; {} starts after {}", name(role), name(before));
    } else if unbound > 0 {
        text += &format!("; {unbound} not bound yet");
    }
    text
}

fn pods(count: usize) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}
