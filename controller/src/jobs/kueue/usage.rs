//! How many pods of a job use quota, and how many may.

use super::workload::JobWorkload;
use crate::jobs::machine::loss::uses_quota;
use crate::jobs::machine::{Observed, Pod, PodStage, Scope, Stage, State, Terms};
use crate::time::Seconds;

/// The pods of a role that use quota or will: those that it is to have, and others that still run. One that has ended well uses none,
/// if nothing can have it made again.
pub(super) fn used(state: &State, observed: &Observed, role: usize, now: Seconds) -> u32 {
    let slots = state.roles.get(role).map_or(0, |slots| slots.len() as u32);
    let is_other = |pod: &&Pod| pod.id.role == role && state.slot(pod.id).is_none() && uses_quota(pod, now);
    slots - over(state, &observed.terms, role) + observed.pods.iter().filter(is_other).count() as u32
}

/// The pods of a role that have ended for good. Where a loss starts the whole gang again, there are none.
pub(super) fn over(state: &State, terms: &Terms, role: usize) -> u32 {
    if terms.scope != Scope::Worker || !terms.roles.iter().all(|role| role.two_pods) {
        return 0;
    }
    let slots = state.roles.get(role).map_or(&[][..], Vec::as_slice);
    slots.iter().filter(|slot| slot.stage == Stage::Done).count() as u32
}

/// How many pods a role may have. What was given back does not return before the next admission. `None`: it was not admitted.
pub(super) fn may_have(workload: &JobWorkload, state: &State, terms: &Terms, role: usize) -> Option<u32> {
    let name = &terms.roles.get(role)?.name;
    let asked = *workload.asked.get(name)?;
    let assigned = workload.assigned.get(name)?.count.unwrap_or(asked);
    let given_back = workload.reclaimable.get(name).copied().unwrap_or(0);
    let left = asked.saturating_sub(given_back).saturating_add(over(state, terms, role));
    Some(if given_back == 0 { assigned } else { assigned.min(left) })
}

/// True if something of the job may still run.
pub(super) fn runs(observed: &Observed, now: Seconds) -> bool {
    observed.pods.iter().any(|pod| uses_quota(pod, now))
}

/// True if as many pods of each role as it needs are ready, or done.
pub(super) fn is_ready(state: &State, observed: &Observed) -> bool {
    let up = |role: usize| {
        let slots = state.slots().filter(|(pod, slot)| {
            let stage = observed.pods.iter().find(|there| there.id == *pod).map(|there| there.stage);
            pod.role == role
                && (slot.stage == Stage::Done || matches!(stage, Some(PodStage::Ready | PodStage::Succeeded)))
        });
        slots.count()
    };
    state.phase.has_pods()
        && observed.terms.roles.iter().enumerate().all(|(at, role)| up(at) >= role.min.max(1) as usize)
}
