//! The resources that a pod requests from its node, as the scheduler counts them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use larder_api::quantity::amount;

use crate::pod::amounts::Amounts;

/// Parses written amounts. A text that is not a quantity counts as zero.
pub fn amounts<'q>(written: impl IntoIterator<Item = (&'q String, &'q Quantity)>) -> Amounts {
    read(written).collect()
}

fn read<'q>(written: impl IntoIterator<Item = (&'q String, &'q Quantity)>) -> impl Iterator<Item = (&'q str, u64)> {
    written.into_iter().filter_map(|(resource, quantity)| Some((resource.as_str(), amount(resource, quantity)?)))
}

/// The requests of a container. A limit without a request counts as a request.
fn of_container(container: &Container) -> impl Iterator<Item = (&str, u64)> {
    container.resources.iter().flat_map(|resources| with_limits(resources, |_| false))
}

/// The requests, and the limits of resources that are not requested here or elsewhere.
fn with_limits(
    resources: &ResourceRequirements,
    is_requested_elsewhere: impl Fn(&str) -> bool,
) -> impl Iterator<Item = (&str, u64)> {
    let requests = resources.requests.as_ref();
    let is_requested = move |name: &str| requests.is_some_and(|requests| requests.contains_key(name));
    let limits = resources.limits.iter().flatten();
    let limits = limits.filter(move |(name, _)| !is_requested(name) && !is_requested_elsewhere(name));
    read(requests.into_iter().flatten().chain(limits))
}

/// True for a resource that the scheduler counts at pod level. It ignores other resources in `spec.resources`.
fn is_of_pods(resource: &str) -> bool {
    ["cpu", "memory"].contains(&resource) || resource.starts_with("hugepages-")
}

/// The requests of all containers that run at the same time. For each resource this is the largest of three amounts:
/// the pod's containers with its sidecars, an init container with the sidecars that start before it, or the pod-level
/// request.
pub fn requests(spec: &PodSpec) -> Amounts {
    // By resource: the requests of the containers that go on while later ones run, and the largest amount so far. Only
    // the resources of a container change with it, because a pod may have thousands of both.
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let is_sidecar = |container: &Container| container.restart_policy.as_deref() == Some("Always");
    let first = spec.init_containers.iter().flatten().map(|container| (container, is_sidecar(container)));
    for (container, goes_on) in first.chain(spec.containers.iter().map(|container| (container, true))) {
        for (resource, amount) in of_container(container) {
            let (running, most) = sums.entry(resource).or_default();
            let now = running.saturating_add(amount);
            *most = now.max(*most);
            if goes_on {
                *running = now;
            }
        }
    }
    if let Some(resources) = &spec.resources {
        // A limit of the pod counts as a request if neither the pod nor its containers request the resource.
        let is_requested = |name: &str| sums.get(name).is_some_and(|(_, most)| *most > 0);
        let of_pod: Vec<(&str, u64)> =
            with_limits(resources, is_requested).filter(|(name, _)| is_of_pods(name)).collect();
        for (resource, amount) in of_pod {
            let (_, most) = sums.entry(resource).or_default();
            *most = amount.max(*most);
        }
    }
    for (resource, amount) in read(spec.overhead.iter().flatten()) {
        let (_, most) = sums.entry(resource).or_default();
        *most = most.saturating_add(amount);
    }
    sums.into_iter().map(|(resource, (_, most))| (resource, most)).collect()
}

/// True if the pod gets devices: through a vendor's resource, whose name has a domain, or through a resource claim.
pub fn has_devices(spec: &PodSpec) -> bool {
    let has_claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    has_claims || requests(spec).iter().any(|(name, amount)| name.contains('/') && amount > 0)
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

    // If each container counted all resources of those before it, this test would take longer than any test may.
    #[test]
    fn many_containers_and_many_resources_are_read_in_one_pass() {
        let container = |first: u64, names: u64| {
            let one = |name: u64| (format!("example.com/r{name:05}"), Quantity("2".to_owned()));
            let requests = Some((first..first + names).map(one).collect());
            let resources = Some(ResourceRequirements { requests, ..ResourceRequirements::default() });
            Container { resources, restart_policy: Some("Always".to_owned()), ..Container::default() }
        };
        // The first one requests many resources, and each of the others one of these or one of its own.
        let others = (0..10_000).map(|at| container(15_000 + at, 1));
        let init_containers = Some([container(0, 20_000)].into_iter().chain(others).collect());
        let requested = requests(&PodSpec { init_containers, ..PodSpec::default() });
        let expected = (0..25_000_u64).map(|name| if (15_000..20_000).contains(&name) { 4_u64 } else { 2 });
        assert!(requested.iter().map(|(_, amount)| amount).eq(expected));
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
