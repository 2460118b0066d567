//! The part of a decision that the CacheQuota of the dataset's namespace allows.
//!
//! Promises that stand, stay, however small the quota has become. The promises that a decision adds are withdrawn if
//! the quota has no room for them: those for the nodes of `spec.nodes` together, because a part of them may be of no
//! use, and those for jobs and pinned bytes one by one. The nodes that another snapshot needs beside the current one
//! come after both: without them, the next snapshot is published before nodes hold it.

use std::collections::BTreeMap;

use larder_api::{ConditionKind, PromisedDataset, Reason};
use larder_dataset::size::show_bytes;

use super::status_draft::Draft;
use crate::datasets::input::{NodeFacts, QuotaView};
use crate::warm_request::Progress;

/// The interval between two checks whether an import may start: one that fails gives up its place without an event.
const IMPORT_SECONDS: i64 = 60;

/// The promises for which there is no room.
#[derive(Default)]
struct Withdrawn {
    nodes: usize,
    bytes: u64,
    /// The most bytes on one node.
    largest: u64,
}

impl Withdrawn {
    fn add(&mut self, bytes: u64) {
        self.nodes += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.largest = self.largest.max(bytes);
    }
}

/// A promise that a decision adds, or the part by which it increases one.
#[derive(Clone)]
struct Added {
    node: String,
    snapshot: String,
    bytes: u64,
}

/// Whether the dataset is one too many for the quota; the message says so.
fn one_too_many(draft: &Draft<'_>) -> Option<String> {
    let quota = draft.view.quota?;
    let most = quota.limits.datasets.filter(|most| quota.older >= *most as usize)?;
    let there = if quota.older == 1 { "1 older one exists" } else { &format!("{} older ones exist", quota.older) };
    Some(format!("{} {}, and {there}", allows(draft, &quota), count(most as usize, "Dataset")))
}

/// `the CacheQuota research allows the namespace team-a`.
fn allows(draft: &Draft<'_>, quota: &QuotaView<'_>) -> String {
    let others = if quota.limits.namespaces.len() > 1 { " and those that share the quota" } else { "" };
    format!("the CacheQuota {} allows the namespace {}{others}", quota.name, draft.key().namespace)
}

/// Whether the quota lets an import start. `first`: nothing has been imported yet. The error says why it waits.
pub(super) fn may_import(draft: &mut Draft<'_>, first: bool) -> Result<(), String> {
    if let Some(message) = one_too_many(draft).filter(|_| first) {
        draft.decision.over_quota = Some(0);
        return Err(message);
    }
    let Some(quota) = draft.view.quota else { return Ok(()) };
    let Some(most) = quota.limits.imports.filter(|most| quota.imports >= *most as usize) else { return Ok(()) };
    draft.decision.awaits_import = true;
    draft.decision.again(draft.view.now + IMPORT_SECONDS);
    let said = format!("{} at a time; running or before this one: {}", count(most as usize, "import"), quota.imports);
    Err(format!("{} {said}", allows(draft, &quota)))
}

/// Withdraws the promises for which the quota has no room.
pub(super) fn step(draft: &mut Draft<'_>) {
    let Some(quota) = draft.view.quota else { return };
    let too_many = one_too_many(draft);
    let Some(most) = quota.limits.promised_bytes.or(too_many.as_ref().map(|_| 0)) else { return };
    let standing = standing(draft);
    let own: u64 = standing.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
    let (added, stays) = added(draft, &standing);
    let others = quota.promised.saturating_sub(own).saturating_add(quota.kept);
    let mut room = most.saturating_sub(others.saturating_add(stays));
    if too_many.is_some() {
        room = 0;
    }
    let Groups { spec, mut requested, next, pinned } = Groups::of(draft, added);
    let (mut of_spec, mut of_requests) = (Withdrawn::default(), Withdrawn::default());
    for one in together(&spec, &mut room) {
        of_spec.add(one.bytes);
        if draft.requested.contains(&(one.node.clone(), one.snapshot.clone())) {
            requested.push(one);
        } else {
            withdraw(draft, &one, &standing);
        }
    }
    for one in one_by_one(&requested, &mut room) {
        of_requests.add(one.bytes);
        withdraw(draft, &one, &standing);
    }
    let mut is_limited = of_spec.nodes + of_requests.nodes > 0;
    for one in together(&next, &mut room).into_iter().chain(one_by_one(&pinned, &mut room)) {
        is_limited = true;
        withdraw(draft, &one, &standing);
    }
    if is_limited {
        // Younger datasets leave as much to this one as the nodes of its spec need.
        draft.decision.over_quota = Some(of_spec.bytes);
    }
    let message = |draft: &Draft<'_>, withdrawn: &Withdrawn| match &too_many {
        Some(message) => message.clone(),
        None => arithmetic(draft, &quota, most, withdrawn),
    };
    if of_spec.nodes > 0 {
        draft.verdicts.retain(|verdict| verdict.kind != ConditionKind::Placed);
        let message = message(draft, &of_spec);
        draft.find(ConditionKind::Placed, false, Reason::QuotaExceeded, message);
    }
    if of_requests.nodes > 0 {
        let message = message(draft, &of_requests);
        report_to_jobs(draft, &message);
    }
}

/// The promises that the dataset has, by node and snapshot.
fn standing(draft: &Draft<'_>) -> BTreeMap<(String, String), u64> {
    let of_node = |facts: &NodeFacts<'_>| {
        let own = facts.promised.iter().filter(|promise| promise.uid == draft.uid());
        let node = facts.node.meta.key.name.clone();
        own.map(|promise| ((node.clone(), promise.snapshot.clone()), promise.bytes)).collect::<Vec<_>>()
    };
    draft.view.nodes.iter().flat_map(of_node).collect()
}

/// The promises that the decision adds to the standing ones, and the bytes of the standing ones that it keeps.
fn added(draft: &Draft<'_>, standing: &BTreeMap<(String, String), u64>) -> (Vec<Added>, u64) {
    let (mut added, mut stays) = (Vec::new(), 0_u64);
    for (node, promises) in &draft.decision.promises {
        for promise in promises {
            let before = standing.get(&(node.clone(), promise.snapshot.clone())).copied().unwrap_or(0);
            stays = stays.saturating_add(before.min(promise.bytes));
            let bytes = promise.bytes.saturating_sub(before);
            if bytes > 0 {
                added.push(Added { node: node.clone(), snapshot: promise.snapshot.clone(), bytes });
            }
        }
    }
    (added, stays)
}

/// The added promises, by the reason for them.
struct Groups {
    spec: Vec<Added>,
    requested: Vec<Added>,
    next: Vec<Added>,
    pinned: Vec<Added>,
}

impl Groups {
    fn of(draft: &Draft<'_>, added: Vec<Added>) -> Self {
        let mut groups = Self { spec: Vec::new(), requested: Vec::new(), next: Vec::new(), pinned: Vec::new() };
        for one in added {
            let at = (one.node.clone(), one.snapshot.clone());
            let group = if draft.only_pinned.contains(&at) {
                &mut groups.pinned
            } else if draft.status.snapshot.as_ref() != Some(&one.snapshot) {
                &mut groups.next
            } else if draft.only_requested.contains(&at) {
                &mut groups.requested
            } else {
                &mut groups.spec
            };
            group.push(one);
        }
        groups
    }
}

/// Takes room for all of these, or for none. Returns those that get none.
fn together(added: &[Added], room: &mut u64) -> Vec<Added> {
    let all = added.iter().fold(0_u64, |sum, one| sum.saturating_add(one.bytes));
    if all > *room {
        return added.to_vec();
    }
    *room -= all;
    Vec::new()
}

/// Takes room for as many of these as fit. Returns those that get none.
fn one_by_one(added: &[Added], room: &mut u64) -> Vec<Added> {
    let mut without = Vec::new();
    for one in added {
        if one.bytes > *room {
            without.push(one.clone());
        } else {
            *room -= one.bytes;
        }
    }
    without
}

/// Withdraws an added promise, or the part by which it was increased.
fn withdraw(draft: &mut Draft<'_>, one: &Added, standing: &BTreeMap<(String, String), u64>) {
    let at = (one.node.clone(), one.snapshot.clone());
    let before = standing.get(&at).copied();
    let Some(promises) = draft.decision.promises.get_mut(&one.node) else { return };
    let is_this = |promise: &PromisedDataset| promise.snapshot == one.snapshot;
    match before {
        Some(bytes) => promises.iter_mut().filter(|promise| is_this(promise)).for_each(|there| there.bytes = bytes),
        None => promises.retain(|promise| !is_this(promise)),
    }
    if promises.is_empty() {
        draft.decision.promises.remove(&one.node);
    }
}

fn arithmetic(draft: &Draft<'_>, quota: &QuotaView<'_>, most: u64, withdrawn: &Withdrawn) -> String {
    let is_of_quota = |promise: &PromisedDataset| {
        promise.name.split_once('/').is_some_and(|(namespace, _)| quota.limits.is_for(namespace))
    };
    let nodes = draft.view.nodes.iter().filter(|facts| facts.promised.iter().any(is_of_quota)).count();
    let Withdrawn { nodes: wanted, bytes, largest } = *withdrawn;
    let each = if wanted > 1 && largest.saturating_mul(wanted as u64) == bytes {
        format!("{} more on each of {wanted} nodes: {}", show_bytes(largest), show_bytes(bytes))
    } else {
        format!("{} more on {}", show_bytes(bytes), count(wanted, "node"))
    };
    let kept = if quota.kept > 0 {
        format!(", {} are kept for older Datasets that wait", show_bytes(quota.kept))
    } else {
        String::new()
    };
    format!(
        "{} {} of promised room: {} are promised on {}{kept}, and this dataset needs {each}",
        allows(draft, quota),
        show_bytes(most),
        show_bytes(quota.promised),
        count(nodes, "node")
    )
}

fn count(number: usize, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}

/// Reports to the jobs whose nodes got no room. Those of other namespaces do not learn the numbers.
fn report_to_jobs(draft: &mut Draft<'_>, message: &str) {
    let own = draft.key().namespace.clone();
    for (by, progress) in &mut draft.decision.progress {
        let Progress::Warms(warmth) = progress else { continue };
        if warmth.holding == warmth.wanted || !warmth.why.is_empty() {
            continue;
        }
        warmth.is_over_quota = true;
        warmth.why = if by.key().namespace == own {
            message.to_owned()
        } else {
            format!("the CacheQuota of the namespace {own} is used up")
        };
    }
}

#[cfg(test)]
mod tests;
