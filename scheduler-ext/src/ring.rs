//! The last decisions, with everything that is needed to come to them again.
//!
//! A request hands over what it was about and goes on; a task looks at the nodes once more, cuts what it sees to plain numbers and
//! lets go of the snapshot. If it cannot keep up, decisions are dropped and counted.
//!
//! Invariant: with each decision goes everything that it follows from.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use larder_dataset::score::Terms;
use serde::{Deserialize, Serialize};

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

/// What the scheduler asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// The nodes that a pod may go to.
    Filter,
    /// How good they are.
    Prioritize,
    /// Whose pods end for it.
    Preempt,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Filter, Self::Prioritize, Self::Preempt];

    /// Its name, as in the path.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Prioritize => "prioritize",
            Self::Preempt => "preempt",
        }
    }
}

/// An answer, and what it follows from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// What was asked.
    pub verb: Verb,
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// The snapshot that it was answered from.
    pub snapshot: u64,
    /// How long before that the API had last said something about the kind that it was silent about for longest, in milliseconds.
    pub age: u64,
    /// What it was about.
    pub about: About,
    /// The answer, as it was sent.
    pub answer: String,
}

/// What a decision was about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum About {
    /// Nodes for a pod.
    Nodes {
        /// What the pod wants.
        question: Question,
        /// The nodes, as they were asked about.
        candidates: Vec<Candidate>,
    },
    /// Room for a pod.
    Victims(Case),
}

/// A node that was asked about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// What it had.
    pub look: Look<'static>,
}

impl AsRef<str> for Candidate {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

impl Decision {
    /// The pod, as `NAMESPACE/NAME`.
    pub fn pod(&self) -> &str {
        match &self.about {
            About::Nodes { question, .. } => &question.pod,
            About::Victims(case) => &case.pod,
        }
    }

    /// How much of [`NODES`] it takes.
    fn size(&self) -> usize {
        match &self.about {
            About::Nodes { candidates, .. } => candidates.len(),
            About::Victims(case) => case.nodes.iter().map(|node| 1 + node.victims.len() + node.workers.len()).sum(),
        }
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
        self.size += decision.size();
        self.decisions.push_back(decision);
        while self.decisions.len() > 1 && (self.decisions.len() > DECISIONS || self.size > NODES) {
            self.size -= self.decisions.pop_front().map_or(0, |oldest| oldest.size());
        }
    }

    /// As JSON for [`crate::replay`] and for readers: the last about a pod, or all.
    pub fn show(&self, pod: Option<&str>) -> String {
        #[derive(Serialize)]
        struct Shown<'d> {
            decisions: Vec<ShownDecision<'d>>,
        }
        #[derive(Serialize)]
        struct ShownDecision<'d> {
            #[serde(flatten)]
            decision: &'d Decision,
            nodes: Vec<ShownNode<'d>>,
        }
        let shown = |decision| ShownDecision { decision, nodes: shown_nodes(decision) };
        let decisions = match pod {
            Some(pod) => self.last_about(pod, SHOWN).into_iter().map(shown).collect(),
            None => self.decisions.iter().map(shown).collect(),
        };
        // All of it is plain data.
        serde_json::to_string(&Shown { decisions }).unwrap_or_default()
    }

    /// The last decisions about a pod, the oldest first: as many as have this size together, and at least one.
    fn last_about(&self, pod: &str, most: usize) -> Vec<&Decision> {
        let (mut last, mut size) = (Vec::new(), 0);
        for decision in self.decisions.iter().rev().filter(|decision| decision.pod() == pod) {
            size += decision.size();
            if size > most && !last.is_empty() {
                break;
            }
            last.push(decision);
        }
        last.reverse();
        last
    }
}

/// A node as readers want to see it.
#[derive(Serialize)]
struct ShownNode<'d> {
    name: &'d str,
    score: u8,
    terms: Terms,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// The kind of reason behind `refused`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

fn shown_nodes(decision: &Decision) -> Vec<ShownNode<'_>> {
    let About::Nodes { question, candidates } = &decision.about else { return Vec::new() };
    candidates.iter().map(|candidate| shown_node(question, candidate)).collect()
}

fn shown_node<'d>(question: &Question, Candidate { name, look }: &'d Candidate) -> ShownNode<'d> {
    let why = reason(question, look);
    ShownNode {
        name,
        score: score(question, look),
        terms: terms_of(question, look),
        refused: why.as_ref().map(|why| why.about(name)),
        reason: why.as_ref().map(kind),
    }
}

fn kind(reason: &Reason<'_>) -> &'static str {
    match reason {
        Reason::Holds { .. } => "holds",
        Reason::Cordoned(_) => "cordoned",
        Reason::Away => "away",
        Reason::Trouble(_) => "trouble",
    }
}

#[cfg(test)]
mod tests;
