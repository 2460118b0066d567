//! Room on the nodes of jobs, in Kueue's or Larder's queues, and how much of it is filled.
//!
//! Each job gets as many nodes as it has pods, chosen from the nodes on which they may run. Jobs run at the same time,
//! so each gets nodes that no other job has while such nodes are available. Nodes that `spec.nodes` chose are shared by
//! all. The job with the fewest eligible nodes chooses first, then the job that has waited longer. The conditions of
//! the dataset cover only `spec.nodes`.

use std::collections::BTreeSet;

use larder_api::{ConditionKind, Reason};
use larder_dataset::nodes::choose;

use super::status_draft::Draft;
use super::{origin, place};
use crate::datasets::input::{DatasetView, Decision, NodeFacts};
use crate::objects::DatasetObject;
use crate::warm_request::{Progress, WarmRequest, Warmth};

/// The nodes of a warm request.
#[derive(Clone)]
struct Granted {
    /// The number of nodes that its pods can use.
    wanted: usize,
    /// The nodes that have room.
    nodes: BTreeSet<String>,
    why: String,
}

pub(super) fn step(draft: &mut Draft<'_>) {
    let view = draft.view;
    if view.warm_requests_unknown {
        keep_promises(draft);
    }
    if view.warm_requests.is_empty() {
        return;
    }
    let own = draft.key().namespace.clone();
    let (granted, refused): (Vec<&WarmRequest>, Vec<&WarmRequest>) =
        view.warm_requests.iter().partition(|request| draft.spec.is_granted(&own, &request.by.key().namespace));
    refused.into_iter().for_each(|request| refuse(&mut draft.decision, request));
    if origin::is_folder(&draft.spec) {
        let warmth =
            Warmth { wanted: 1, holding: 1, why: "a directory, which is not cached".into(), ..Warmth::default() };
        granted.into_iter().for_each(|request| report(draft, request, warmth.clone()));
        return;
    }
    let Some(current) = draft.status.snapshot.clone() else {
        let imported = draft.found(ConditionKind::Imported);
        let why = imported.map(|verdict| verdict.reason.to_string()).unwrap_or_default();
        let warmth = Warmth { why, ..Warmth::default() };
        granted.into_iter().for_each(|request| report(draft, request, warmth.clone()));
        return;
    };
    for (request, room) in place(draft, &granted, &current) {
        let nodes = room.nodes.iter().map(|node| (node.clone(), current.clone()));
        draft.requested.extend(nodes.clone());
        if request.gpus {
            draft.urgent.extend(nodes);
        }
        let warmth = warmth(draft, &room, &current);
        report(draft, request, warmth);
    }
    // A job that starts after the switch to the next snapshot reads that one.
    if let Some(next) = draft.status.next.clone() {
        place(draft, &granted, &next);
    }
}

/// While the jobs are not known yet, keeps the rooms that were promised to them.
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

/// The progress of requests for a dataset whose spec is rejected.
pub(super) fn hold(view: &DatasetView<'_>, dataset: &DatasetObject, reason: Reason, decision: &mut Decision) {
    let own = &dataset.meta.key.namespace;
    for request in &view.warm_requests {
        if dataset.dataset.spec.is_granted(own, &request.by.key().namespace) {
            let warmth = Warmth { why: reason.to_string(), ..Warmth::default() };
            decision.progress.insert(request.by.clone(), Progress::Warms(warmth));
        } else {
            refuse(decision, request);
        }
    }
}

/// The progress of requests for a dataset that does not exist or may not be used.
pub(super) fn refuse_all(view: &DatasetView<'_>, decision: &mut Decision) {
    view.warm_requests.iter().for_each(|request| refuse(decision, request));
}

fn refuse(decision: &mut Decision, request: &WarmRequest) {
    decision.progress.insert(request.by.clone(), Progress::Refused);
}

fn report(draft: &mut Draft<'_>, request: &WarmRequest, warmth: Warmth) {
    let progress = &mut draft.decision.progress;
    let all = match progress.get(&request.by) {
        Some(Progress::Warms(before)) => before.and(&warmth),
        _ => warmth,
    };
    progress.insert(request.by.clone(), Progress::Warms(all));
}

/// Promises room for a snapshot to each request.
fn place<'a>(draft: &mut Draft<'_>, requests: &[&'a WarmRequest], snapshot: &str) -> Vec<(&'a WarmRequest, Granted)> {
    let view = draft.view;
    if !place::is_local(draft) {
        let room = place_shares(draft, snapshot);
        return requests.iter().map(|request| (*request, room.clone())).collect();
    }
    let may_hold = |facts: &&NodeFacts<'_>| place::may_hold(draft, facts, snapshot);
    let able: Vec<&NodeFacts<'_>> = view.nodes.iter().filter(may_hold).collect();
    let mut requests: Vec<(Vec<&NodeFacts<'_>>, &'a WarmRequest)> = requests
        .iter()
        .map(|request| (able.iter().copied().filter(|facts| request.places.allow(facts.node)).collect(), *request))
        .collect();
    requests.sort_by(|(a, left), (b, right)| (a.len(), left.since, &left.by).cmp(&(b.len(), right.since, &right.by)));
    let bytes = place::share(draft, place::extent_of(draft, snapshot), 1);
    let mut taken = BTreeSet::new();
    let mut granted = Vec::new();
    for (allowed, request) in requests {
        let wanted = request.pods.min(allowed.len());
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
        granted.push((request, Granted { wanted, nodes, why }));
    }
    granted
}

/// For a dataset whose cache is shared between nodes, every eligible node gets its share, regardless of where the pods
/// run.
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
        draft.only_requested.insert((node.clone(), snapshot.to_owned()));
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
        // Bytes without a promise may be evicted.
        if facts.has_taken(draft.uid(), snapshot) {
            warmth.holding += u64::from(facts.has_promised(draft.uid(), snapshot));
            warmth.cached_bytes += here.map_or(0, |here| here.bytes).min(wanted);
        }
    }
    // Nodes without room hold nothing, but count.
    warmth.wanted_bytes += bytes.saturating_mul((room.wanted - room.nodes.len()) as u64);
    warmth
}

#[cfg(test)]
mod tests;
