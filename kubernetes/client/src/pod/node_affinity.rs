//! The nodes that pods of a job may run on, as far as their labels and taints tell: the pod template's selector,
//! required affinity and tolerations, with what the flavors of their quota add.

use std::collections::BTreeMap;

use larder_api::names::NODE_LABEL_PREFIX;
use serde::Deserialize;

use crate::node::{Node, Taint};

/// Conditions that a node must meet, all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Places {
    /// Labels that it has.
    pub labels: BTreeMap<String, String>,
    /// One of these holds; without any, there is no such condition.
    pub terms: Vec<Term>,
    /// It has the labels of one of these, the topology domains that Kueue assigned; without any, it may have any.
    pub domains: Vec<BTreeMap<String, String>>,
    /// Taints that the pods tolerate.
    pub tolerations: Vec<Toleration>,
}

/// A term of node affinity. One without expressions matches no node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Term {
    /// Conditions on labels.
    pub match_expressions: Vec<Expression>,
    /// Conditions on the name.
    pub match_fields: Vec<Expression>,
}

/// A condition on one label or field.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Expression {
    /// The label or field.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
    pub operator: String,
    /// The values to compare with.
    pub values: Vec<String>,
}

/// A toleration of a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Toleration {
    /// The taint's key; empty for all.
    pub key: String,
    /// `Equal`, which is the default, or `Exists`.
    pub operator: String,
    /// The taint's value.
    pub value: String,
    /// The taint's effect; empty for all.
    pub effect: String,
    /// How long a pod stays on a node that gets such a taint; `None`: for ever.
    #[serde(rename = "tolerationSeconds")]
    pub seconds: Option<i64>,
}

impl Places {
    /// True if the pods may run on `node`.
    pub fn allow(&self, node: &Node) -> bool {
        let has = |labels: &BTreeMap<String, String>| {
            labels.iter().all(|(key, value)| is_of_datasets(key) || node.labels.get(key) == Some(value))
        };
        has(&self.labels)
            && (self.terms.is_empty() || self.terms.iter().any(|term| term.holds(node)))
            && (self.domains.is_empty() || self.domains.iter().any(has))
            && node.taints.iter().all(|taint| self.tolerate(taint))
    }

    fn tolerate(&self, taint: &Taint) -> bool {
        taint.effect == "PreferNoSchedule" || self.tolerations.iter().any(|toleration| toleration.covers(taint))
    }
}

impl Toleration {
    fn covers(&self, taint: &Taint) -> bool {
        let value = self.operator == "Exists" || self.value == taint.value;
        (self.key.is_empty() && self.operator == "Exists" || self.key == taint.key)
            && (self.effect.is_empty() || self.effect == taint.effect)
            && value
    }
}

/// The labels of datasets follow the data. A pod that asks for one would otherwise wait for data that waits for the
/// pod.
fn is_of_datasets(key: &str) -> bool {
    key.starts_with(NODE_LABEL_PREFIX)
}

impl Term {
    fn holds(&self, node: &Node) -> bool {
        if self.match_expressions.is_empty() && self.match_fields.is_empty() {
            return false;
        }
        let labels = self.match_expressions.iter().filter(|expression| !is_of_datasets(&expression.key));
        labels.into_iter().all(|expression| expression.holds(node.labels.get(&expression.key)))
            && self.match_fields.iter().all(|expression| expression.holds(Some(&node.meta.key.name)))
    }
}

impl Expression {
    fn holds(&self, value: Option<&String>) -> bool {
        let compare = |is: fn(&i64, &i64) -> bool| {
            let number = |text: &String| text.parse::<i64>().ok();
            let (here, bound) = (value.and_then(number), self.values.first().and_then(number));
            matches!((here, bound), (Some(here), Some(bound)) if is(&here, &bound))
        };
        match self.operator.as_str() {
            "In" => value.is_some_and(|value| self.values.contains(value)),
            "NotIn" => value.is_none_or(|value| !self.values.contains(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => compare(|here, bound| here > bound),
            "Lt" => compare(|here, bound| here < bound),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(taints: &[(&str, &str)]) -> Node {
        let labels = [("gpu", "h100"), ("rank", "7"), ("zone", "a")];
        let taint =
            |(key, effect): &(&str, &str)| Taint { key: (*key).into(), value: "yes".into(), effect: (*effect).into() };
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
    fn labels_and_domains_are_as_a_selector_says() {
        let labels = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let places = |key, value| Places { labels: labels(key, value), ..Places::default() };
        assert!(places("gpu", "h100").allow(&node(&[])));
        assert!(!places("gpu", "a100").allow(&node(&[])));
        assert!(!places("cpu", "h100").allow(&node(&[])));
        // Data that is not there yet is no reason not to bring it.
        assert!(places("dataset.larder.dev/team-a.pets", "90").allow(&node(&[])));
        let domains = |values: &[&str]| Places {
            domains: values.iter().map(|value| labels("zone", value)).collect(),
            ..Places::default()
        };
        assert!(domains(&["b", "a"]).allow(&node(&[])) && !domains(&["b"]).allow(&node(&[])));
    }

    #[test]
    fn every_operator_of_affinity_is_kubernetes_own() {
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
        // Terms are alternatives, what is in one term is not.
        let (good, bad) = (json!({"key": "gpu", "operator": "Exists"}), json!({"key": "x", "operator": "Exists"}));
        let alternatives = json!([{"matchExpressions": [bad]}, {"matchExpressions": [good]}]);
        assert!(with_terms(alternatives).allow(&node(&[])));
        assert!(!with_terms(json!([{"matchExpressions": [good, bad]}])).allow(&node(&[])));
        assert!(!with_terms(json!([{}])).allow(&node(&[])));
        let named = |name| json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]);
        assert!(with_terms(named("n1")).allow(&node(&[])) && !with_terms(named("n2")).allow(&node(&[])));
    }

    #[test]
    fn a_tainted_node_is_for_pods_that_tolerate_it() {
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
