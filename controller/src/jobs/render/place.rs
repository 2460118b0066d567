//! Where a pod is to run. A plan, the scheduler's gang scheduling, or Kueue decides.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSchedulingGate,
    PodSchedulingGroup, PodSpec, PreferredSchedulingTerm, Toleration,
};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// The node of the plan.
    pub node: Option<String>,
    /// The node of the plan, if the scheduler may choose another one.
    pub preferred: Option<String>,
    /// The PodGroup that the pod is scheduled with.
    pub group: Option<String>,
    /// Required node labels, such as the labels of Kueue's flavors.
    pub selector: BTreeMap<String, String>,
    /// Tolerations for the taints of those nodes.
    pub tolerations: Vec<Toleration>,
    /// Labels by which the deciding component recognizes the pod.
    pub labels: BTreeMap<String, String>,
    /// Annotations for the same purpose.
    pub annotations: BTreeMap<String, String>,
    /// Scheduling gates that the deciding component removes.
    pub gates: Vec<String>,
}

impl Place {
    /// Confines a pod to the place, in addition to the pod's own constraints.
    pub(super) fn apply(&self, spec: &mut PodSpec) {
        if !self.selector.is_empty() {
            spec.node_selector.get_or_insert_default().extend(self.selector.clone());
        }
        if !self.tolerations.is_empty() {
            spec.tolerations.get_or_insert_default().extend(self.tolerations.iter().cloned());
        }
        for name in &self.gates {
            spec.scheduling_gates.get_or_insert_default().push(PodSchedulingGate { name: name.clone() });
        }
        if let Some(group) = &self.group {
            spec.scheduling_group = Some(PodSchedulingGroup { pod_group_name: Some(group.clone()) });
        }
        if let Some(node) = &self.node {
            require_node(spec.affinity.get_or_insert_default(), node);
        }
        if let Some(node) = &self.preferred {
            prefer_node(spec.affinity.get_or_insert_default(), node);
        }
    }
}

/// Requires a node through affinity, as DaemonSets do: kube-scheduler still makes the final decision, and cluster
/// autoscalers understand it. Node selector terms are alternatives (ORed), so the node is added to each of the pod's
/// own terms.
fn require_node(affinity: &mut Affinity, node: &str) {
    let of_pod: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required: &mut NodeSelector =
        of_pod.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_fields.get_or_insert_default().push(named(node));
    }
}

/// Prefers a node more than all else: 100 is the highest weight.
fn prefer_node(affinity: &mut Affinity, node: &str) {
    let preference = NodeSelectorTerm { match_fields: Some(vec![named(node)]), ..NodeSelectorTerm::default() };
    let of_pod: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let preferred = of_pod.preferred_during_scheduling_ignored_during_execution.get_or_insert_default();
    preferred.push(PreferredSchedulingTerm { preference, weight: 100 });
}

fn named(node: &str) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    }
}
