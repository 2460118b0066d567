//! The resources that a pod requests from its node, as the scheduler counts them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use larder_api::quantity::amount;

use crate::pod::amounts::Amounts;

/// Parses written amounts. A text that is not a quantity counts as zero.
pub fn amounts<'q>(written: impl IntoIterator<Item = (&'q String, &'q Quantity)>) -> Amounts {
    let read =
        |(resource, quantity): (&'q String, &'q Quantity)| Some((resource.as_str(), amount(resource, quantity)?));
    written.into_iter().filter_map(read).collect()
}

/// The requests of a container. A limit without a request counts as a request.
fn of_container(container: &Container) -> Amounts {
    container.resources.as_ref().map(|resources| with_limits(resources, |_| true, |_| false)).unwrap_or_default()
}

/// The pod-level requests of a pod whose containers request `containers`. A limit counts as a request if neither the
/// pod nor its containers request the resource.
fn of_pod(resources: &ResourceRequirements, containers: &Amounts) -> Amounts {
    with_limits(resources, is_of_pods, |name| containers.get(name) > 0)
}

/// The requests, and the limits of resources that are not requested here or elsewhere.
fn with_limits(
    resources: &ResourceRequirements,
    counts: impl Fn(&str) -> bool,
    is_requested_elsewhere: impl Fn(&str) -> bool,
) -> Amounts {
    let requests = resources.requests.as_ref();
    let is_requested = |name: &String| requests.is_some_and(|requests| requests.contains_key(name));
    let limits = resources.limits.iter().flatten();
    let limits = limits.filter(|(name, _)| !is_requested(name) && !is_requested_elsewhere(name));
    amounts(requests.into_iter().flatten().chain(limits).filter(|(name, _)| counts(name)))
}

/// True for a resource that the scheduler counts at pod level. It ignores other resources in `spec.resources`.
fn is_of_pods(resource: &str) -> bool {
    ["cpu", "memory"].contains(&resource) || resource.starts_with("hugepages-")
}

/// The requests of all containers that run at the same time. For each resource this is the largest of three amounts:
/// the pod's containers with its sidecars, an init container with the sidecars that start before it, or the pod-level
/// request.
pub fn requests(spec: &PodSpec) -> Amounts {
    let (mut sidecars, mut most) = (Amounts::default(), Amounts::default());
    for container in spec.init_containers.iter().flatten() {
        let mut now = sidecars.clone();
        now.add(&of_container(container), 1);
        most = larger(&most, &now);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars = now;
        }
    }
    for container in &spec.containers {
        sidecars.add(&of_container(container), 1);
    }
    let mut all = larger(&most, &sidecars);
    if let Some(resources) = &spec.resources {
        all = larger(&all, &of_pod(resources, &all));
    }
    all.add(&amounts(spec.overhead.iter().flatten()), 1);
    all
}

/// True if the pod gets devices: through a vendor's resource, whose name has a domain, or through a resource claim.
pub fn has_devices(spec: &PodSpec) -> bool {
    let has_claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    has_claims || requests(spec).iter().any(|(name, amount)| name.contains('/') && amount > 0)
}

/// The larger amount of each resource.
fn larger(one: &Amounts, other: &Amounts) -> Amounts {
    let resources: BTreeSet<&str> = one.iter().chain(other.iter()).map(|(resource, _)| resource).collect();
    resources.into_iter().map(|resource| (resource, one.get(resource).max(other.get(resource)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_has_devices_by_resources_of_vendors_and_by_claims() {
        let has = |spec: serde_json::Value| has_devices(&serde_json::from_value(spec).unwrap());
        let limits = |limits: serde_json::Value| json!({"containers": [{}, {"resources": {"limits": limits}}]});
        assert!(has(limits(json!({"larder.dev/rail": 4}))));
        assert!(has(json!({"resourceClaims": [{"name": "gpus", "resourceClaimName": "x"}]})));
        for none in [json!({}), limits(json!({"cpu": 1, "hugepages-2Mi": "2Mi"})), limits(json!({"nvidia.com/gpu": 0}))]
        {
            assert!(!has(none.clone()), "{none}");
        }
    }

    #[test]
    fn a_pod_requests_what_its_containers_need_at_the_same_time() {
        let of = |amounts: serde_json::Value| json!({"resources": {"requests": amounts}});
        let pod = json!({
            "containers": [of(json!({"cpu": "1", "memory": "1Gi"})), {"resources": {"limits": {"nvidia.com/gpu": 2}}}],
            "initContainers": [
                {"resources": {"requests": {"cpu": "500m"}}, "restartPolicy": "Always"},
                of(json!({"cpu": "3"})),
                of(json!({"memory": "512Mi"})),
            ],
            "overhead": {"memory": "1Mi"},
        });
        let requested = requests(&serde_json::from_value(pod).expect("a pod"));
        let expected = [("cpu", 3_500), ("memory", (1 << 30) + (1 << 20)), ("nvidia.com/gpu", 2)];
        assert_eq!(requested, expected.into_iter().collect());
    }

    #[test]
    fn a_pod_that_requests_more_as_a_whole_counts_with_that() {
        let pod = json!({
            "resources": {
                "requests": {"cpu": "64", "memory": "1Gi", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": 8},
                "limits": {"cpu": "65", "memory": "8Gi", "hugepages-1Gi": "1Gi"},
            },
            "containers": [{"resources": {"requests": {"cpu": "0", "memory": "2Gi"}}}],
            "overhead": {"cpu": "1"},
        });
        let requested = requests(&serde_json::from_value(pod).expect("a pod"));
        let expected = [("cpu", 65_000), ("memory", 2 << 30), ("hugepages-2Mi", 4 << 20), ("hugepages-1Gi", 1 << 30)];
        assert_eq!(requested, expected.into_iter().collect());
        let limits = json!({"cpu": "64", "memory": "8Gi"});
        let pod = json!({"resources": {"limits": limits}, "containers": [{"resources": {"requests": {"cpu": "2"}}}]});
        let requested = requests(&serde_json::from_value(pod).expect("a pod"));
        assert_eq!(requested, [("cpu", 2_000), ("memory", 8 << 30)].into_iter().collect());
    }
}
