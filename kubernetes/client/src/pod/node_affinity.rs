//! The nodes that pods may run on by their labels and taints: the node selector, required node affinity and tolerations
//! of the pods, with what the flavors of their quota add.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration};
use larder_api::names::NODE_LABEL_PREFIX;

use crate::node::Node;

/// Conditions that a node must meet. All must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Places {
    /// Labels that the node must have.
    pub labels: BTreeMap<String, String>,
    /// Terms of node affinity. At least one must hold; an empty list excludes no node.
    pub terms: Vec<NodeSelectorTerm>,
    /// The topology domains that Kueue assigned. The node must be in one of them; `None` excludes no node.
    pub domains: Option<Domains>,
    /// The taints that the pods tolerate.
    pub tolerations: Vec<Toleration>,
}

/// Topology domains. The nodes of a domain have the same values of some labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domains {
    /// The labels, from the highest level to the lowest.
    pub levels: Vec<String>,
    /// The values of these labels, by domain. Without any, no node is in a domain.
    pub values: BTreeSet<Vec<String>>,
}

impl Domains {
    fn have(&self, node: &Node) -> bool {
        let values: Option<Vec<String>> = self.levels.iter().map(|level| node.labels.get(level).cloned()).collect();
        values.is_some_and(|values| self.values.contains(&values))
    }
}

impl Places {
    /// The conditions for pods with this spec.
    pub fn of(spec: &PodSpec) -> Self {
        let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let required =
            affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
        Self {
            labels: spec.node_selector.clone().unwrap_or_default(),
            terms: required.map(|required| required.node_selector_terms.clone()).unwrap_or_default(),
            domains: None,
            tolerations: spec.tolerations.clone().unwrap_or_default(),
        }
    }

    /// True if the pods may run on `node`.
    pub fn allow(&self, node: &Node) -> bool {
        self.labels.iter().all(|(key, value)| is_of_datasets(key) || node.labels.get(key) == Some(value))
            && (self.terms.is_empty() || self.terms.iter().any(|term| holds_on(term, node)))
            && self.domains.as_ref().is_none_or(|domains| domains.have(node))
            && node.taints.iter().all(|taint| self.tolerate(taint))
    }

    fn tolerate(&self, taint: &Taint) -> bool {
        taint.effect == "PreferNoSchedule" || self.tolerations.iter().any(|toleration| covers(toleration, taint))
    }
}

/// True if a pod with this toleration may run on a node with this taint. An unset field counts as empty.
fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let (key, effect) = (text(&toleration.key), text(&toleration.effect));
    let is_any = toleration.operator.as_deref() == Some("Exists");
    (key.is_empty() && is_any || key == taint.key)
        && (effect.is_empty() || effect == taint.effect)
        && (is_any || text(&toleration.value) == text(&taint.value))
}

fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

/// True for a label of a dataset. Such labels are ignored, since they follow the data: a pod that requires one would
/// wait for data that waits for the pod.
fn is_of_datasets(key: &str) -> bool {
    key.starts_with(NODE_LABEL_PREFIX)
}

/// True if the term holds on the node. A term without conditions holds on no node.
fn holds_on(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if labels.is_empty() && fields.is_empty() {
        return false;
    }
    let mut labels = labels.iter().filter(|requirement| !is_of_datasets(&requirement.key));
    labels.all(|requirement| holds(requirement, node.labels.get(&requirement.key)))
        && fields.iter().all(|requirement| holds(requirement, Some(&node.meta.key.name)))
}

/// True if a label or field with this value meets the requirement.
fn holds(requirement: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let compare = |is: fn(&i64, &i64) -> bool| {
        let number = |text: &String| text.parse::<i64>().ok();
        let (here, bound) = (value.and_then(number), values.first().and_then(number));
        matches!((here, bound), (Some(here), Some(bound)) if is(&here, &bound))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|here, bound| here > bound),
        "Lt" => compare(|here, bound| here < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(taints: &[(&str, &str)]) -> Node {
        let labels = [("gpu", "h100"), ("rank", "7"), ("zone", "a")];
        let taint = |(key, effect): &(&str, &str)| Taint {
            key: (*key).into(),
            value: Some("yes".into()),
            effect: (*effect).into(),
            time_added: None,
        };
        let mut node = Node {
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            taints: taints.iter().map(taint).collect(),
            ..Node::default()
        };
        node.meta.key.name = "n1".into();
        node
    }

    fn with_terms(terms: Value) -> Places {
        Places { terms: serde_json::from_value(terms).unwrap(), ..Places::default() }
    }

    #[test]
    fn a_node_has_all_labels_and_is_in_one_domain() {
        let labels = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let places = |key, value| Places { labels: labels(key, value), ..Places::default() };
        assert!(places("gpu", "h100").allow(&node(&[])));
        assert!(!places("gpu", "a100").allow(&node(&[])));
        assert!(!places("cpu", "h100").allow(&node(&[])));
        // A node that does not hold the data yet may still get it.
        assert!(places("dataset.larder.dev/team-a.pets", "90").allow(&node(&[])));
        let domains = |levels: &[&str], values: &[&[&str]]| {
            let levels = levels.iter().map(|level| (*level).to_owned()).collect();
            let values = values.iter().map(|values| values.iter().map(|value| (*value).to_owned()).collect()).collect();
            Places { domains: Some(Domains { levels, values }), ..Places::default() }.allow(&node(&[]))
        };
        assert!(domains(&["zone"], &[&["b"], &["a"]]) && !domains(&["zone"], &[&["b"]]));
        assert!(domains(&["zone", "gpu"], &[&["a", "h100"]]) && !domains(&["zone", "gpu"], &[&["a", "a100"]]));
        assert!(!domains(&["zone", "rack"], &[&["a", ""]]), "the node has no rack");
        assert!(!domains(&["zone"], &[]), "no domain has a node");
    }

    #[test]
    fn node_affinity_has_the_operators_of_kubernetes() {
        for (expression, holds) in [
            (json!({"key": "gpu", "operator": "In", "values": ["a100", "h100"]}), true),
            (json!({"key": "gpu", "operator": "NotIn", "values": ["h100"]}), false),
            (json!({"key": "none", "operator": "NotIn", "values": ["h100"]}), true),
            (json!({"key": "gpu", "operator": "Exists"}), true),
            (json!({"key": "gpu", "operator": "DoesNotExist"}), false),
            (json!({"key": "rank", "operator": "Gt", "values": ["6"]}), true),
            (json!({"key": "rank", "operator": "Gt", "values": ["7"]}), false),
            (json!({"key": "rank", "operator": "Lt", "values": ["10"]}), true),
            (json!({"key": "gpu", "operator": "Lt", "values": ["10"]}), false),
            (json!({"key": "gpu", "operator": "Near", "values": ["h100"]}), false),
            (json!({"key": "dataset.larder.dev/a.b", "operator": "Gt", "values": ["89"]}), true),
        ] {
            let places = with_terms(json!([{"matchExpressions": [expression]}]));
            assert_eq!(places.allow(&node(&[])), holds, "{expression}");
        }
        // One term is enough; within a term, all conditions must hold.
        let (good, bad) = (json!({"key": "gpu", "operator": "Exists"}), json!({"key": "x", "operator": "Exists"}));
        let alternatives = json!([{"matchExpressions": [bad]}, {"matchExpressions": [good]}]);
        assert!(with_terms(alternatives).allow(&node(&[])));
        assert!(!with_terms(json!([{"matchExpressions": [good, bad]}])).allow(&node(&[])));
        assert!(!with_terms(json!([{}])).allow(&node(&[])));
        let named = |name| json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]);
        assert!(with_terms(named("n1")).allow(&node(&[])) && !with_terms(named("n2")).allow(&node(&[])));
    }

    #[test]
    fn a_tainted_node_takes_only_pods_that_tolerate_it() {
        let tainted = node(&[("gpu", "NoSchedule")]);
        for (toleration, allowed) in [
            (json!({"key": "gpu", "operator": "Exists"}), true),
            (json!({"key": "gpu", "value": "yes"}), true),
            (json!({"key": "gpu", "value": "no"}), false),
            (json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"operator": "Exists"}), true),
            (json!({"key": "cpu", "operator": "Exists"}), false),
        ] {
            let tolerations = vec![serde_json::from_value(toleration.clone()).unwrap()];
            let places = Places { tolerations, ..Places::default() };
            assert_eq!(places.allow(&tainted), allowed, "{toleration}");
        }
        assert!(!Places::default().allow(&tainted));
        assert!(Places::default().allow(&node(&[("gpu", "PreferNoSchedule")])));
    }
}
