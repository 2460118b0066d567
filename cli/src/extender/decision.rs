//! Decodes the extender's decisions and their answers to preemption.

use std::collections::BTreeMap;

use anyhow::Context;
pub(crate) use larder_api::decision::{
    About, Candidate, Decision, Question, RefusalKind, ServedDecision, ServedNode, Verb,
};
use serde::Deserialize;
use serde_json::Value;

/// The pods that may be evicted from a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evictions {
    pub(crate) node: String,
    /// Pods of training jobs: `NAMESPACE/JOB ROLE-INDEX`.
    pub(crate) workers: Vec<String>,
    /// The number of other pods.
    pub(crate) others: usize,
}

/// Decodes a decision as served. Errors: it has a different form.
pub(crate) fn read(served: &Value) -> anyhow::Result<ServedDecision> {
    ServedDecision::deserialize(served)
        .context("the extender's decisions cannot be decoded; use the `larder` of the extender's release")
}

/// The number of nodes on which kube-scheduler proposed evictions.
pub(crate) fn proposed_nodes(decision: &Decision) -> usize {
    match &decision.about {
        About::Victims(case) => case.nodes.len(),
        About::Nodes { .. } => 0,
    }
}

/// The evictions in the answer to a preemption, sorted by node; empty for other answers.
pub(crate) fn evictions(decision: &Decision) -> Vec<Evictions> {
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
    let About::Victims(case) = &decision.about else { return Vec::new() };
    let Ok(answer) = serde_json::from_str::<Answer>(&decision.answer) else { return Vec::new() };
    let of_node = |(node, MetaVictims { pods }): (String, MetaVictims)| {
        let room = case.nodes.iter().find(|room| room.name == node);
        let known = || room.into_iter().flat_map(|room| room.victims.iter().chain(&room.workers));
        let worker = |pod: &MetaPod| {
            let (role, index) = known().find(|known| known.uid == pod.uid)?.seat?;
            let (job, role) = case.roles.get(role)?.name.rsplit_once(' ')?;
            Some(format!("{job} {role}-{index}"))
        };
        let workers: Vec<String> = pods.iter().filter_map(worker).collect();
        Evictions { node, others: pods.len() - workers.len(), workers }
    };
    answer.nodes.into_iter().map(of_node).collect()
}
