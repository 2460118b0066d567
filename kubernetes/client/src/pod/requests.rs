//! What a pod requests of its node, as the scheduler counts it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use larder_api::quantity::amount;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::pod::amounts::Amounts;

/// The parts of a pod's spec that say what it requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodResources {
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    resources: Resources,
    overhead: BTreeMap<String, Quantity>,
    resource_claims: Vec<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    resources: Resources,
    restart_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: BTreeMap<String, Quantity>,
    limits: BTreeMap<String, Quantity>,
}

/// Amounts as they are written. What is no amount counts as nothing.
pub fn amounts(written: &BTreeMap<String, Quantity>) -> Amounts {
    written.iter().filter_map(|(resource, quantity)| Some((resource.as_str(), amount(resource, quantity)?))).collect()
}

impl Resources {
    /// A limit is a request, too, if there is no other.
    fn amounts(&self) -> Amounts {
        let mut all = self.limits.clone();
        all.extend(self.requests.clone());
        amounts(&all)
    }
}

impl Resources {
    /// Those of a pod whose containers request these: a limit is a request, too, if there is no other, not of the containers either.
    fn of_pod(&self, containers: &Amounts) -> Amounts {
        let is_asked = |name: &str| self.requests.contains_key(name) || containers.get(name) > 0;
        let mut all = self.limits.clone();
        all.retain(|name, _| !is_asked(name));
        all.extend(self.requests.clone());
        all.retain(|name, _| is_of_pod(name));
        amounts(&all)
    }
}

/// True for a resource that the scheduler knows of whole pods. It does not look at others there.
fn is_of_pod(resource: &str) -> bool {
    ["cpu", "memory"].contains(&resource) || resource.starts_with("hugepages-")
}

impl PodResources {
    /// What all containers that run together request: those of the pod with the sidecars, or an init container with the sidecars
    /// that were started before it, whichever is more of each resource; or what the pod requests as a whole, if that is more.
    pub fn requests(&self) -> Amounts {
        let (mut sidecars, mut most) = (Amounts::default(), Amounts::default());
        for container in &self.init_containers {
            let mut now = sidecars.clone();
            now.add(&container.resources.amounts(), 1);
            most = larger(&most, &now);
            if container.restart_policy.as_deref() == Some("Always") {
                sidecars = now;
            }
        }
        for container in &self.containers {
            sidecars.add(&container.resources.amounts(), 1);
        }
        let containers = larger(&most, &sidecars);
        let mut all = larger(&containers, &self.resources.of_pod(&containers));
        all.add(&amounts(&self.overhead), 1);
        all
    }
}

impl PodResources {
    /// True if the pod is given devices: by a resource of a vendor's, whose name has a domain, or by a claim.
    pub fn has_devices(&self) -> bool {
        let requests = self.requests();
        let mut vendors = requests.iter().filter(|(name, amount)| name.contains('/') && *amount > 0);
        vendors.next().is_some() || !self.resource_claims.is_empty()
    }
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
        let has = |spec: serde_json::Value| PodResources::deserialize(spec).unwrap().has_devices();
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
        let requests = PodResources::deserialize(pod).expect("a pod").requests();
        let expected = [("cpu", 3_500), ("memory", (1 << 30) + (1 << 20)), ("nvidia.com/gpu", 2)];
        assert_eq!(requests, expected.into_iter().collect());
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
        let requests = PodResources::deserialize(pod).expect("a pod").requests();
        let expected = [("cpu", 65_000), ("memory", 2 << 30), ("hugepages-2Mi", 4 << 20), ("hugepages-1Gi", 1 << 30)];
        assert_eq!(requests, expected.into_iter().collect());
        let limits = json!({"cpu": "64", "memory": "8Gi"});
        let pod = json!({"resources": {"limits": limits}, "containers": [{"resources": {"requests": {"cpu": "2"}}}]});
        let requests = PodResources::deserialize(pod).expect("a pod").requests();
        assert_eq!(requests, [("cpu", 2_000), ("memory", 8 << 30)].into_iter().collect());
    }
}
