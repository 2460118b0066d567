//! Which nodes promise room to the dataset, and how much.
//!
//! An existing promise is kept while its node is eligible, because moving it would cause a complete fetch. A promise to
//! an earlier snapshot is kept until no pod on its node reads that snapshot.

use std::collections::BTreeMap;

use larder_api::dataset::NodeCount;
use larder_api::{CacheReason, ConditionKind, Keeping, PromisedDataset, Reason};
use larder_dataset::Placement;
use larder_dataset::nodes::{Candidate, Promise, Shortage, choose, most_on_disk, share_bytes};

use super::origin;
use super::status_draft::Draft;
use crate::datasets::input::NodeFacts;
use crate::time::Seconds;

/// The datasets of other namespaces, as messages name them.
const OTHERS: &str = "datasets of other namespaces";

/// The node label with the zone.
const ZONE: &str = "topology.kubernetes.io/zone";

pub(super) fn step(draft: &mut Draft<'_>) {
    if origin::is_folder(&draft.spec) {
        draft.find(ConditionKind::Placed, true, Reason::NotWanted, "each node whose pods read the directory caches it");
        return;
    }
    let Some(current) = draft.status.snapshot.clone() else {
        keep_promises(draft);
        draft.find(ConditionKind::Placed, false, Reason::Waiting, "the snapshot is not known yet");
        return;
    };
    let unused = unused_since(draft);
    let wanted_at_all = unused.is_none();
    place(draft, &current, true, wanted_at_all);
    if let Some(next) = draft.status.next.clone() {
        place(draft, &next, false, wanted_at_all);
    }
    keep_mounted(draft, &current);
    if let Some(since) = unused {
        let hours = (draft.view.now - since) / 3600;
        draft.verdicts.retain(|verdict| verdict.kind != ConditionKind::Placed);
        let message = format!("no pod has used the dataset for {hours} h (spec.keep.unusedFor)");
        draft.find(ConditionKind::Placed, true, Reason::NotWanted, message);
    }
}

/// Since when no pod has used the dataset, if that is longer than `keep.unusedFor`.
fn unused_since(draft: &mut Draft<'_>) -> Option<Seconds> {
    let Keeping::UnusedFor(most) = draft.spec.keep else { return None };
    if !draft.view.users.is_empty() {
        return None;
    }
    // The last pod may have ended a moment ago. The status is written after this.
    let had_users = draft.status.users.as_ref().is_some_and(|users| users.count > 0);
    let last_used = draft.status.last_used.as_ref().map_or(Seconds(draft.dataset.meta.created), Seconds::of);
    let since = if had_users { draft.view.now } else { last_used };
    let due = since + i64::try_from(most.as_secs()).unwrap_or(i64::MAX);
    if draft.view.now < due {
        draft.decision.again(due);
        return None;
    }
    Some(since)
}

/// With `keep.pinned`, keeps the room of cached bytes on the nodes where no other request keeps it. These nodes keep
/// what they have: nothing is fetched there, and the conditions do not cover them.
pub(super) fn pin(draft: &mut Draft<'_>) {
    if draft.spec.keep != Keeping::Pinned {
        return;
    }
    let view = draft.view;
    let snapshots: Vec<String> = draft.status.snapshot.iter().chain(&draft.status.next).cloned().collect();
    for snapshot in &snapshots {
        let extent = extent_of(draft, snapshot);
        let fit = view.nodes.iter().filter(|facts| !is_local(draft) && is_fit(draft, facts, snapshot)).count();
        let (room, whole) = (share(draft, extent, fit), part(draft, extent.0, fit));
        for facts in &view.nodes {
            let cached = facts.snapshot(snapshot).map_or(0, |cached| cached.bytes);
            let pinned = tenths_of(room, cached, whole);
            if pinned > 0 && !is_decided(draft, facts, snapshot) {
                draft.only_pinned.insert((facts.node.meta.key.name.clone(), snapshot.clone()));
                promise_of(draft, facts, promise(draft, snapshot, pinned));
            }
        }
    }
}

/// Keeps the existing promises.
fn keep_promises(draft: &mut Draft<'_>) {
    let view = draft.view;
    for facts in &view.nodes {
        for promise in own(draft, facts) {
            promise_of(draft, facts, promise);
        }
    }
}

fn own(draft: &Draft<'_>, facts: &NodeFacts<'_>) -> Vec<PromisedDataset> {
    facts.promised.iter().filter(|promise| promise.uid == draft.uid()).cloned().collect()
}

pub(super) fn promise_of(draft: &mut Draft<'_>, facts: &NodeFacts<'_>, promise: PromisedDataset) {
    let promises = draft.decision.promises.entry(facts.node.meta.key.name.clone()).or_default();
    if !promises.iter().any(|there| there.snapshot == promise.snapshot) {
        promises.push(promise);
    }
}

/// Keeps earlier snapshots where pods read them.
fn keep_mounted(draft: &mut Draft<'_>, current: &str) {
    let view = draft.view;
    for facts in &view.nodes {
        for promise in own(draft, facts) {
            let is_mounted = facts.snapshot(&promise.snapshot).is_some_and(|cached| cached.mounts > 0);
            if promise.snapshot != current && is_mounted {
                promise_of(draft, facts, promise);
            }
        }
    }
}

/// The bytes and the number of files of a snapshot.
pub(super) fn extent_of(draft: &Draft<'_>, snapshot: &str) -> (u64, u64) {
    let known = draft.status.snapshots.iter().find(|known| known.id == snapshot);
    known.map_or((0, 0), |known| (known.bytes, known.files))
}

/// The part of the room that the cached bytes take, in whole tenths, and never more than what is cached: pinning keeps
/// only what a node has.
fn tenths_of(room: u64, cached: u64, bytes: u64) -> u64 {
    let tenths = (u128::from(cached) * 10 / u128::from(bytes.max(1))).min(10);
    u64::try_from(u128::from(room) * tenths / 10).unwrap_or(u64::MAX)
}

/// The bytes of the dataset that each of `nodes` nodes should hold.
pub(super) fn part(draft: &Draft<'_>, bytes: u64, nodes: usize) -> u64 {
    let copies = match draft.spec.dataset.placement {
        None | Some(Placement::Local) => None,
        Some(Placement::Partitioned) => Some(1),
        Some(Placement::Replicated(copies)) => Some(copies.get()),
    };
    let share = copies.map_or(bytes, |copies| share_bytes(bytes, copies, 1, nodes.max(1) as u64));
    share.min(draft.spec.dataset.cache_bytes.unwrap_or(u64::MAX))
}

/// The disk space that each of the nodes should promise.
pub(super) fn share(draft: &Draft<'_>, (bytes, files): (u64, u64), nodes: usize) -> u64 {
    most_on_disk(part(draft, bytes, nodes), bytes, files)
}

pub(super) fn is_local(draft: &Draft<'_>) -> bool {
    matches!(draft.spec.dataset.placement, None | Some(Placement::Local))
}

/// Chooses the nodes of a snapshot. `first`: pods read this snapshot, so the condition is about it.
fn place(draft: &mut Draft<'_>, snapshot: &str, first: bool, wanted_at_all: bool) {
    let view = draft.view;
    let fit: Vec<&NodeFacts<'_>> = view.nodes.iter().filter(|facts| is_fit(draft, facts, snapshot)).collect();
    let count = match draft.spec.count {
        _ if !wanted_at_all => Some(0),
        NodeCount::Number(0) => Some(0),
        NodeCount::All => None,
        NodeCount::Number(_) if !is_local(draft) => None,
        NodeCount::Number(number) => Some(number as usize),
    };
    let wanted = count.unwrap_or(fit.len());
    let bytes = share(draft, extent_of(draft, snapshot), wanted);

    if count == Some(0) {
        if first {
            let message = "spec.nodes.count is 0: nodes cache what their pods read";
            draft.find(ConditionKind::Placed, true, Reason::NotWanted, message);
        }
        return;
    }
    let standing: Vec<&&NodeFacts<'_>> = fit.iter().filter(|facts| stands(draft, facts, snapshot, bytes)).collect();
    let shortage = if standing.len() == wanted && wanted > 0 {
        for facts in standing {
            promise_of(draft, facts, promise(draft, snapshot, bytes));
        }
        None
    } else {
        let chosen = choose(count, fit.iter().map(|facts| candidate(draft, facts, snapshot, bytes)).collect());
        for facts in fit.iter().filter(|facts| chosen.nodes.contains(&facts.node.meta.key.name)) {
            promise_of(draft, facts, promise(draft, snapshot, bytes));
        }
        chosen.shortage
    };
    if !first {
        return;
    }
    let holding = holding(draft, snapshot);
    match shortage {
        None if holding >= wanted => {
            draft.find(ConditionKind::Placed, true, Reason::Promised, format!("{holding} nodes hold the dataset"));
        }
        None => {
            let message = format!("{holding} of {wanted} nodes have promised room");
            draft.find(ConditionKind::Placed, false, Reason::Waiting, message);
        }
        Some(shortage) => {
            draft.decision.is_starved = true;
            let (reason, fix) = match shortage {
                Shortage::Nodes { .. } => (
                    Reason::NoNodeMatches,
                    " spec.nodes.selector, is ready and schedulable, and reports its cache (kubectl get nodecaches)",
                ),
                Shortage::Larger { ref full_because, .. } if !full_because.is_empty() => (Reason::CachesLackRoom, ""),
                Shortage::Larger { .. } => (Reason::LargerThanAnyCache, "; set spec.cache.size to cache a part"),
                Shortage::Room { .. } => (Reason::NotEnoughRoom, ""),
            };
            draft.find(ConditionKind::Placed, false, reason, format!("{shortage}{fix}"));
        }
    }
}

pub(super) fn promise(draft: &Draft<'_>, snapshot: &str, bytes: u64) -> PromisedDataset {
    PromisedDataset {
        uid: draft.uid().to_owned(),
        name: draft.key().to_string(),
        snapshot: snapshot.to_owned(),
        owner: draft.dataset.cache_owner().to_owned(),
        bytes,
    }
}

/// True for a node that may hold the snapshot: it reports a cache, and it is open for pods or already holds the
/// snapshot.
pub(super) fn is_fit(draft: &Draft<'_>, facts: &NodeFacts<'_>, snapshot: &str) -> bool {
    let labelled = draft.spec.selector.iter().all(|(key, value)| facts.node.labels.get(key) == Some(value));
    labelled && may_hold(draft, facts, snapshot)
}

/// Like [`is_fit`], without regard to the node's labels.
pub(super) fn may_hold(draft: &Draft<'_>, facts: &NodeFacts<'_>, snapshot: &str) -> bool {
    let node = facts.node;
    let reports = facts.cache.is_some_and(|cache| cache.status.is_some());
    let holds = holds(draft, facts, snapshot);
    // A NodeCache that was deleted and recreated does not move a promise.
    (reports || holds) && !node.meta.deleting && (holds || node.ready && !node.unschedulable)
}

/// True if the node was chosen for the snapshot before. Nodes with only pinned bytes have promised less.
fn stands(draft: &Draft<'_>, facts: &NodeFacts<'_>, snapshot: &str, bytes: u64) -> bool {
    let own = |promise: &&PromisedDataset| promise.uid == draft.uid() && promise.snapshot == snapshot;
    let promise = facts.promised.iter().find(own);
    promise.is_some_and(|promise| draft.spec.keep != Keeping::Pinned || promise.bytes >= bytes)
}

fn holds(draft: &Draft<'_>, facts: &NodeFacts<'_>, snapshot: &str) -> bool {
    facts.promised.iter().any(|promise| promise.uid == draft.uid() && promise.snapshot == snapshot)
}

pub(super) fn candidate(draft: &Draft<'_>, facts: &NodeFacts<'_>, snapshot: &str, bytes: u64) -> Candidate {
    let status = facts.cache.and_then(|cache| cache.status.as_ref());
    let mut promised = promised_to_others(draft, facts, snapshot, bytes);
    // Datasets that pods have open without a promise keep their room as well.
    let written = facts.cache.map_or(0, |cache| cache.spec.promised_bytes());
    let here = facts.snapshot(snapshot);

    // The written room includes a promise of this snapshot to any Dataset.
    let is_same = |promise: &PromisedDataset| promise.snapshot == snapshot && promise.owner == facts.owner;
    let is_promised = facts.promised.iter().any(is_same);
    let own = if is_promised { 0 } else { here.map_or(0, |here| here.reserved_bytes) };
    let open = status.map_or(0, |status| status.promised_bytes).saturating_sub(written).saturating_sub(own);
    if open > 0 {
        promised.push(Promise { to: "what pods have open".to_owned(), bytes: open });
    }
    Candidate {
        name: facts.node.meta.key.name.clone(),
        zone: facts.node.labels.get(ZONE).cloned().unwrap_or_default(),
        capacity_bytes: status.map_or(0, |status| status.capacity_bytes),
        full_because: status
            .and_then(|status| status.not_ready_because(CacheReason::NoRoom))
            .unwrap_or_default()
            .to_owned(),
        promised,
        wanted_bytes: bytes,
        cached_bytes: here.map_or(0, |here| here.bytes),
        is_chosen: stands(draft, facts, snapshot, bytes) || is_decided(draft, facts, snapshot),
    }
}

/// The promised room that is not available to `bytes` of a snapshot. Several promises to one snapshot and owner share
/// their room, so the largest counts.
fn promised_to_others(draft: &Draft<'_>, facts: &NodeFacts<'_>, snapshot: &str, bytes: u64) -> Vec<Promise> {
    let mut largest: BTreeMap<(&str, &str), &PromisedDataset> = BTreeMap::new();
    let others = facts.promised.iter().filter(|other| other.uid != draft.uid() || other.snapshot != snapshot);
    for promise in others {
        let there = largest.entry((&promise.snapshot, &promise.owner)).or_insert(promise);
        if promise.bytes > there.bytes {
            *there = promise;
        }
    }
    // Readers of the dataset's status learn only of datasets in their own namespace.
    let name = |promise: &PromisedDataset| {
        let is_own = promise.name.split_once('/').is_some_and(|(namespace, _)| namespace == draft.key().namespace);
        if is_own { promise.name.clone() } else { OTHERS.to_owned() }
    };
    let room = |promise: &PromisedDataset| {
        let is_same = promise.snapshot == snapshot && promise.owner == facts.owner;
        let shared = if is_same { bytes } else { 0 };
        (name(promise), promise.bytes.saturating_sub(shared))
    };
    let mut rooms: BTreeMap<String, u64> = BTreeMap::new();
    for (to, bytes) in largest.into_values().map(room).filter(|(_, bytes)| *bytes > 0) {
        let sum = rooms.entry(to).or_default();
        *sum = sum.saturating_add(bytes);
    }
    rooms.into_iter().map(|(to, bytes)| Promise { to, bytes }).collect()
}

fn is_decided(draft: &Draft<'_>, facts: &NodeFacts<'_>, snapshot: &str) -> bool {
    let promises = draft.decision.promises.get(&facts.node.meta.key.name);
    promises.into_iter().flatten().any(|promise| promise.snapshot == snapshot)
}

/// The number of chosen nodes whose larderd has stored the promise.
fn holding(draft: &Draft<'_>, snapshot: &str) -> usize {
    let chosen = draft.view.nodes.iter().filter(|facts| is_decided(draft, facts, snapshot));
    chosen.filter(|facts| facts.has_promised(draft.uid(), snapshot)).count()
}
