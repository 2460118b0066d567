//! Constraints of pods that kube-scheduler decides about, as far as a pod's template shows them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodAffinityTerm, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use larder_api::names::{JOB_ATTEMPT_LABEL, JOB_INDEX_LABEL};

/// The names of the volumes with a job's datasets begin with this.
pub const DATA_VOLUME: &str = "larder-data-";

/// The topology key whose domains are single nodes.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// True if no two pods of a role can be on one node: they listen on a port of the node, or have required anti-affinity
/// to each other. `pod` is any of them.
pub fn are_apart(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let anti_affinity = spec.affinity.as_ref().and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let required = anti_affinity.and_then(|of| of.required_during_scheduling_ignored_during_execution.as_ref());
    has_node_ports(spec) || required.into_iter().flatten().any(|term| keeps_off(term, pod))
}

/// True if the pods of a role must be spread over nodes. `pod` is any of them.
pub fn are_spread(pod: &Pod) -> bool {
    let labels = shared_labels(pod);
    let mut constraints = pod.spec.iter().flat_map(|spec| spec.topology_spread_constraints.iter().flatten());
    constraints.any(|constraint| {
        let selects = constraint.label_selector.as_ref().is_some_and(|selector| selects(selector, &labels));
        constraint.topology_key == HOSTNAME && constraint.when_unsatisfiable == "DoNotSchedule" && selects
    })
}

/// True if pods have constraints that a plan does not consider: volumes that may be bound to a zone or a node, device
/// claims, ports of the node, and requirements on the places of other pods.
pub fn are_unplanned(spec: &PodSpec) -> bool {
    let has_volume = |volume: &Volume| {
        let is_claim = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
        is_claim && !volume.name.starts_with(DATA_VOLUME)
    };
    let affinity = spec.affinity.as_ref();
    let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let near = near.and_then(|of| of.required_during_scheduling_ignored_during_execution.as_ref());
    let apart = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let apart = apart.and_then(|of| of.required_during_scheduling_ignored_during_execution.as_ref());
    let mut spread = spec.topology_spread_constraints.iter().flatten();
    spec.volumes.iter().flatten().any(has_volume)
        || spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty())
        || near.into_iter().chain(apart).any(|terms| !terms.is_empty())
        || spread.any(|constraint| constraint.when_unsatisfiable == "DoNotSchedule")
        || has_node_ports(spec)
}

/// True if a container listens on a port of the node. With the node's network, each declared port is one.
fn has_node_ports(spec: &PodSpec) -> bool {
    let shares_network = spec.host_network == Some(true);
    let ports = |container: &Container| {
        container.ports.iter().flatten().any(|port| shares_network || port.host_port.is_some_and(|port| port > 0))
    };
    spec.containers.iter().any(ports)
}

/// True if the anti-affinity of a pod keeps it off the nodes of its role's other pods.
fn keeps_off(term: &PodAffinityTerm, pod: &Pod) -> bool {
    let own = pod.metadata.namespace.as_ref();
    let namespaces = term.namespaces.iter().flatten();
    let is_everywhere = term.namespace_selector.as_ref().is_some_and(|selector| *selector == LabelSelector::default());
    let is_here = is_everywhere
        || namespaces.clone().any(|namespace| Some(namespace) == own)
        || namespaces.count() == 0 && term.namespace_selector.is_none();
    let differs = term.mismatch_label_keys.as_ref().is_some_and(|keys| !keys.is_empty());
    let labels = shared_labels(pod);
    let selects = term.label_selector.as_ref().is_some_and(|selector| selects(selector, &labels));
    term.topology_key == HOSTNAME && is_here && !differs && selects
}

/// The labels of a pod that the other pods of its role have, too.
fn shared_labels(pod: &Pod) -> BTreeMap<&str, &str> {
    let labels = pod.metadata.labels.iter().flatten();
    let shared = labels.filter(|(key, _)| *key != JOB_INDEX_LABEL && *key != JOB_ATTEMPT_LABEL);
    shared.map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

fn selects(selector: &LabelSelector, labels: &BTreeMap<&str, &str>) -> bool {
    let mut equal = selector.match_labels.iter().flatten();
    let holds = |requirement: &LabelSelectorRequirement| {
        let value = labels.get(requirement.key.as_str());
        let is_listed = || value.is_some_and(|value| requirement.values.iter().flatten().any(|one| one == value));
        match requirement.operator.as_str() {
            "In" => is_listed(),
            "NotIn" => !is_listed(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    };
    equal.all(|(key, value)| labels.get(key.as_str()) == Some(&value.as_str()))
        && selector.match_expressions.iter().flatten().all(holds)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        let labels = json!({"app": "train", "larder.dev/job-index": "0"});
        let mut pod = json!({"metadata": {"namespace": "team-a", "labels": labels},
            "spec": {"containers": [{"name": "main", "ports": [{"containerPort": 29500}]}]}});
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(pod).unwrap()
    }

    fn anti_affinity(term: Value) -> Value {
        json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    }

    // SEMANTICS: J14
    #[test]
    fn pods_with_a_port_of_the_node_or_anti_affinity_to_each_other_cannot_share_a_node() {
        assert!(!are_apart(&pod(json!({}))), "a port of the pod's own network");
        assert!(are_apart(&pod(json!({"hostNetwork": true}))));
        assert!(are_apart(&pod(
            json!({"containers": [{"name": "main", "ports": [{"containerPort": 1, "hostPort": 1}]}]})
        )));
        let key = "kubernetes.io/hostname";
        let of = |selector: Value| json!({"topologyKey": key, "labelSelector": selector});
        for (selector, apart) in [
            (json!({"matchLabels": {"app": "train"}}), true),
            (json!({"matchLabels": {"app": "other"}}), false),
            (json!({"matchLabels": {"app": "train", "larder.dev/job-index": "0"}}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["serve", "train"]}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["train"]}]}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), false),
            (json!({}), true),
            (Value::Null, false),
        ] {
            assert_eq!(are_apart(&pod(anti_affinity(of(selector.clone())))), apart, "{selector}");
        }
        let all = json!({"matchLabels": {"app": "train"}});
        for (fields, apart) in [
            (json!({"namespaces": ["team-b"]}), false),
            (json!({"namespaces": ["team-b", "team-a"]}), true),
            (json!({"namespaceSelector": {}}), true),
            (json!({"namespaceSelector": {"matchLabels": {"team": "b"}}}), false),
            (json!({"mismatchLabelKeys": ["app"]}), false),
            (json!({"topologyKey": "topology.kubernetes.io/zone"}), false),
        ] {
            let mut term = of(all.clone());
            term.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            assert_eq!(are_apart(&pod(anti_affinity(term))), apart, "{fields}");
        }
    }

    // SEMANTICS: J14
    #[test]
    fn pods_that_must_be_spread_over_nodes_are_found_in_a_template() {
        let spread = |key: &str, when: &str, app: &str| {
            let selector = json!({"matchLabels": {"app": app}});
            are_spread(&pod(json!({"topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": selector}]})))
        };
        assert!(spread(HOSTNAME, "DoNotSchedule", "train"));
        assert!(!spread(HOSTNAME, "ScheduleAnyway", "train"));
        assert!(!spread(HOSTNAME, "DoNotSchedule", "other"));
        assert!(!spread("topology.kubernetes.io/zone", "DoNotSchedule", "train"));
        assert!(!are_spread(&pod(json!({}))));
    }

    // SEMANTICS: J14
    #[test]
    fn constraints_that_no_plan_considers_are_found_in_a_template() {
        let is = |spec: Value| are_unplanned(pod(spec).spec.as_ref().unwrap());
        assert!(!is(json!({"volumes": [{"name": "v", "emptyDir": {}}]})));
        let claim = |name: &str| json!({"volumes": [{"name": name, "persistentVolumeClaim": {"claimName": "c"}}]});
        assert!(is(claim("home")) && !is(claim("larder-data-0")), "a dataset is on every node");
        assert!(is(json!({"volumes": [{"name": "v", "ephemeral": {}}]})));
        assert!(is(json!({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]})));
        assert!(is(json!({"hostNetwork": true})));
        let term = json!({"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {}});
        assert!(is(anti_affinity(term.clone())));
        assert!(is(json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})));
        let spread = |when: &str| {
            let constraint = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when});
            json!({"topologySpreadConstraints": [constraint]})
        };
        assert!(is(spread("DoNotSchedule")) && !is(spread("ScheduleAnyway")));
    }
}
