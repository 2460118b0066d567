//! The sentence about a pod, and below it a table of the nodes with their scores.

use std::fmt::Write;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use larder_dataset::score::Terms;
use larder_dataset::size::show_duration;

use super::{Row, Story};
use crate::extender::decision::{Decision, Evictions, evictions};
use crate::output::{cell, count, table};

/// The number of rows without `--all`.
const ROWS: usize = 20;
/// The most pods or nodes that a line names.
const NAMED: usize = 3;
/// The age of a snapshot above which its age is shown. A quiet cluster sends an event only about once a minute.
const QUIET: Duration = Duration::from_secs(90);
const HEAD: [&str; 9] = ["NODE", "SCORE", "DATA", "WARMING", "SHARED", "ZONE", "RACK", "WHOLE", "WHY NOT"];

/// The output of `larder explain pod`.
pub(crate) fn view(sentence: &str, story: &Story<'_>, all: bool) -> String {
    let mut text = format!("{sentence}\n");
    let shown = if all { story.rows.len() } else { story.rows.len().min(ROWS) };
    if shown > 0 {
        let (best, others) = story.rows.split_at(shown);
        // The chosen node is always shown, whatever its rank.
        let its_own = others.iter().find(|row| Some(row.node.name.as_str()) == story.chosen());
        let rows: Vec<_> = best.iter().chain(its_own).map(row).collect();
        text += &table(HEAD, &rows);
        let left = story.rows.len() - rows.len();
        if left > 0 {
            let _ = writeln!(text, "  {} more: --all shows them", count(left as u64, "node"));
        }
    }
    let mut line = |what: &str, value: &str| {
        let _ = writeln!(text, "  {what:<9} {value}");
    };
    if let Some((last, _)) = story.last {
        line("decided", &when(last));
    }
    if let Some(room) = story.room {
        let offers = evictions(room);
        line("preempted", &when(room));
        match story.place() {
            Some(place) => line("", &format!("for its place on {}", eviction(&place))),
            None if offers.is_empty() => line("", "no pods can be preempted for it"),
            None => {
                for one in offers.iter().take(NAMED) {
                    line("", &format!("can preempt on {}", eviction(one)));
                }
                let left = offers.len().saturating_sub(NAMED);
                if left > 0 {
                    line("", &format!("and on {} more", count(left as u64, "node")));
                }
            }
        }
    }
    text
}

fn row(row: &Row<'_>) -> [String; 9] {
    let node = row.node;
    let Terms { data, warming, shared, zone, rack, whole } = node.terms;
    let [data, warming, shared, zone, rack, whole] = [data, warming, shared, zone, rack, whole]
        .map(|tenths| tenths.map_or_else(|| "-".to_owned(), |tenths| tenths.to_string()));
    let refused = node.refused.as_deref().unwrap_or_default();
    let why = cell(refused.strip_prefix(&format!("{}: ", node.name)).unwrap_or(refused));
    [cell(&node.name), node.score.to_string(), data, warming, shared, zone, rack, whole, why]
}

/// The time of a decision, and the age of its snapshot if it was old: `2026-01-31T08:00:00Z, from what was known 2
/// minutes before`.
fn when(decision: &Decision) -> String {
    let at = i64::try_from(decision.at).ok().and_then(|at| Timestamp::from_millisecond(at).ok()).unwrap_or_default();
    let age = Duration::from_millis(decision.age);
    if age < QUIET { at.to_string() } else { format!("{at}, from what was known {} before", show_duration(age)) }
}

/// `n3: team-a/train worker-3, 2 other pods`
fn eviction(offer: &Evictions) -> String {
    let mut pods: Vec<String> = offer.workers.iter().take(NAMED).map(|worker| cell(worker)).collect();
    let others = offer.others + offer.workers.len() - pods.len();
    if others > 0 {
        let what = if pods.is_empty() { "pod" } else { "other pod" };
        pods.push(count(others as u64, what));
    }
    format!("{}: {}", cell(&offer.node), pods.join(", "))
}

#[cfg(test)]
mod tests;
