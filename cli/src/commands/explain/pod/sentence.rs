//! The sentence about a pod.

use std::collections::BTreeMap;

use larder_api::names::{READS_DATA_RESOURCE, SYSTEM_NAMESPACE};

use super::{Row, Story};
use crate::extender::SCHEDULER;
use crate::extender::decision::{Decision, Question, RefusalKind, evictions, proposed_nodes};
use crate::output::{cell, count};

/// Explains the pod's placement. `asked_at` is the extender of `--extender`, if given.
pub(crate) fn sentence(story: &Story<'_>, asked_at: Option<&str>) -> String {
    let key = story.key;
    let Some((_, question)) = story.last else { return without_nodes(story, asked_at) };
    let passing = story.passing();
    if let Some(trouble) = &question.trouble
        && passing.len() == story.rows.len()
    {
        let end = match (story.pod, story.chosen()) {
            (None, _) => String::new(),
            (_, Some(node)) => format!(", which went to {}", cell(node)),
            (_, None) => ", which waits".to_owned(),
        };
        return format!("{}: all nodes are equal for {key}{end}", cell(trouble));
    }
    match (story.pod, story.chosen()) {
        (Some(_), Some(node)) => went(story, question, node),
        (Some(_), None) if passing.is_empty() => {
            format!("{key} waits: {}{}", none_will_do(story, question), offers(story))
        }
        (Some(_), None) => {
            let (namespace, name) = key.split_once('/').unwrap_or_default();
            format!(
                "{key} waits for something other than its data: {} of {} have what it needs of that, {} best; \
                 `kubectl describe pod -n {namespace} {name}` says what{}",
                passing.len(),
                count(story.rows.len() as u64, "node"),
                cell(&passing[0].node.name),
                offers(story)
            )
        }
        (None, _) if passing.is_empty() => {
            format!("{key} no longer exists; at its last scheduling attempt, {}", none_will_do(story, question))
        }
        (None, _) => {
            let best = &passing[0];
            let which = holds(question, best).map(|holds| format!(", which {holds},")).unwrap_or_default();
            let name = cell(&best.node.name);
            format!("{key} no longer exists; at its last scheduling attempt, {name}{which} was {}", rank(story, best))
        }
    }
}

/// The sentence about a pod without a decision about nodes.
fn without_nodes(story: &Story<'_>, asked_at: Option<&str>) -> String {
    let key = story.key;
    let Some(pod) = story.pod else { return format!("{key} no longer exists{}", offers(story)) };
    if let Some(queue) = pod.held_by.as_ref().filter(|_| pod.node.is_none()) {
        let queue = cell(queue);
        return format!(
            "{key} waits in the queue {queue} until that has quota and a node has room for it: `larder queue {queue}`"
        );
    }
    if pod.node.is_none() && !pod.gates.is_empty() {
        let gates = cell(&pod.gates.join(", "));
        return format!("{key} waits: its scheduler does not see it until another controller removes its gate {gates}");
    }
    let scheduler = cell(&pod.scheduler);
    if story.room.is_some() && pod.node.is_none() {
        return format!("{key} waits for room: no node has what it asks for{}", offers(story));
    }
    if !pod.may_read {
        return format!("{key} reads no dataset: all nodes are equal for it");
    }
    match (&pod.node, asked_at) {
        (_, None) if pod.scheduler != SCHEDULER => format!(
            "{key} is not known to the extender: its scheduler is `{scheduler}`, which does not ask it; if it asks another \
             one, --extender URL names that"
        ),
        (node, None) if pod.is_unmarked => format!(
            "{key} {}: its scheduler `{scheduler}` asks the extender only about pods that have a container with the limit \
             {READS_DATA_RESOURCE}: \"0\"",
            node.as_ref().map_or("waits".to_owned(), |node| format!("went to {}", cell(node)))
        ),
        (None, _) => {
            let asked = asked_at.map_or_else(|| format!("of {SYSTEM_NAMESPACE}"), |url| format!("at {url}"));
            let says = pod.unscheduled.as_deref().map(|says| format!("; the scheduler says: {}", cell(says)));
            format!(
                "{key} waits, and its scheduler `{scheduler}` has not asked the extender {asked} about it{}",
                says.unwrap_or_default()
            )
        }
        (Some(node), _) => format!(
            "{key} went to {}, and why is not known: the extender keeps its last decisions in memory, and has none about it",
            cell(node)
        ),
    }
}

fn went(story: &Story<'_>, question: &Question, node: &str) -> String {
    let key = story.key;
    let went = format!("{key} went to {}", cell(node));
    let Some(row) = story.rows.iter().find(|row| row.node.name == node) else {
        let all = count(story.rows.len() as u64, "candidate node");
        return format!("{went}, which was not among the {all}: other criteria of the scheduler decided");
    };
    if let Some(refused) = &row.node.refused {
        let why = cell(refused.strip_prefix(&format!("{node}: ")).unwrap_or(refused));
        return format!("{went}, though the extender refused it ({why}): the scheduler placed it without the extender");
    }
    let which = holds(question, row).map(|holds| format!(", which {holds}")).unwrap_or_default();
    let best = story.passing()[0].node;
    if row.node.score == best.score {
        return format!("{went}{which}: {}", rank(story, row));
    }
    format!(
        "{went}{which}, though {} has the better score ({} against {}): other criteria of the scheduler decided",
        cell(&best.name),
        best.score,
        row.node.score
    )
}

/// The rank of one of the best nodes among all.
fn rank(story: &Story<'_>, best: &Row<'_>) -> String {
    let (all, passing) = (story.rows.len(), story.passing());
    let as_good = passing.iter().filter(|row| row.node.score == best.node.score).count();
    let nodes = count(all as u64, "candidate node");
    match (passing.len(), as_good) {
        _ if all == 1 => "the only candidate node".to_owned(),
        (1, _) => format!("the only one of {nodes} that fits"),
        (_, 1) => format!("the best of {nodes}"),
        (passing, as_good) if as_good == passing && passing == all => format!("as good as any other of {nodes}"),
        (_, as_good) => format!("one of the {as_good} best of {nodes}"),
    }
}

/// `holds 98 % of team-a/imagenet`; `None` if the pod's datasets have no bytes.
fn holds(question: &Question, row: &Row<'_>) -> Option<String> {
    let standing = &row.standing;
    let percent = (u128::from(standing.held_bytes) * 100).checked_div(u128::from(standing.wanted_bytes))?.min(100);
    let verb = if standing.shared_bytes > 0 { "shares caches that hold" } else { "holds" };
    Some(format!("{verb} {percent} % of {}", datasets(question)))
}

fn datasets(question: &Question) -> String {
    match &question.datasets[..] {
        [one] => cell(one),
        all => format!("its {} datasets", all.len()),
    }
}

fn none_will_do(story: &Story<'_>, question: &Question) -> String {
    if let [row] = &story.rows[..] {
        return format!(
            "the only candidate node does not fit: {}",
            cell(row.node.refused.as_deref().unwrap_or_default())
        );
    }
    if let Some(trouble) = &question.trouble {
        return format!("{}, and its data is required", cell(trouble));
    }
    let mut reasons: BTreeMap<Option<RefusalKind>, usize> = BTreeMap::new();
    for row in &story.rows {
        *reasons.entry(row.node.reason).or_default() += 1;
    }
    let words = |(reason, nodes): (Option<RefusalKind>, usize)| match reason {
        Some(RefusalKind::Holds) => {
            let hold = if nodes == 1 { "holds" } else { "hold" };
            let what = if question.datasets.len() == 1 { datasets(question) } else { "one of its datasets".to_owned() };
            format!("{nodes} {hold} less than {} % of {what}", question.required.unwrap_or(100))
        }
        Some(RefusalKind::Cordoned) => format!("the caches of {nodes} are cordoned"),
        Some(RefusalKind::Away) => format!("no larderd is ready on {nodes}"),
        Some(RefusalKind::Trouble) | None => format!("{nodes} are refused"),
    };
    let words: Vec<String> = reasons.into_iter().map(words).collect();
    format!("none of {} fits: {}", count(story.rows.len() as u64, "node"), words.join(", "))
}

/// `; pods can be preempted for it on 2 of 5 nodes`, if the preemption request came after the request about nodes.
fn offers(story: &Story<'_>) -> String {
    let is_later = |room: &&Decision| story.last.is_none_or(|(last, _)| last.at <= room.at);
    let Some(room) = story.room.filter(is_later) else { return String::new() };
    let (offered, asked) = (evictions(room).len(), proposed_nodes(room));
    match offered {
        0 => format!("; pods can be preempted for it on none of {}", count(asked as u64, "node")),
        _ => format!("; pods can be preempted for it on {offered} of {}", count(asked as u64, "node")),
    }
}

#[cfg(test)]
mod tests;
