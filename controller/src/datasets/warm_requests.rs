//! Room on the nodes of jobs, in Kueue's queues or Larder's own, and how far it is filled.
//!
//! Each job gets as many nodes as it has pods, of those that they may run on. Jobs run beside each other, so one gets
//! nodes that no other job has as long as there are any; nodes that `spec.nodes` chose are for all. The job that fewer
//! nodes suit chooses first, then the one that waits longer. The conditions of the dataset are about `spec.nodes`
//! alone.

use std::collections::BTreeSet;

use larder_api::{ConditionKind, Reason};
use larder_dataset::nodes::choose;

use super::status_draft::Draft;
use super::{origin, place};
use crate::datasets::input::{DatasetView, Decision, NodeFacts};
use crate::objects::DatasetObject;
use crate::warm_request::{Progress, WarmRequest, Warmth};

/// The nodes of a wish.
#[derive(Clone)]
struct Granted {
    /// As many as its pods can use.
    wanted: usize,
    /// Those that have room.
    nodes: BTreeSet<String>,
    why: String,
}

pub(super) fn step(draft: &mut Draft<'_>) {
    let view = draft.view;
    if view.wishes_unknown {
        keep_promises(draft);
    }
    if view.wishes.is_empty() {
        return;
    }
    let own = draft.key().namespace.clone();
    let (granted, refused): (Vec<&WarmRequest>, Vec<&WarmRequest>) =
        view.wishes.iter().partition(|wish| draft.spec.is_granted(&own, &wish.by.key().namespace));
    refused.into_iter().for_each(|wish| refuse(&mut draft.decision, wish));
    if origin::is_folder(&draft.spec) {
        let warmth =
            Warmth { wanted: 1, holding: 1, why: "a directory, which is not cached".into(), ..Warmth::default() };
        granted.into_iter().for_each(|wish| tell(draft, wish, warmth.clone()));
        return;
    }
    let Some(current) = draft.status.snapshot.clone() else {
        let imported = draft.found(ConditionKind::Imported);
        let why = imported.map(|verdict| verdict.reason.to_string()).unwrap_or_default();
        let warmth = Warmth { why, ..Warmth::default() };
        granted.into_iter().for_each(|wish| tell(draft, wish, warmth.clone()));
        return;
    };
    for (wish, room) in place(draft, &granted, &current) {
        let warmth = warmth(draft, &room, &current);
        tell(draft, wish, warmth);
    }
    // A job that starts after the next snapshot took over reads that one.
    if let Some(next) = draft.status.next.clone() {
        place(draft, &granted, &next);
    }
}

/// While nobody knows which jobs there are, what was promised to them stays.
fn keep_promises(draft: &mut Draft<'_>) {
    let view = draft.view;
    let snapshots: Vec<String> = draft.status.snapshot.iter().chain(&draft.status.next).cloned().collect();
    for facts in &view.nodes {
        let own = facts.promised.iter().filter(|there| there.uid == draft.uid() && snapshots.contains(&there.snapshot));
        for there in own.cloned().collect::<Vec<_>>() {
            promise(draft, facts, &there.snapshot, there.bytes);
        }
    }
}

/// Wishes for a dataset whose spec is not accepted.
pub(super) fn hold(view: &DatasetView<'_>, dataset: &DatasetObject, reason: Reason, decision: &mut Decision) {
    let own = &dataset.meta.key.namespace;
    for wish in &view.wishes {
        if dataset.dataset.spec.is_granted(own, &wish.by.key().namespace) {
            let warmth = Warmth { why: reason.to_string(), ..Warmth::default() };
            decision.progress.insert(wish.by.clone(), Progress::Warms(warmth));
        } else {
            refuse(decision, wish);
        }
    }
}

/// Wishes for a dataset that is not there, or may not be used.
pub(super) fn refuse_all(view: &DatasetView<'_>, decision: &mut Decision) {
    view.wishes.iter().for_each(|wish| refuse(decision, wish));
}

fn refuse(decision: &mut Decision, wish: &WarmRequest) {
    decision.progress.insert(wish.by.clone(), Progress::Refused);
}

fn tell(draft: &mut Draft<'_>, wish: &WarmRequest, warmth: Warmth) {
    let progress = &mut draft.decision.progress;
    let all = match progress.get(&wish.by) {
        Some(Progress::Warms(before)) => before.and(&warmth),
        _ => warmth,
    };
    progress.insert(wish.by.clone(), Progress::Warms(all));
}

/// Promises room for a snapshot to each wish.
fn place<'a>(draft: &mut Draft<'_>, wishes: &[&'a WarmRequest], snapshot: &str) -> Vec<(&'a WarmRequest, Granted)> {
    let view = draft.view;
    if !place::is_local(draft) {
        let room = place_shares(draft, snapshot);
        return wishes.iter().map(|wish| (*wish, room.clone())).collect();
    }
    let may_hold = |facts: &&NodeFacts<'_>| place::may_hold(draft, facts, snapshot);
    let able: Vec<&NodeFacts<'_>> = view.nodes.iter().filter(may_hold).collect();
    let mut wishes: Vec<(Vec<&NodeFacts<'_>>, &'a WarmRequest)> = wishes
        .iter()
        .map(|wish| (able.iter().copied().filter(|facts| wish.places.allow(facts.node)).collect(), *wish))
        .collect();
    wishes.sort_by(|(a, left), (b, right)| (a.len(), left.since, &left.by).cmp(&(b.len(), right.since, &right.by)));
    let bytes = place::share(draft, place::extent_of(draft, snapshot), 1);
    let mut taken = BTreeSet::new();
    let mut granted = Vec::new();
    for (allowed, wish) in wishes {
        let wanted = wish.pods.min(allowed.len());
        let is_used = |facts: &&NodeFacts<'_>| taken.contains(&facts.node.meta.key.name);
        let (used, free): (Vec<_>, Vec<_>) = allowed.iter().copied().partition(is_used);
        let candidates = |of: &[&NodeFacts<'_>]| {
            of.iter().map(|facts| place::candidate(draft, facts, snapshot, bytes)).collect::<Vec<_>>()
        };
        let choice = choose(Some(wanted.min(free.len())), candidates(&free));
        let mut nodes: BTreeSet<String> = choice.nodes.into_iter().collect();
        let more = choose(Some(wanted - nodes.len()), candidates(&used));
        nodes.extend(more.nodes);
        let why = if allowed.is_empty() {
            "no ready node with a cache matches the pods of the job".to_owned()
        } else {
            let shortage = choice.shortage.or(more.shortage).filter(|_| nodes.len() < wanted);
            shortage.map(|shortage| shortage.to_string()).unwrap_or_default()
        };
        draft.decision.is_starved |= nodes.len() < wanted;
        for facts in allowed.iter().filter(|facts| nodes.contains(&facts.node.meta.key.name)) {
            promise(draft, facts, snapshot, bytes);
        }
        taken.extend(nodes.iter().cloned());
        granted.push((wish, Granted { wanted, nodes, why }));
    }
    granted
}

/// Of a dataset that nodes share, every node that suits it gets its share, whichever of them the pods run on.
fn place_shares(draft: &mut Draft<'_>, snapshot: &str) -> Granted {
    let view = draft.view;
    let fit: Vec<&NodeFacts<'_>> = view.nodes.iter().filter(|facts| place::is_fit(draft, facts, snapshot)).collect();
    let bytes = place::share(draft, place::extent_of(draft, snapshot), fit.len());
    let candidates = fit.iter().map(|facts| place::candidate(draft, facts, snapshot, bytes)).collect();
    let choice = choose(None, candidates);
    let nodes: BTreeSet<String> = choice.nodes.into_iter().collect();
    for facts in fit.iter().filter(|facts| nodes.contains(&facts.node.meta.key.name)) {
        promise(draft, facts, snapshot, bytes);
    }
    draft.decision.is_starved |= choice.shortage.is_some();
    let why = choice.shortage.map(|shortage| shortage.to_string()).unwrap_or_default();
    Granted { wanted: fit.len(), nodes, why }
}

fn promise(draft: &mut Draft<'_>, facts: &NodeFacts<'_>, snapshot: &str, bytes: u64) {
    let node = &facts.node.meta.key.name;
    let there = draft.decision.promises.get(node).into_iter().flatten().any(|promise| promise.snapshot == snapshot);
    if !there {
        draft.only_wished.insert((node.clone(), snapshot.to_owned()));
        place::promise_of(draft, facts, place::promise(draft, snapshot, bytes));
    }
}

fn warmth(draft: &Draft<'_>, room: &Granted, snapshot: &str) -> Warmth {
    let (bytes, _) = place::extent_of(draft, snapshot);
    let bytes = place::part(draft, bytes, if place::is_local(draft) { 1 } else { room.wanted });
    let mut warmth = Warmth { wanted: room.wanted as u64, why: room.why.clone(), ..Warmth::default() };
    for facts in draft.view.nodes.iter().filter(|facts| room.nodes.contains(&facts.node.meta.key.name)) {
        let here = facts.snapshot(snapshot);
        let wanted = here.map(|here| here.wanted_bytes).filter(|wanted| *wanted > 0).unwrap_or(bytes).min(bytes);
        warmth.wanted_bytes += wanted;
        // Bytes that are there without the promise may go again.
        if facts.has_taken(draft.uid(), snapshot) {
            warmth.holding += u64::from(facts.has_promised(draft.uid(), snapshot));
            warmth.cached_bytes += here.map_or(0, |here| here.bytes).min(wanted);
        }
    }
    // Nodes without room have nothing, and count.
    warmth.wanted_bytes += bytes.saturating_mul((room.wanted - room.nodes.len()) as u64);
    warmth
}

#[cfg(test)]
mod tests;
