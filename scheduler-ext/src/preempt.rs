//! Which pods may be preempted for another pod. No gang falls below its minimum; index 0 of a role and pinned pods are
//! never preempted.
//!
//! A [`Case`] contains everything that the answer depends on, in plain values; [`decide`] is pure. On each node, it
//! prefers workers of elastic jobs above their minimum to the scheduler's victims, from the highest index down, if they
//! free as much. Otherwise it keeps the scheduler's victims if they may be preempted, or else drops the node.
//!
//! The scheduler chooses one of the remaining nodes, so the minimums must hold for each node separately. Pods that
//! earlier answers may have preempted count as gone until it is known which node was chosen; see [`ledger`].

pub mod case;
pub mod ledger;

use std::collections::BTreeMap;

pub use larder_api::decision::{Case, NodeCase, PodCase, RoleRoom};

/// A node with the pods to preempt on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen<'c> {
    pub node: &'c str,
    /// Their uids, at least one.
    pub uids: Vec<&'c str>,
    /// How many of them would violate a PodDisruptionBudget, as far as the request tells.
    pub budget_violations: i64,
}

/// The nodes on which the pod may take room, with the pods to preempt on each.
pub fn decide(case: &Case) -> Vec<Chosen<'_>> {
    case.nodes.iter().filter_map(|node| on_node(case, node)).collect()
}

fn on_node<'c>(case: &'c Case, node: &'c NodeCase) -> Option<Chosen<'c>> {
    if node.victims.is_empty() {
        return None;
    }
    let may_end = may_end(case, &node.victims);
    let uids = |pods: &[&'c PodCase]| pods.iter().map(|pod| pod.uid.as_str()).collect();
    if let Some(workers) = surplus(case, node, may_end) {
        // The scheduler reports budget violations only for its own victims, so other workers count as none.
        let is_asked = |worker: &&PodCase| node.victims.iter().any(|victim| victim.uid == worker.uid);
        let same = workers.len() == node.victims.len() && workers.iter().all(is_asked);
        let budget_violations = if same { node.budget_violations } else { 0 };
        return Some(Chosen { node: &node.name, uids: uids(&workers), budget_violations });
    }
    may_end.then(|| Chosen {
        node: &node.name,
        uids: uids(&node.victims.iter().collect::<Vec<_>>()),
        budget_violations: node.budget_violations,
    })
}

/// True if all of these pods may be preempted together.
fn may_end(case: &Case, pods: &[PodCase]) -> bool {
    let mut of_role = vec![0u32; case.roles.len()];
    for pod in pods {
        if !pod.known {
            return false;
        }
        if pod.leaving {
            continue;
        }
        if pod.pinned {
            return false;
        }
        let Some((role, index)) = pod.seat else { continue };
        let Some(room) = case.roles.get(role) else { return false };
        // A job that is being deleted has no minimum, and its index 0 is not protected.
        if index == 0 && room.floor != Some(0) {
            return false;
        }
        of_role[role] += 1;
    }
    case.roles.iter().zip(of_role).all(|(room, ending)| ending <= room.surplus() || ending == 0)
}

/// A minimal set of workers above the minimum that frees at least as much as the victims would.
fn surplus<'c>(case: &'c Case, node: &'c NodeCase, victims_may_end: bool) -> Option<Vec<&'c PodCase>> {
    if case.entangled || node.victims.iter().any(|victim| victim.entangled || !victim.known) {
        return None;
    }
    let mut wanted: BTreeMap<&str, u64> = BTreeMap::new();
    for victim in node.victims.iter().filter(|victim| !victim.leaving) {
        for (resource, amount) in &victim.requests {
            let sum = wanted.entry(resource).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }
    // If the scheduler's victims may be preempted, no pod with a higher priority is preempted in their place.
    let highest = node.victims.iter().map(|victim| victim.priority).max().unwrap_or(i32::MIN);
    let is_below = |pod: &PodCase| pod.priority < case.priority && (!victims_may_end || pod.priority <= highest);
    let is_lent = |pod: &&PodCase| {
        let is_surplus = pod.seat.is_some_and(|(role, index)| index > 0 && role < case.roles.len());
        is_surplus && pod.known && !pod.pinned && !pod.leaving && is_below(pod)
    };
    let mut lent: Vec<&PodCase> = node.victims.iter().chain(&node.workers).filter(is_lent).collect();
    lent.sort_by(|a, b| {
        let index = |pod: &PodCase| pod.seat.map_or(0, |(_, index)| index);
        (a.priority, index(b), &a.uid).cmp(&(b.priority, index(a), &b.uid))
    });
    let mut left: Vec<u32> = case.roles.iter().map(RoleRoom::surplus).collect();
    let mut chosen: Vec<&PodCase> = Vec::new();
    for pod in lent {
        if frees(&chosen, &wanted) && !chosen.is_empty() {
            break;
        }
        let Some((role, _)) = pod.seat else { continue };
        // Skips a pod that frees none of the wanted resources.
        let helps = pod.requests.iter().any(|(resource, amount)| *amount > 0 && wanted.contains_key(resource.as_str()));
        if left[role] > 0 && helps {
            left[role] -= 1;
            chosen.push(pod);
        }
    }
    if chosen.is_empty() || !frees(&chosen, &wanted) {
        return None;
    }
    // Workers with the lowest indexes stay if possible.
    let mut at = chosen.len();
    while at > 0 && chosen.len() > 1 {
        at -= 1;
        let pod = chosen.remove(at);
        if !frees(&chosen, &wanted) {
            chosen.insert(at, pod);
        }
    }
    Some(chosen)
}

/// True if these pods request at least as much of every wanted resource.
fn frees(pods: &[&PodCase], wanted: &BTreeMap<&str, u64>) -> bool {
    wanted.iter().all(|(resource, wanted)| {
        let sum = pods.iter().map(|pod| pod.requests.get(*resource).copied().unwrap_or(0));
        sum.fold(0, u64::saturating_add) >= *wanted
    })
}

#[cfg(test)]
mod tests;
