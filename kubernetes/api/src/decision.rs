//! The decisions of the scheduler extender, in the form that `/decisions` serves.
//!
//! `larder-scheduler-ext` writes and replays them; `larder explain pod` reads them. A decision has every input of its
//! answer, so that the answer can be recomputed.
//!
//! Invariant: fields that some versions do not write have defaults, and unknown words are accepted, so that decisions
//! of an older or newer extender can be read. The order of the fields is the order in the JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;

use larder_dataset::score::{NodeFacts, Terms, Weights};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The call of kube-scheduler that a decision answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Which nodes the pod may use.
    Filter,
    /// How well each node fits.
    Prioritize,
    /// Which pods to evict for it.
    Preempt,
    /// A call of a newer release.
    #[serde(other)]
    Other,
}

impl Verb {
    /// All verbs that this release answers, in the order in which kube-scheduler calls them.
    pub const ALL: [Self; 3] = [Self::Filter, Self::Prioritize, Self::Preempt];

    /// The verb in the path of the URL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Prioritize => "prioritize",
            Self::Preempt => "preempt",
            Self::Other => "other",
        }
    }
}

/// The body of `/decisions`. `D` is [`Decision`]; the writer uses a reference.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServedDecisions<D = Decision> {
    /// The decisions, oldest first.
    pub decisions: Vec<ServedDecision<D>>,
}

/// A decision with the values that readers would otherwise have to compute.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServedDecision<D = Decision> {
    /// The decision.
    #[serde(flatten)]
    pub decision: D,
    /// The candidates of [`About::Nodes`], in their order; empty for other decisions.
    #[serde(default)]
    pub nodes: Vec<ServedNode>,
}

/// A candidate node with its score.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServedNode {
    /// The node's name.
    pub name: String,
    /// The score, 0 to 10.
    pub score: u8,
    /// The parts of the score.
    pub terms: Terms,
    /// Why the pod may not use the node, as a sentence that begins with the node's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The kind of reason in `refused`; `None` also for a kind of a newer release.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "known_kind")]
    pub reason: Option<RefusalKind>,
}

/// Kinds of reasons for refusing a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusalKind {
    /// The node holds less data than the pod requires.
    Holds,
    /// The node's cache is cordoned.
    Cordoned,
    /// True if no larderd is ready on the node.
    Away,
    /// The pod requires data, but its dataset could not be determined.
    Trouble,
}

fn known_kind<'de, D: Deserializer<'de>>(kind: D) -> Result<Option<RefusalKind>, D::Error> {
    Ok(RefusalKind::deserialize(Value::deserialize(kind)?).ok())
}

/// An answer to kube-scheduler, with every input that it depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// The call that was answered.
    pub verb: Verb,
    /// The time of the answer, in milliseconds since 1970.
    pub at: u64,
    /// The version of the snapshot that the answer was computed from.
    #[serde(default)]
    pub snapshot: u64,
    /// The age of the snapshot's stalest kind at that time, in milliseconds.
    pub age: u64,
    /// The question of kube-scheduler.
    pub about: About,
    /// The answer, as it was sent.
    pub answer: String,
}

impl Decision {
    /// The pod, as `NAMESPACE/NAME`.
    pub fn pod(&self) -> &str {
        match &self.about {
            About::Nodes { question, .. } => &question.pod,
            About::Victims(case) => &case.pod,
        }
    }
}

/// What kube-scheduler asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum About {
    /// Nodes for a pod: [`Verb::Filter`] and [`Verb::Prioritize`].
    Nodes {
        /// The pod, and the data that it needs.
        question: Question,
        /// The nodes, in the order of the request.
        candidates: Vec<Candidate>,
    },
    /// Pods to evict for a pod: [`Verb::Preempt`].
    Victims(Case),
}

/// A pod that reads datasets, and the data that it needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The pod, as `NAMESPACE/NAME`.
    #[serde(default)]
    pub pod: String,
    /// The pod's uid.
    #[serde(default)]
    pub uid: String,
    /// The datasets that it reads.
    pub datasets: Vec<String>,
    /// The percentage of each dataset that its node must hold, if the pod requires data.
    pub required: Option<u8>,
    /// Why the datasets could not be determined; all nodes are equal then.
    pub trouble: Option<String>,
    /// The weight of each reason to prefer a node.
    #[serde(default)]
    pub weights: Weights,
}

/// A node that kube-scheduler asked about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The node's name.
    #[serde(default)]
    pub name: String,
    /// The state of the node for the pod.
    pub look: Look<'static>,
}

impl AsRef<str> for Candidate {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

/// The state of a node for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look<'s> {
    /// The numbers that the score is computed from.
    pub standing: NodeFacts,
    /// The required dataset with the smallest part on the node; `None` if the pod requires none.
    pub least: Option<Least>,
    /// True if no larderd is ready on the node.
    #[serde(default)]
    pub is_away: bool,
    /// Why the node's cache is cordoned.
    pub cordon: Option<Cow<'s, str>>,
}

/// The part of a dataset that a node holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Least {
    /// The index in [`Question::datasets`].
    pub dataset: usize,
    /// The percentage that the node holds.
    pub percent: u8,
}

/// A preemption: the pod that needs room, and the pods that might be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Case {
    /// The pod that needs a node, as `NAMESPACE/NAME`.
    pub pod: String,
    /// The pod's uid.
    pub uid: String,
    /// The pod's priority.
    pub priority: i32,
    /// True if the pod needs more than its requests, such as a host port or an affinity. Only kube-scheduler knows then
    /// which evictions help.
    pub entangled: bool,
    /// The roles of training jobs that the following pods belong to.
    pub roles: Vec<RoleRoom>,
    /// The nodes that kube-scheduler proposes.
    pub nodes: Vec<NodeCase>,
}

/// How many pods of a role may be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoleRoom {
    /// The job and the role, as `NAMESPACE/NAME ROLE`.
    pub name: String,
    /// The number of pods that are bound, have not ended and are not terminating.
    pub live: u32,
    /// The number of pods that earlier answers may have evicted.
    pub spoken_for: u32,
    /// The fewest pods that the job can run with; `None` if that is unknown.
    pub floor: Option<u32>,
}

impl RoleRoom {
    /// How many pods may still be evicted; 0 if the floor is unknown.
    pub fn surplus(&self) -> u32 {
        let floor = self.floor.unwrap_or(u32::MAX);
        self.live.saturating_sub(self.spoken_for).saturating_sub(floor)
    }
}

/// A node on which pods might be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeCase {
    /// The node's name.
    pub name: String,
    /// The pods that kube-scheduler would evict.
    pub victims: Vec<PodCase>,
    /// The other pods of training jobs on the node.
    pub workers: Vec<PodCase>,
    /// How many of the victims violate a PodDisruptionBudget.
    pub budget_violations: i64,
}

/// A pod that might be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodCase {
    /// The pod's uid.
    pub uid: String,
    /// True if the pod is in the snapshot. If it is not, the other fields are unset.
    pub known: bool,
    /// The pod's priority.
    pub priority: i32,
    /// The index of the pod's role in [`Case::roles`], and the pod's index in the role.
    pub seat: Option<(usize, u32)>,
    /// True if the user forbids the pod's preemption.
    pub pinned: bool,
    /// As [`Case::entangled`].
    pub entangled: bool,
    /// True if the pod is terminating.
    pub leaving: bool,
    /// The pod's resource requests.
    pub requests: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_of_another_release_can_be_read_without_its_other_fields() {
        let text = r#"{"decisions": [{"verb": "preempt", "at": 1, "age": 2, "answer": "", "later": true,
            "about": {"victims": {"pod": "a/p", "nodes": [{"name": "n1", "victims": [{"uid": "u"}]}]}}}]}"#;
        let read: ServedDecisions = serde_json::from_str(text).unwrap();
        let [ServedDecision { decision, nodes }] = &read.decisions[..] else { panic!("{read:?}") };
        assert_eq!((decision.pod(), decision.verb, nodes.len()), ("a/p", Verb::Preempt, 0));
        let About::Victims(case) = &decision.about else { panic!("{decision:?}") };
        assert_eq!(case.nodes[0].victims[0].uid, "u");
    }
    #[test]
    fn a_decision_with_words_of_a_newer_release_can_be_read() {
        let text = r#"{"verb": "bind", "at": 1, "age": 2, "answer": "",
            "about": {"nodes": {"question": {"pod": "a/p", "datasets": []}, "candidates": []}},
            "nodes": [{"name": "n1", "score": 0, "terms": {}, "refused": "n1 is on fire", "reason": "burns"},
                {"name": "n2", "score": 0, "terms": {}, "refused": "n2 is cordoned", "reason": "cordoned"}]}"#;
        let read: ServedDecision = serde_json::from_str(text).unwrap();
        assert_eq!((read.decision.pod(), read.decision.verb), ("a/p", Verb::Other));
        let reasons: Vec<Option<RefusalKind>> = read.nodes.iter().map(|node| node.reason).collect();
        assert_eq!(reasons, [None, Some(RefusalKind::Cordoned)]);
    }
}
