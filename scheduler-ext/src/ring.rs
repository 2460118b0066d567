//! The most recent decisions, with all inputs that are needed to replay them.
//!
//! A request hands over its inputs and its answer. A background task evaluates the nodes again, reduces them to plain
//! numbers and releases the snapshot. If the task cannot keep up, decisions are dropped and counted.
//!
//! Invariant: a decision is stored with all of its inputs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
pub use larder_api::decision::{About, Candidate, Decision, Verb};
use larder_api::decision::{RefusalKind, ServedDecision, ServedDecisions, ServedNode};

use crate::config::Settings;
use crate::filter::{Reason, reason};
use crate::index::state::Snapshot;
use crate::preempt::Case;
use crate::question::{Look, Question, ask};
use crate::score::{score, terms_of};
use crate::wire;

/// The most decisions that are kept.
const DECISIONS: usize = 256;
/// The most nodes, and pods on nodes, of all kept decisions together.
const NODES: usize = 50_000;
/// The most of them that are shown for one pod. The scheduler repeats its requests about a pending pod.
const SHOWN: usize = 20_000;

/// How long a decision stays in the ring while pods come at a high rate.
const TURN_SECONDS: u128 = 10;

/// The share of [`NODES`] that a decision uses.
fn size(decision: &Decision) -> usize {
    match &decision.about {
        About::Nodes { candidates, .. } => candidates.len(),
        About::Victims(case) => case.nodes.iter().map(|node| 1 + node.victims.len() + node.workers.len()).sum(),
    }
}

/// A request that was answered.
#[derive(Debug)]
pub struct Note {
    pub verb: Verb,
    /// The input: the request, or the case.
    pub asked: AskedFor,
    /// The number of nodes that it was about.
    pub nodes: usize,
    /// The pod's datasets could not be determined, so its user gets an Event.
    pub is_troubled: bool,
    /// The snapshot from which it was answered.
    pub snapshot: Arc<Snapshot>,
    /// The age of the snapshot: how long the API had been silent.
    pub age: Duration,
    pub answer: Bytes,
}

/// The input of a request.
#[derive(Debug)]
pub enum AskedFor {
    /// The body of a filter or prioritize request.
    Nodes(Bytes),
    /// The case of a preempt request.
    Victims(Box<Case>),
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Converts a note to a decision; `None` if the pod reads no dataset.
pub fn decision(note: Note, settings: &Settings) -> Option<Decision> {
    let about = match note.asked {
        AskedFor::Victims(case) => About::Victims(*case),
        AskedFor::Nodes(body) => {
            let args = wire::args(&body).ok()?;
            let (question, sight) = ask(&args.pod, settings, &note.snapshot).ok()??;
            let candidate = |name: &wire::Text<'_>| {
                let Look { standing, least, is_away, cordon } = sight.look(name.as_str());
                let cordon = cordon.map(|why| why.into_owned().into());
                Candidate { name: name.as_str().to_owned(), look: Look { standing, least, is_away, cordon } }
            };
            let candidates = args.names.iter().map(candidate).collect();
            About::Nodes { question, candidates }
        }
    };
    Some(Decision {
        verb: note.verb,
        at: now(),
        snapshot: note.snapshot.version,
        age: u64::try_from(note.age.as_millis()).unwrap_or(u64::MAX),
        about,
        answer: String::from_utf8_lossy(&note.answer).into_owned(),
    })
}

/// A rate limit for keeping decisions: in `TURN_SECONDS` at most as many nodes as the ring holds, because evaluating
/// the nodes again takes as long as the answer did. In a burst of pods the excess decisions are not kept; they would
/// push the others out of the ring before anybody has read them.
#[derive(Debug)]
pub struct Allowance {
    /// The remaining nodes; negative after a large request.
    left: i64,
    at: Instant,
}

impl Allowance {
    /// The full allowance.
    pub fn new(now: Instant) -> Self {
        Self { left: NODES as i64, at: now }
    }

    /// Takes `nodes` from the allowance. Returns false if it is used up.
    pub fn takes(&mut self, nodes: usize, now: Instant) -> bool {
        let grown = now.duration_since(self.at).as_micros().saturating_mul(NODES as u128) / (TURN_SECONDS * 1_000_000);
        if grown > 0 {
            self.left = self.left.saturating_add(i64::try_from(grown).unwrap_or(i64::MAX)).min(NODES as i64);
            self.at = now;
        }
        let takes = self.left > 0;
        if takes {
            self.left = self.left.saturating_sub(i64::try_from(nodes).unwrap_or(i64::MAX));
        }
        takes
    }
}

#[derive(Debug, Default)]
pub struct Ring {
    decisions: VecDeque<Decision>,
    size: usize,
}

impl Ring {
    /// Keeps a decision, and drops the oldest.
    pub fn push(&mut self, decision: Decision) {
        self.size += size(&decision);
        self.decisions.push_back(decision);
        while self.decisions.len() > 1 && (self.decisions.len() > DECISIONS || self.size > NODES) {
            self.size -= self.decisions.pop_front().map_or(0, |oldest| size(&oldest));
        }
    }

    /// The decisions as JSON for [`crate::replay`] and for users: all of them, or the last ones about a pod.
    pub fn show(&self, pod: Option<&str>) -> String {
        let shown = |decision| ServedDecision { decision, nodes: served_nodes(decision) };
        let decisions = match pod {
            Some(pod) => self.last_about(pod, SHOWN).into_iter().map(shown).collect(),
            None => self.decisions.iter().map(shown).collect(),
        };
        // All values are plain data, so serialization cannot fail.
        serde_json::to_string(&ServedDecisions { decisions }).unwrap_or_default()
    }

    /// The last decisions about a pod, the oldest first: as many as fit into `most`, and at least one.
    fn last_about(&self, pod: &str, most: usize) -> Vec<&Decision> {
        let (mut last, mut total) = (Vec::new(), 0);
        for decision in self.decisions.iter().rev().filter(|decision| decision.pod() == pod) {
            total += size(decision);
            if total > most && !last.is_empty() {
                break;
            }
            last.push(decision);
        }
        last.reverse();
        last
    }
}

fn served_nodes(decision: &Decision) -> Vec<ServedNode> {
    let About::Nodes { question, candidates } = &decision.about else { return Vec::new() };
    candidates.iter().map(|candidate| served_node(question, candidate)).collect()
}

fn served_node(question: &Question, Candidate { name, look }: &Candidate) -> ServedNode {
    let why = reason(question, look);
    ServedNode {
        name: name.clone(),
        score: score(question, look),
        terms: terms_of(question, look),
        refused: why.as_ref().map(|why| why.about(name)),
        reason: why.as_ref().map(kind),
    }
}

fn kind(reason: &Reason<'_>) -> RefusalKind {
    match reason {
        Reason::Holds { .. } => RefusalKind::Holds,
        Reason::Cordoned(_) => RefusalKind::Cordoned,
        Reason::Away => RefusalKind::Away,
        Reason::Trouble(_) => RefusalKind::Trouble,
    }
}

#[cfg(test)]
mod tests;
