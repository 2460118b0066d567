//! Where a pod is to run, by whoever decides: a plan, the scheduler's gangs, or Kueue.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSchedulingGate,
    PodSchedulingGroup, PodSpec, Toleration,
};

/// Where a pod is to run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// The node that it was planned for.
    pub node: Option<String>,
    /// The PodGroup that it is scheduled with.
    pub group: Option<String>,
    /// Labels of nodes, such as those of Kueue's flavors.
    pub selector: BTreeMap<String, String>,
    /// Taints that those nodes may have.
    pub tolerations: Vec<Toleration>,
    /// Labels of the pod by which whoever decides knows it.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the same purpose.
    pub annotations: BTreeMap<String, String>,
    /// Gates that whoever decides opens.
    pub gates: Vec<String>,
}

impl Place {
    /// Confines a pod to the place, beside what it says itself.
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
    }
}

/// As DaemonSets do: the scheduler has the last word, and an autoscaler understands it. Terms are alternatives, so each of the
/// pod's own gets the node.
fn require_node(affinity: &mut Affinity, node: &str) {
    let of_pod: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required: &mut NodeSelector =
        of_pod.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_fields.get_or_insert_default().push(NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        });
    }
}
