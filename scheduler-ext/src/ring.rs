//! The last decisions, with everything that is needed to repeat them.
//!
//! A request hands over its input and answers. A task evaluates the nodes again, reduces them to plain numbers and drops the
//! snapshot. If it cannot keep up, decisions are dropped and counted.
//!
//! Invariant: a decision is kept with all of its inputs.

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
/// The most nodes of all of them together, and pods on these.
const NODES: usize = 50_000;
/// The most of them that are shown of one pod. It is asked about again and again while it waits.
const SHOWN: usize = 20_000;

/// How much of [`NODES`] a decision takes.
fn size(decision: &Decision) -> usize {
    match &decision.about {
        About::Nodes { candidates, .. } => candidates.len(),
        About::Victims(case) => case.nodes.iter().map(|node| 1 + node.victims.len() + node.workers.len()).sum(),
    }
}

/// A request that was answered.
#[derive(Debug)]
pub struct Note {
    /// What was asked.
    pub verb: Verb,
    /// What it was about: the request, or the case.
    pub asked: AskedFor,
    /// How many nodes it was about.
    pub nodes: usize,
    /// Nobody knows what the pod reads: its user is told.
    pub is_troubled: bool,
    /// What it was answered from.
    pub snapshot: Arc<Snapshot>,
    /// How long before that the API had last said something.
    pub age: Duration,
    /// The answer.
    pub answer: Bytes,
}

/// What a request was about.
#[derive(Debug)]
pub enum AskedFor {
    /// The body of a request for filter or prioritize.
    Nodes(Bytes),
    /// The case of one for preempt.
    Victims(Box<Case>),
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Makes a decision of a note. `None`: the pod reads no dataset.
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

/// What may be kept now: no more than the ring has room for in a second, since looking at nodes again takes as long as the answer
/// did. Of a storm of pods the others are not kept; they would be gone from the ring at once.
#[derive(Debug)]
pub struct Allowance {
    /// Nodes; less than nothing after a large request.
    left: i64,
    at: Instant,
}

impl Allowance {
    /// All of it, at a time.
    pub fn new(now: Instant) -> Self {
        Self { left: NODES as i64, at: now }
    }

    /// True if something about so many nodes may be kept; then it is taken.
    pub fn takes(&mut self, nodes: usize, now: Instant) -> bool {
        let grown = now.duration_since(self.at).as_micros().saturating_mul(NODES as u128) / 1_000_000;
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

/// The last decisions.
#[derive(Debug, Default)]
pub struct Ring {
    decisions: VecDeque<Decision>,
    size: usize,
}

impl Ring {
    /// Keeps a decision; the oldest go.
    pub fn push(&mut self, decision: Decision) {
        self.size += size(&decision);
        self.decisions.push_back(decision);
        while self.decisions.len() > 1 && (self.decisions.len() > DECISIONS || self.size > NODES) {
            self.size -= self.decisions.pop_front().map_or(0, |oldest| size(&oldest));
        }
    }

    /// As JSON for [`crate::replay`] and for readers: the last about a pod, or all.
    pub fn show(&self, pod: Option<&str>) -> String {
        let shown = |decision| ServedDecision { decision, nodes: served_nodes(decision) };
        let decisions = match pod {
            Some(pod) => self.last_about(pod, SHOWN).into_iter().map(shown).collect(),
            None => self.decisions.iter().map(shown).collect(),
        };
        // All of it is plain data.
        serde_json::to_string(&ServedDecisions { decisions }).unwrap_or_default()
    }

    /// The last decisions about a pod, the oldest first: as many as have this size together, and at least one.
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
