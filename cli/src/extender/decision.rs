//! A decision as the extender serves it: as much of it as people are shown.

use std::collections::BTreeMap;

use anyhow::Context;
use larder_dataset::score::{Standing, Terms};
use serde::Deserialize;
use serde_json::Value;

/// What the scheduler asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verb {
    /// The nodes that the pod may go to.
    Filter,
    /// How good they are.
    Prioritize,
    /// Whose pods end for it.
    Preempt,
}

/// An answer of the extender, and what it follows from.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Decision {
    pub(crate) verb: Verb,
    /// When, in milliseconds since 1970.
    pub(crate) at: u64,
    /// How long before that the API had last told something, in milliseconds.
    pub(crate) age: u64,
    pub(crate) about: About,
    /// The answer, as it was sent.
    answer: String,
    /// The nodes of the question.
    #[serde(default)]
    pub(crate) nodes: Vec<Node>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum About {
    Nodes { question: Question, candidates: Vec<Candidate> },
    Victims(Case),
}

/// What the pod wants.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Question {
    pub(crate) datasets: Vec<String>,
    /// The percentage of each that its node must hold.
    pub(crate) required: Option<u8>,
    /// Why nobody can tell what it reads.
    pub(crate) trouble: Option<String>,
}

/// A node with what it has.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Candidate {
    pub(crate) look: Look,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Look {
    pub(crate) standing: Standing,
}

/// A node with what followed from that.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) score: u8,
    pub(crate) terms: Terms,
    /// Why the pod may not go there, as a sentence that begins with the node.
    pub(crate) refused: Option<String>,
    pub(crate) reason: Option<Reason>,
}

/// The kinds of reasons for which a node is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reason {
    /// It holds too little.
    Holds,
    /// Its cache takes no new pods.
    Cordoned,
    /// No larderd serves it.
    Away,
    /// Nobody can tell what it would have to hold.
    Trouble,
}

/// The nodes on which pods would end.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Case {
    roles: Vec<Role>,
    nodes: Vec<Room>,
}

#[derive(Clone, Debug, Deserialize)]
struct Role {
    name: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Room {
    name: String,
    victims: Vec<Victim>,
    workers: Vec<Victim>,
}

#[derive(Clone, Debug, Deserialize)]
struct Victim {
    uid: String,
    seat: Option<(usize, u32)>,
}

/// The pods that may end on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) node: String,
    /// Those of training jobs: `NAMESPACE/JOB ROLE-INDEX`.
    pub(crate) workers: Vec<String>,
    /// How many others.
    pub(crate) others: usize,
}

impl Decision {
    /// Reads one. Errors: it has another form.
    pub(crate) fn read(served: &Value) -> anyhow::Result<Self> {
        let read = Self::deserialize(served);
        read.context("a decision of the extender cannot be read; use the `larder` of its release")
    }

    /// On how many nodes room was asked for.
    pub(crate) fn rooms(&self) -> usize {
        match &self.about {
            About::Victims(case) => case.nodes.len(),
            About::Nodes { .. } => 0,
        }
    }

    /// Where room is offered to the pod, by the names of nodes. Of an answer that is none of preempt's, nothing.
    pub(crate) fn endings(&self) -> Vec<Ending> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(rename = "NodeNameToMetaVictims")]
            nodes: BTreeMap<String, MetaVictims>,
        }
        #[derive(Deserialize)]
        struct MetaVictims {
            #[serde(rename = "Pods")]
            pods: Vec<MetaPod>,
        }
        #[derive(Deserialize)]
        struct MetaPod {
            #[serde(rename = "UID")]
            uid: String,
        }
        let About::Victims(case) = &self.about else { return Vec::new() };
        let Ok(answer) = serde_json::from_str::<Answer>(&self.answer) else { return Vec::new() };
        let ending = |(node, MetaVictims { pods }): (String, MetaVictims)| {
            let room = case.nodes.iter().find(|room| room.name == node);
            let known = || room.into_iter().flat_map(|room| room.victims.iter().chain(&room.workers));
            let worker = |pod: &MetaPod| {
                let (role, index) = known().find(|victim| victim.uid == pod.uid)?.seat?;
                let (job, role) = case.roles.get(role)?.name.rsplit_once(' ')?;
                Some(format!("{job} {role}-{index}"))
            };
            let workers: Vec<String> = pods.iter().filter_map(worker).collect();
            Ending { node, others: pods.len() - workers.len(), workers }
        };
        answer.nodes.into_iter().map(ending).collect()
    }
}
