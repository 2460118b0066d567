//! A pod combined with the decisions about it: the data of the sentence and of the table.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use larder_api::names::{CSI_DRIVER, DATASETS_ANNOTATION, QUEUE_GATE, QUEUE_LABEL, READS_DATA_RESOURCE};
use larder_dataset::score::NodeFacts;

use crate::extender::decision::{
    About, Candidate, Decision, Evictions, Question, ServedDecision, ServedNode, Verb, evictions,
};

pub(super) mod sentence;
pub(super) mod view;

/// The tolerated difference between the clocks of the API server and of the extender, in milliseconds.
const CLOCKS: u64 = 10_000;

/// A pod as read from the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Placed {
    pub(super) uid: Option<String>,
    pub(super) node: Option<String>,
    /// The node on which other pods are being preempted for it.
    nominated: Option<String>,
    pub(super) scheduler: String,
    /// The gates behind which it is kept from its scheduler. The controllers that have set them remove them.
    pub(super) gates: Vec<String>,
    /// The queue that holds it by one of them.
    pub(super) held_by: Option<String>,
    /// The scheduler's message about why the pod has no node.
    pub(super) unscheduled: Option<String>,
    /// The creation time in milliseconds since 1970.
    created: u64,
    /// Whether the pod may read a dataset: it has a claim or an inline volume of Larder, or it names a dataset.
    pub(super) may_read: bool,
    /// Whether no container has the limit by which the scheduler asks the extender.
    pub(super) is_unmarked: bool,
}

impl From<Pod> for Placed {
    fn from(pod: Pod) -> Self {
        let spec = pod.spec.unwrap_or_default();
        let has_volume = spec.volumes.iter().flatten().any(|volume| {
            volume.persistent_volume_claim.is_some() || volume.csi.as_ref().is_some_and(|csi| csi.driver == CSI_DRIVER)
        });
        let is_marked = spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(|container| {
            let resources = container.resources.iter().flat_map(|of| [&of.limits, &of.requests]);
            resources.flatten().any(|amounts| amounts.contains_key(READS_DATA_RESOURCE))
        });
        let names = pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(DATASETS_ANNOTATION));
        let created = pod.metadata.creation_timestamp.map_or(0, |time| time.0.as_millisecond());
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let mut unscheduled = conditions.filter(|there| there.type_ == "PodScheduled" && there.status == "False");
        let unscheduled = unscheduled.next().and_then(|there| there.message.clone().or_else(|| there.reason.clone()));
        let set = |name: Option<String>| name.filter(|name| !name.is_empty());
        let gates: Vec<String> = spec.scheduling_gates.into_iter().flatten().map(|gate| gate.name).collect();
        let queue = pod.metadata.labels.as_ref().and_then(|labels| labels.get(QUEUE_LABEL)).cloned();
        Self {
            uid: set(pod.metadata.uid),
            held_by: queue.filter(|_| gates.iter().any(|gate| gate == QUEUE_GATE)),
            node: set(spec.node_name),
            nominated: set(pod.status.and_then(|status| status.nominated_node_name)),
            gates,
            scheduler: spec.scheduler_name.unwrap_or_default(),
            unscheduled,
            created: u64::try_from(created).unwrap_or(0),
            may_read: has_volume || names,
            is_unmarked: !is_marked,
        }
    }
}

/// A node of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'d> {
    pub(super) node: &'d ServedNode,
    pub(super) standing: NodeFacts,
}

/// All that is known about a pod's placement.
#[derive(Debug)]
pub(super) struct Story<'d> {
    pub(super) key: &'d str,
    /// The pod; `None` if it no longer exists.
    pub(super) pod: Option<&'d Placed>,
    /// The last decision about nodes, with the request that it answered.
    pub(super) last: Option<(&'d Decision, &'d Question)>,
    /// The nodes of that decision, best first.
    pub(super) rows: Vec<Row<'d>>,
    /// The last decision about preemption for the pod.
    pub(super) room: Option<&'d Decision>,
}

impl<'d> Story<'d> {
    /// Combines a pod with all decisions about pods of its name, oldest first.
    pub(super) fn new(key: &'d str, pod: Option<&'d Placed>, decisions: &'d [ServedDecision]) -> Self {
        let since = pod.map_or(0, |pod| pod.created.saturating_sub(CLOCKS));
        let last_of = |verb| {
            let is_it = |served: &&ServedDecision| served.decision.verb == verb && served.decision.at >= since;
            decisions.iter().rev().find(is_it)
        };
        let filter = last_of(Verb::Filter);
        // Decisions of earlier scheduling attempts do not apply to the last attempt.
        let scored = last_of(Verb::Prioritize)
            .filter(|scored| filter.is_none_or(|filter| filter.decision.at <= scored.decision.at));
        let asked = filter.or(scored).and_then(|served| match &served.decision.about {
            About::Nodes { question, candidates } => Some((served, question, candidates)),
            About::Victims(_) => None,
        });
        let mut rows: Vec<Row<'d>> = Vec::new();
        if let Some((served, _, candidates)) = asked {
            let scored: BTreeMap<&str, &ServedNode> =
                scored.iter().flat_map(|scored| &scored.nodes).map(|node| (node.name.as_str(), node)).collect();
            let row = |(node, candidate): (&'d ServedNode, &Candidate)| Row {
                node: scored.get(node.name.as_str()).copied().unwrap_or(node),
                standing: candidate.look.standing,
            };
            rows = served.nodes.iter().zip(candidates).map(row).collect();
        }
        let its_own = pod.and_then(|pod| pod.node.as_deref());
        rows.sort_by_key(|row| {
            let ServedNode { name, score, refused, .. } = row.node;
            (refused.is_some(), std::cmp::Reverse(*score), Some(name.as_str()) != its_own, name.as_str())
        });
        let last = scored.or(filter).zip(asked).map(|(last, (_, question, _))| (&last.decision, question));
        Self { key, pod, last, rows, room: last_of(Verb::Preempt).map(|served| &served.decision) }
    }

    /// The node on which the pod was placed.
    pub(super) fn chosen(&self) -> Option<&'d str> {
        self.pod.and_then(|pod| pod.node.as_deref())
    }

    /// The nodes that fit, best first.
    pub(super) fn passing(&self) -> &[Row<'d>] {
        let passing = self.rows.partition_point(|row| row.node.refused.is_none());
        &self.rows[..passing]
    }

    /// The evictions on the pod's nominated or chosen node, if a decision proposed any.
    pub(super) fn place(&self) -> Option<Evictions> {
        let pod = self.pod?;
        let node = pod.node.as_deref().or(pod.nominated.as_deref())?;
        evictions(self.room?).into_iter().find(|evictions| evictions.node == node)
    }
}
