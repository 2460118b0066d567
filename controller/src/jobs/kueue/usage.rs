//! How many pods of a job use quota, and how many may use it.

use crate::jobs::machine::loss::uses_quota;
use crate::jobs::machine::{Observed, Pod, PodStage, Scope, Stage, State, Terms};
use crate::kueue::workload::JobWorkload;
use crate::time::Seconds;

/// The pods of a role that use quota or will use it: the pods in its slots, and other pods that still run. A succeeded
/// pod uses none if it can never be recreated.
pub(super) fn used(state: &State, observed: &Observed, role: usize, now: Seconds) -> u32 {
    let slots = state.roles.get(role).map_or(0, |slots| slots.len() as u32);
    let is_other = |pod: &&Pod| pod.id.role == role && state.slot(pod.id).is_none() && uses_quota(pod, now);
    slots - over(state, &observed.terms, role) + observed.pods.iter().filter(is_other).count() as u32
}

/// The pods of a role that have permanently ended. There are none if a loss restarts the whole gang.
pub(super) fn over(state: &State, terms: &Terms, role: usize) -> u32 {
    if terms.scope != Scope::Worker || !terms.roles.iter().all(|role| role.two_pods) {
        return 0;
    }
    let slots = state.roles.get(role).map_or(&[][..], Vec::as_slice);
    slots.iter().filter(|slot| slot.stage == Stage::Done).count() as u32
}

/// How many pods a role may have. Quota that was given back returns only at the next admission. `None`: the role was
/// not admitted.
pub(super) fn may_have(workload: &JobWorkload, state: &State, terms: &Terms, role: usize) -> Option<u32> {
    let name = &terms.roles.get(role)?.name;
    let asked = *workload.asked.get(name)?;
    let assigned = workload.assigned.get(name)?.count.unwrap_or(asked);
    let given_back = workload.reclaimable.get(name).copied().unwrap_or(0);
    let left = asked.saturating_sub(given_back).saturating_add(over(state, terms, role));
    Some(if given_back == 0 { assigned } else { assigned.min(left) })
}

/// True if a pod of the job may still be running.
pub(super) fn runs(observed: &Observed, now: Seconds) -> bool {
    observed.pods.iter().any(|pod| uses_quota(pod, now))
}

/// True if enough pods of each role are ready or done.
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
