//! The order in which the pods of a job's roles are created.

use std::collections::BTreeSet;

use larder_api::training_job::Until;

use super::observed::{Observed, RoleTerms};
use super::pod::PodId;
use super::state::{Stage, State};
use crate::objects::PodStage;

/// For each role, the role for which it waits: pods of the latter are not ready, or not done.
pub(super) fn waits_for(state: &State, observed: &Observed) -> Vec<Option<usize>> {
    let roles = &observed.terms.roles;
    if roles.iter().all(|role| role.starts_after.is_empty()) {
        return vec![None; roles.len()];
    }
    let is_up = |stage: PodStage| matches!(stage, PodStage::Ready | PodStage::Succeeded);
    let up: BTreeSet<PodId> = observed.pods.iter().filter(|pod| is_up(pod.stage)).map(|pod| pod.id).collect();
    let (mut ready, mut done) = (vec![true; roles.len()], vec![true; roles.len()]);
    for (id, _) in state.slots().filter(|(id, slot)| id.role < roles.len() && slot.stage != Stage::Done) {
        done[id.role] = false;
        ready[id.role] &= up.contains(&id);
    }
    let awaited = |until: Until| match until {
        Until::Ready => &ready,
        Until::Done => &done,
    };
    let first = |role: &RoleTerms| {
        let mut before = role.starts_after.iter();
        before.find(|before| awaited(before.until).get(before.role) == Some(&false)).map(|before| before.role)
    };
    roles.iter().map(first).collect()
}
